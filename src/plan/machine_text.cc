// Machine::parse and to_text: machines as lines of text; docs/plan.md has the grammar. Called by
// tools and tests; calls presets.h and Topology::parse.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/names.h"
#include "ferry/plan.h"
#include "ferry/status.h"
#include "plan/graph.h"
#include "plan/presets.h"

namespace ferry {

namespace {

using internal::nearest_name;
using Words = std::vector<std::string_view>;

Words split(std::string_view text, std::string_view separators) {
  Words words;
  while (!text.empty()) {
    const std::size_t begin = std::min(text.find_first_not_of(separators), text.size());
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    text.remove_prefix(end);
  }
  return words;
}

// One line, word by word; complaints name it.
class Line {
 public:
  Line(std::string_view text, int number) : words_(split(text, " \t\r")), number_(number) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Code::kInvalidArgument, fmt::format("machine, line {}: {}", number_, what));
  }

  bool done() const { return next_ == words_.size(); }
  std::string_view word(const char* what) {
    if (done()) refuse(fmt::format("{} is missing", what));
    return words_[next_++];
  }
  bool take(std::string_view word) {
    if (done() || words_[next_] != word) return false;
    ++next_;
    return true;
  }
  std::string rest() {
    std::string text;
    while (!done()) text += (text.empty() ? "" : " ") + std::string(words_[next_++]);
    return text;
  }

  int integer(std::string_view text) const {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0)
      refuse(fmt::format("'{}' is not a number, 0 or more", text));
    return value;
  }

  // "12.5GB/s" with unit "GB/s"; nothing if it has another unit.
  std::optional<double> quantity(std::string_view text, std::string_view unit) const {
    if (!text.ends_with(unit)) return std::nullopt;
    const std::string_view digits = text.substr(0, text.size() - unit.size());
    double value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    if (!(value > 0) || value > 1e15)
      refuse(fmt::format("'{}' is not a positive quantity of {}", text, unit));
    return value;
  }
  double required(std::string_view text, std::string_view unit) const {
    const std::optional<double> value = quantity(text, unit);
    if (!value) refuse(fmt::format("'{}' is not a number with {}", text, unit));
    return *value;
  }

 private:
  Words words_;
  std::size_t next_ = 0;
  int number_;
};

void read_shape(Line& line, Machine::Link& link) {
  const std::vector<std::string> shapes = {"mesh", "ring", "pairs", "index", "xor"};
  const std::string shape(line.word("a shape (mesh, ring, pairs, index or xor)"));
  const auto found = std::ranges::find(shapes, shape);
  if (found == shapes.end())
    line.refuse(fmt::format("link '{}': '{}' is no shape{}", link.name, shape,
                            nearest_name(shape, shapes)));
  link.shape = static_cast<Machine::Shape>(found - shapes.begin());
  if (link.shape == Machine::Shape::kXor) {
    link.mask = line.integer(line.word("the number of xor"));
  } else if (link.shape == Machine::Shape::kPairs) {
    for (const std::string_view pair : split(line.word("pairs, such as 0-5,1-4"), ",")) {
      const Words ends = split(pair, "-");
      if (ends.size() != 2)
        line.refuse(fmt::format("link '{}': '{}' is no pair, such as 0-5", link.name, pair));
      link.pairs.push_back({line.integer(ends[0]), line.integer(ends[1])});
    }
  } else if (!line.done() && !line.take("all")) {
    link.level = line.word("a level");
  }
  if (line.take("in")) link.level = line.word("a level");
}

void read_curve(Line& line, Machine::Link& link) {
  for (const std::string_view point : split(line.word("a curve, such as 1048576:0.18,.."), ",")) {
    const Words both = split(point, ":");
    if (both.size() != 2) line.refuse(fmt::format("'{}' is no point, such as 1048576:0.18", point));
    link.curve.push_back({line.required(both[0], ""), line.required(both[1], "")});
    if (link.curve.size() > 1 && link.curve.back()[0] <= link.curve[link.curve.size() - 2][0])
      line.refuse(
          fmt::format("link '{}': sizes of a curve ascend, but {} does not", link.name, both[0]));
  }
}

