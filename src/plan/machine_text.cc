// Machine::parse: a machine from lines of text; docs/plan.md has the grammar.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/names.h"
#include "ferry/plan.h"
#include "ferry/status.h"
#include "plan/declared.h"
#include "plan/line_reader.h"
#include "plan/machine_text.h"
#include "plan/presets.h"

namespace ferry {

namespace {

using internal::LineReader;
using internal::nearest_name;
using internal::split;
using internal::WordList;

constexpr std::string_view kBlanks = " \t\r";

// Splits a text into lines. Empty lines are kept, because error messages count lines.
WordList split_lines(std::string_view text) {
  WordList lines;
  while (!text.empty()) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, length));
    text.remove_prefix(std::min(length + 1, text.size()));
  }
  return lines;
}

void read_shape(LineReader& line, Machine::Link& link) {
  const std::vector<std::string> shapes(internal::kShapeNames.begin(), internal::kShapeNames.end());
  const std::string shape(line.word("a shape (mesh, ring, pairs, index or xor)"));
  const auto found = std::ranges::find(shapes, shape);
  if (found == shapes.end())
    line.refuse(fmt::format("link '{}': '{}' is not a shape{}", link.name, shape,
                            nearest_name(shape, shapes)));
  link.shape = static_cast<Machine::Shape>(found - shapes.begin());
  if (link.shape == Machine::Shape::kXor) {
    link.mask = line.integer(line.word("the number of xor"));
  } else if (link.shape == Machine::Shape::kPairs) {
    for (const std::string_view pair : split(line.word("pairs, such as 0-5,1-4"), ",")) {
      const WordList ends = split(pair, "-");
      if (ends.size() != 2)
        line.refuse(fmt::format("link '{}': '{}' is not a pair, such as 0-5", link.name, pair));
      link.pairs.push_back({line.integer(ends[0]), line.integer(ends[1])});
    }
  } else if (!line.done() && !line.take("all")) {
    link.level = line.word("a level");
  }
  if (line.take("in")) link.level = line.word("a level");
}

void read_curve(LineReader& line, Machine::Link& link) {
  for (const std::string_view point : split(line.word("a curve, such as 1048576:0.18,.."), ",")) {
    const WordList both = split(point, ":");
    if (both.size() != 2)
      line.refuse(fmt::format("'{}' is not a point, such as 1048576:0.18", point));
    link.curve.push_back({line.required(both[0], ""), line.required(both[1], "")});
    if (link.curve.size() > 1 && link.curve.back()[0] <= link.curve[link.curve.size() - 2][0])
      line.refuse(
          fmt::format("link '{}': sizes of a curve ascend, but {} does not", link.name, both[0]));
  }
}

Machine::Link read_link(LineReader& line) {
  Machine::Link link{.name = std::string(line.word("a name")), .line = line.number()};
  read_shape(line, link);
  while (!line.done()) {
    const std::string word(line.word("a property"));
    if (const auto rate = line.rate(word)) {
      line.set(link.gb_s, *rate, "GB/s");
    } else if (const auto latency = line.quantity(word, "us")) {
      line.set(link.latency_us, *latency, "us");
    } else if (word == "issue") {
      link.issue_us = line.required(line.word("a time"), "us");
    } else if (word == "port") {
      link.port = line.word("the name of a port");
    } else if (word == "curve") {
      read_curve(line, link);
    } else if (word == "source") {
      link.source = line.source(link.gb_s > 0 || !link.curve.empty(), link.latency_us > 0);
    } else {
      line.refuse(fmt::format(
          "link '{}': '{}' is neither a rate (GB/s, Gbit/s) nor a latency (us){}", link.name, word,
          nearest_name(word, {"issue", "port", "curve", "source", "in"})));
    }
  }
  return link;
}

Machine::Port read_port(LineReader& line) {
  Machine::Port port{.name = std::string(line.word("a name")), .line = line.number()};
  while (!line.done()) {
    const std::string word(line.word("a property"));
    if (const auto rate = line.rate(word)) {
      line.set(port.gb_s, *rate, "GB/s");
    } else if (word == "of") {
      port.level = line.word("a level");
    } else if (word == "half") {
      port.duplex = Machine::Duplex::kHalf;
    } else if (word == "source") {
      port.source = line.source(port.gb_s > 0, true);
    } else {
      line.refuse(fmt::format("port '{}': '{}' is not a rate (GB/s, Gbit/s){}", port.name, word,
                              nearest_name(word, {"of", "half", "source"})));
    }
  }
  return port;
}

