#include "plan/declared.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/names.h"
#include "topology/level_names.h"

namespace ferry::internal {

namespace {

// Checks that each link, port and engine has a rate, since without a rate it limits nothing. Only a
// line with a source may omit the rate.
void check_rates(const Machine& machine) {
  const auto check = [](const char* what, const auto& named, bool has_rate) {
    if (!has_rate && named.source.empty())
      refuse_line(named.line,
                  fmt::format("{} '{}': its rate (GB/s) is missing, so it would limit nothing; "
                              "if that is intended, give the reason as 'source'",
                              what, named.name));
  };
  for (const Machine::Link& link : machine.links)
    check("link", link, link.gb_s > 0 || !link.curve.empty() || !link.port.empty());
  for (const Machine::Port& port : machine.ports) check("port", port, port.gb_s > 0);
  for (const Machine::Engine& engine : machine.engines) check("engine", engine, engine.gb_s > 0);
}

// Checks that names are unique, and that the ports of links and the levels of ports exist.
void check_names(const Machine& machine) {
  std::map<std::string, int> lines;  // [names]: the line that defines it
  const auto name = [&](const auto& named) {
    if (!lines.emplace(named.name, named.line).second)
      refuse_line(named.line, fmt::format("the name '{}' is used twice", named.name));
  };
  std::ranges::for_each(machine.links, name);
  std::ranges::for_each(machine.ports, name);
  std::ranges::for_each(machine.engines, name);
  std::vector<std::string> ports;
  for (const Machine::Port& port : machine.ports) ports.push_back(port.name);
  for (const Machine::Link& link : machine.links) {
    if (!link.port.empty() && std::ranges::count(ports, link.port) == 0)
      refuse_line(link.line, fmt::format("link '{}': there is no port '{}'{}", link.name, link.port,
                                         nearest_name(link.port, ports)));
  }
  for (const Machine::Port& port : machine.ports) {
    if (!port.level.empty() && machine.tree.find_level(port.level) < 0)
      refuse_line(port.line,
                  fmt::format("port '{}': there is no level '{}'{}", port.name, port.level,
                              nearest_name(port.level, level_names(machine.tree))));
  }
}

// Refuses a port that no link names and an engine without a use, since they would limit nothing.
void check_uses(const Machine& machine) {
  for (const Machine::Port& port : machine.ports) {
    if (std::ranges::count(machine.links, port.name, &Machine::Link::port) == 0)
      refuse_line(port.line, fmt::format("port '{}': no link uses it; the line of a link that does "
                                         "has 'port {}'",
                                         port.name, port.name));
  }
  for (const Machine::Engine& engine : machine.engines) {
    if (!engine.sends && !engine.relays && !engine.reorders)
      refuse_line(engine.line, fmt::format("engine '{}': nothing uses it; it needs at least one of "
                                           "sends, relays and reorders",
                                           engine.name));
  }
}

bool carries_bytes(const std::vector<Prediction>& predictions, const std::string& name) {
  return std::ranges::any_of(predictions, [&](const Prediction& prediction) {
    return std::ranges::any_of(prediction.loads, [&](const Load& load) {
      return load.name == name && load.dispatch_bytes + load.combine_bytes > 0;
    });
  });
}

// Notes the properties of levels that have no effect. Links between ranks replace the latencies and
// mates of levels, but not their rates.
void add_levels(const Machine& machine, const std::vector<Prediction>& predictions,
                std::vector<std::string>& notes) {
  for (int i = 0; i < machine.tree.num_levels(); ++i) {
    const auto& [name, fanout, link, first] = machine.tree.level(i);
    if (link.bandwidth_gb_s > 0 && !carries_bytes(predictions, name))
      notes.push_back(fmt::format("the rate of level '{}' is not used: no byte crosses it", name));
    if (machine.links.empty()) continue;
    if (link.latency_us > 0)
      notes.push_back(
          fmt::format("the latency of level '{}' is not used, as the machine has links "
                      "with latencies of their own",
                      name));
    if (link.mates_xor != 0 || !link.mates.empty() || link.second_way)
      notes.push_back(
          fmt::format("the mates of level '{}' are not used, as the machine has links", name));
  }
}

// Notes the properties of a host that have no effect without others that the machine lacks.
void add_host(const Machine& machine, std::vector<std::string>& notes) {
  const Machine::Host& host = machine.host;
  const auto add = [&](const char* what, const char* why) {
    notes.push_back(fmt::format("host: '{}' is not used: {}", what, why));
  };
  const bool copies = host.dispatch.gb_s[0] > 0 || host.combine.gb_s[0] > 0;
  const bool waiting = host.dispatch.waiting_us > 0 || host.combine.waiting_us > 0;
  const bool network = host.network_gb_s > 0 && machine.links.empty();
  constexpr const char* kNoCopies = "it has neither 'dispatch' nor 'combine'";
  if (host.caches.mb[1] > 0 && !copies) add("caches", kNoCopies);
  if (host.caches.rank_mb > 0 && (!copies || host.caches.mb[1] <= 0))
    add("rank", copies ? "it has no 'caches'" : kNoCopies);
  if (waiting && (!copies || host.processors <= 0))
    add("waiting", copies ? "it has no 'processors'" : kNoCopies);
  if (host.processors > 0 && (!copies || !waiting))
    add("processors", copies ? "it has no 'waiting'" : kNoCopies);
  if (host.network_gb_s > 0 && !network)
    add("network", "processors are not counted over links between ranks");
  if (host.together && !copies && !network) add("together", "no processor has work");
}

}  // namespace

void check_declared(const Machine& machine) {
  check_names(machine);
  check_rates(machine);
  check_uses(machine);
}

std::vector<std::string> unused_notes(const Machine& machine, const std::vector<bool>& used_links,
                                      const std::vector<Prediction>& predictions) {
  std::vector<std::string> notes;
  for (std::size_t i = 0; i < machine.links.size(); ++i)
    if (!used_links[i])
      notes.push_back(
          fmt::format("link '{}' is not used: no strategy sends over it", machine.links[i].name));
  for (const Machine::Port& port : machine.ports)
    if (!carries_bytes(predictions, port.name))
      notes.push_back(fmt::format("port '{}' is not used: no byte crosses it", port.name));
  for (const Machine::Engine& engine : machine.engines)
    if (!carries_bytes(predictions, engine.name))
      notes.push_back(fmt::format("engine '{}' is not used: it has no byte to move", engine.name));
  add_levels(machine, predictions, notes);
  add_host(machine, notes);
  return notes;
}

}  // namespace ferry::internal