Machine::Link read_link(Line& line) {
  Machine::Link link{.name = std::string(line.word("a name"))};
  read_shape(line, link);
  while (!line.done()) {
    const std::string word(line.word("a property"));
    if (const auto rate = line.quantity(word, "GB/s")) {
      link.gb_s = *rate;
    } else if (const auto latency = line.quantity(word, "us")) {
      link.latency_us = *latency;
    } else if (word == "issue") {
      link.issue_us = line.required(line.word("a time"), "us");
    } else if (word == "port") {
      link.port = line.word("the name of a port");
    } else if (word == "curve") {
      read_curve(line, link);
    } else if (word == "source") {
      link.source = line.rest();
    } else {
      line.refuse(fmt::format("link '{}': '{}' is neither a rate (GB/s) nor a latency (us){}",
                              link.name, word,
                              nearest_name(word, {"issue", "port", "curve", "source", "in"})));
    }
  }
  return link;
}

Machine::Port read_port(Line& line) {
  Machine::Port port{.name = std::string(line.word("a name"))};
  while (!line.done()) {
    const std::string word(line.word("a property"));
    if (const auto rate = line.quantity(word, "GB/s")) {
      port.gb_s = *rate;
    } else if (word == "of") {
      port.level = line.word("a level");
    } else if (word == "half") {
      port.duplex = Machine::Duplex::kHalf;
    } else if (word == "source") {
      port.source = line.rest();
    } else {
      line.refuse(fmt::format("port '{}': '{}' is no rate (GB/s){}", port.name, word,
                              nearest_name(word, {"of", "half", "source"})));
    }
  }
  return port;
}

Machine::Engine read_engine(Line& line) {
  Machine::Engine engine{.name = std::string(line.word("a name"))};
  while (!line.done()) {
    const std::string word(line.word("a property"));
    if (const auto rate = line.quantity(word, "GB/s")) {
      engine.gb_s = *rate;
    } else if (word == "sends") {
      engine.sends = true;
    } else if (word == "relays") {
      engine.relays = true;
    } else if (word == "reorders") {
      engine.reorders = true;
    } else if (word == "source") {
      engine.source = line.rest();
    } else {
      line.refuse(fmt::format("engine '{}': '{}' is no rate (GB/s){}", engine.name, word,
                              nearest_name(word, {"sends", "relays", "reorders", "source"})));
    }
  }
  return engine;
}

// "dispatch 1.5us 20ns 60GB/s 18GB/s"
Machine::Copying read_copying(Line& line) {
  Machine::Copying cost;
  cost.rank_us = line.required(line.word("the time of a rank"), "us");
  cost.token_ns = line.required(line.word("the time of a token"), "ns");
  for (double& rate : cost.gb_s)
    rate = line.required(line.word("a rate, of two: in the cache and beyond"), "GB/s");
  return cost;
}

void read_host(Line& line, Machine::Host& host) {
  while (!line.done()) {
    const std::string word(line.word("a property"));
    if (word == "dispatch") {
      host.dispatch = read_copying(line);
    } else if (word == "combine") {
      host.combine = read_copying(line);
    } else if (word == "processors") {
      host.processors = line.integer(line.word("a number"));
    } else if (word == "waiting") {
      for (Machine::Copying* half : {&host.dispatch, &host.combine})
        half->waiting_us = line.required(line.word("a time, of two: dispatch, combine"), "us");
    } else if (word == "caches") {
      for (double& size : host.caches.mb) size = line.required(line.word("a size, of two"), "MB");
    } else if (word == "rank") {
      host.caches.rank_mb = line.required(line.word("a size"), "MB");
    } else if (word == "network") {
      host.network_gb_s = line.required(line.word("a rate"), "GB/s");
    } else if (word == "together") {
      host.together = true;
    } else if (word == "flag") {
      host.flag_ns = line.required(line.word("a time"), "ns");
    } else if (word == "source") {
      host.source = line.rest();
    } else {
      line.refuse(
          fmt::format("host: '{}' is nothing known{}", word,
                      nearest_name(word, {"dispatch", "combine", "processors", "waiting", "caches",
                                          "rank", "network", "together", "flag", "source"})));
    }
  }
}