Machine::Engine read_engine(LineReader& line) {
  Machine::Engine engine{.name = std::string(line.word("a name")), .line = line.number()};
  while (!line.done()) {
    const std::string word(line.word("a property"));
    if (const auto rate = line.rate(word)) {
      line.set(engine.gb_s, *rate, "GB/s");
    } else if (word == "sends") {
      engine.sends = true;
    } else if (word == "relays") {
      engine.relays = true;
    } else if (word == "reorders") {
      engine.reorders = true;
    } else if (word == "source") {
      engine.source = line.source(engine.gb_s > 0, true);
    } else {
      line.refuse(fmt::format("engine '{}': '{}' is not a rate (GB/s, Gbit/s){}", engine.name, word,
                              nearest_name(word, {"sends", "relays", "reorders", "source"})));
    }
  }
  return engine;
}

// Reads "dispatch 1.5us 20ns 60GB/s 18GB/s".
Machine::Copying read_copying(LineReader& line) {
  Machine::Copying cost;
  cost.rank_us = line.required(line.word("the time of a rank"), "us");
  cost.token_ns = line.required(line.word("the time of a token"), "ns");
  for (double& rate : cost.gb_s)
    rate = line.required_rate(line.word("a rate (two: in the cache, beyond it)"));
  return cost;
}

void read_host(LineReader& line, Machine::Host& host) {
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
        half->waiting_us = line.required(line.word("a time (two: dispatch, combine)"), "us");
    } else if (word == "caches") {
      for (double& size : host.caches.mb) size = line.required(line.word("a size (two)"), "MB");
    } else if (word == "rank") {
      host.caches.rank_mb = line.required(line.word("a size"), "MB");
    } else if (word == "network") {
      host.network_gb_s = line.required_rate(line.word("a rate"));
    } else if (word == "together") {
      host.together = true;
    } else if (word == "flag") {
      host.flag_ns = line.required(line.word("a time"), "ns");
    } else if (word == "source") {
      host.source = line.source(line.read() > 3, line.read() > 3);
    } else {
      line.refuse(
          fmt::format("host: '{}' is not a property{}", word,
                      nearest_name(word, {"dispatch", "combine", "processors", "waiting", "caches",
                                          "rank", "network", "together", "flag", "source"})));
    }
  }
}

void read_line(LineReader& line, Machine& machine) {
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
    line.set(machine.memory_gb, line.required(line.word("a size"), "GB"), "GB");
  } else if (what == "contention") {
    machine.contention = line.required(line.word("a factor"), "");
    if (machine.contention < 1)
      line.refuse(fmt::format(
          "contention {}: at least 1, as an exchange is not faster beside compute than alone",
          machine.contention));
  } else {
    line.refuse(fmt::format(
        "a line does not begin with '{}'{}", what,
        nearest_name(what, {"link", "port", "engine", "host", "memory", "contention"})));
  }
  if (!line.done()) line.refuse(fmt::format("unexpected '{}' at the end of the line", line.rest()));
}

Topology read_tree(std::string_view text) try {
  return Topology::parse(text);
} catch (const Error& error) {
  if (text.find(',') != text.npos) throw;
  const std::string_view name = text.substr(0, text.find_first_of(":@"));
  throw Error(Code::kInvalidArgument,
              fmt::format("{}{}", error.what(), nearest_name(name, machine_presets())));
}

}  // namespace

namespace internal {

Machine parse_lines(std::span<const MachineLine> lines) {
  Machine machine;
  bool has_tree = false;
  for (const auto& [number, text] : lines) {
    const WordList words = split(text.substr(0, text.find('#')), kBlanks);
    if (words.empty()) continue;
    LineReader line(words, number);
    if (has_tree) {
      read_line(line, machine);
      continue;
    }
    if (words.size() > 1) line.refuse("the first line is a tree alone, such as host:2,rank:8");
    machine.tree = read_tree(words[0]);
    machine.name = words[0];
    has_tree = true;
  }
  if (!has_tree) throw Error(Code::kInvalidArgument, "machine: the text is empty");
  check_declared(machine);
  return machine;
}

}  // namespace internal

Machine Machine::parse(std::string_view text) {
  if (text.starts_with(internal::kByteOrderMark))
    text.remove_prefix(internal::kByteOrderMark.size());
  std::vector<internal::MachineLine> lines;
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::optional<std::string> preset = internal::preset_text(text.substr(0, end));
  if (preset && text.find_first_not_of(" \t\r\n", end) != text.npos)
    internal::refuse_line(2, "no line may follow a preset");
  int number = 0;
  for (const std::string_view line : split_lines(preset ? *preset : text))
    lines.push_back({preset ? 0 : ++number, line});
  Machine machine = internal::parse_lines(lines);
  if (preset) machine.name = text.substr(0, end);
  return machine;
}

}  // namespace ferry
