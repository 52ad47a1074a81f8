// Machine::to_text: the lines that Machine::parse reads as the same machine.
#include <fmt/format.h>

#include <string>

#include "ferry/plan.h"
#include "plan/machine_text.h"

namespace ferry {

namespace {

std::string rate_text(double gb_s) { return gb_s > 0 ? fmt::format(" {}GB/s", gb_s) : ""; }
std::string source_text(const std::string& source) {
  return source.empty() ? "" : " source " + source;
}

std::string link_text(const Machine::Link& link) {
  const bool in = link.shape == Machine::Shape::kPairs || link.shape == Machine::Shape::kXor;
  std::string text = fmt::format("link {} {}", link.name,
                                 internal::kShapeNames.at(static_cast<std::size_t>(link.shape)));
  if (link.shape == Machine::Shape::kXor) text += fmt::format(" {}", link.mask);
  for (std::size_t i = 0; i < link.pairs.size(); ++i)
    text += fmt::format("{}{}-{}", i == 0 ? " " : ",", link.pairs[i][0], link.pairs[i][1]);
  if (!link.level.empty()) text += (in ? " in " : " ") + link.level;
  if (link.level.empty() && !in) text += " all";
  text += rate_text(link.gb_s);
  if (link.latency_us > 0) text += fmt::format(" {}us", link.latency_us);
  if (link.issue_us > 0) text += fmt::format(" issue {}us", link.issue_us);
  if (!link.port.empty()) text += " port " + link.port;
  for (std::size_t i = 0; i < link.curve.size(); ++i)
    text += fmt::format("{}{}:{}", i == 0 ? " curve " : ",", link.curve[i][0], link.curve[i][1]);
  return text + source_text(link.source) + "\n";
}

std::string copying_text(const char* what, const Machine::Copying& cost) {
  if (cost.gb_s[0] <= 0) return "";
  return fmt::format(" {} {}us {}ns {}GB/s {}GB/s", what, cost.rank_us, cost.token_ns, cost.gb_s[0],
                     cost.gb_s[1]);
}

std::string host_text(const Machine::Host& host) {
  std::string text =
      copying_text("dispatch", host.dispatch) + copying_text("combine", host.combine);
  if (host.processors > 0) text += fmt::format(" processors {}", host.processors);
  if (host.dispatch.waiting_us > 0)
    text += fmt::format(" waiting {}us {}us", host.dispatch.waiting_us, host.combine.waiting_us);
  if (host.caches.mb[0] > 0)
    text += fmt::format(" caches {}MB {}MB", host.caches.mb[0], host.caches.mb[1]);
  if (host.caches.rank_mb > 0) text += fmt::format(" rank {}MB", host.caches.rank_mb);
  if (host.network_gb_s > 0) text += fmt::format(" network {}GB/s", host.network_gb_s);
  if (host.together) text += " together";
  if (host.flag_ns > 0) text += fmt::format(" flag {}ns", host.flag_ns);
  text += source_text(host.source);
  return text.empty() ? "" : "host" + text + "\n";
}

}  // namespace

std::string Machine::to_text() const {
  std::string text = tree.to_text() + "\n";
  for (const Link& link : links) text += link_text(link);
  for (const Port& port : ports) {
    text += fmt::format("port {}{}{}{}{}\n", port.name, rate_text(port.gb_s),
                        port.level.empty() ? "" : " of " + port.level,
                        port.duplex == Duplex::kHalf ? " half" : "", source_text(port.source));
  }
  for (const Engine& engine : engines) {
    text += fmt::format("engine {}{}{}{}{}{}\n", engine.name, rate_text(engine.gb_s),
                        engine.sends ? " sends" : "", engine.relays ? " relays" : "",
                        engine.reorders ? " reorders" : "", source_text(engine.source));
  }
  text += host_text(host);
  if (memory_gb > 0) text += fmt::format("memory {}GB\n", memory_gb);
  if (contention != 1) text += fmt::format("contention {}\n", contention);
  return text;
}

}  // namespace ferry