void read_line(Line& line, Machine& machine) {
  const std::string what(line.word("a word"));
  if (what == "link") {
    machine.links.push_back(read_link(line));
  } else if (what == "port") {
    machine.ports.push_back(read_port(line));
  } else if (what == "engine") {
    machine.engines.push_back(read_engine(line));
  } else if (what == "host") {
    read_host(line, machine.host);
  } else if (what == "memory") {
    machine.memory_gb = line.required(line.word("a size"), "GB");
  } else if (what == "contention") {
    machine.contention = line.required(line.word("a factor"), "");
  } else {
    line.refuse(fmt::format(
        "'{}' begins no line{}", what,
        nearest_name(what, {"link", "port", "engine", "host", "memory", "contention"})));
  }
  if (!line.done()) line.refuse(fmt::format("'{}' is too much", line.rest()));
}

Topology read_tree(std::string_view text) try {
  return Topology::parse(text);
} catch (const Error& error) {
  if (text.find(',') != text.npos) throw;
  const std::string_view name = text.substr(0, text.find_first_of(":@"));
  throw Error(Code::kInvalidArgument,
              fmt::format("{}{}", error.what(), nearest_name(name, machine_presets())));
}

// Names are new and ports are there.
void check(const Machine& machine) {
  std::vector<std::string> names, ports;
  for (const Machine::Link& link : machine.links) names.push_back(link.name);
  for (const Machine::Port& port : machine.ports)
    names.push_back(port.name), ports.push_back(port.name);
  for (const Machine::Engine& engine : machine.engines) names.push_back(engine.name);
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    throw Error(Code::kInvalidArgument, fmt::format("machine: two things are named '{}'", *twice));
  for (const Machine::Link& link : machine.links) {
    if (!link.port.empty() && std::ranges::count(ports, link.port) == 0)
      throw Error(Code::kInvalidArgument,
                  fmt::format("link '{}': there is no port '{}'{}", link.name, link.port,
                              nearest_name(link.port, ports)));
  }
  for (const Machine::Port& port : machine.ports) {
    if (!port.level.empty() && machine.tree.find_level(port.level) < 0)
      throw Error(Code::kInvalidArgument,
                  fmt::format("port '{}': there is no level '{}'", port.name, port.level));
  }
}

std::string rate_text(double gb_s) { return gb_s > 0 ? fmt::format(" {}GB/s", gb_s) : ""; }
std::string source_text(const std::string& source) {
  return source.empty() ? "" : " source " + source;
}

std::string link_text(const Machine::Link& link) {
  constexpr std::array kShapes = {"mesh", "ring", "pairs", "index", "xor"};
  const bool in = link.shape == Machine::Shape::kPairs || link.shape == Machine::Shape::kXor;
  std::string text =
      fmt::format("link {} {}", link.name, kShapes.at(static_cast<std::size_t>(link.shape)));
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

Machine Machine::parse(std::string_view text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  if (const std::optional<std::string> preset = internal::preset_text(text.substr(0, end))) {
    if (text.find_first_not_of(" \t\r\n", end) != text.npos)
      throw Error(Code::kInvalidArgument, "machine, line 2: a preset stands alone");
    Machine machine = parse(*preset);
    machine.name = text.substr(0, end);
    return machine;
  }
  Machine machine;
  int number = 0;
  bool has_tree = false;
  while (!text.empty()) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    const std::string_view all = text.substr(0, length), line = all.substr(0, all.find('#'));
    text.remove_prefix(std::min(length + 1, text.size()));
    ++number;
    const Words words = split(line, " \t\r");
    if (words.empty()) continue;
    Line read(line, number);
    if (has_tree) {
      read_line(read, machine);
      continue;
    }
    if (words.size() > 1)
      read.refuse("the first line is a tree, such as host:2,rank:8, and no more");
    machine.tree = read_tree(words[0]);
    machine.name = words[0];
    has_tree = true;
  }
  if (!has_tree) throw Error(Code::kInvalidArgument, "machine: no text");
  check(machine);
  return machine;
}

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
