// The JSON forms of machines and plans; see plan_json.h.
#include "plan_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/names.h"
#include "ferry/status.h"
#include "plan/graph.h"

namespace ferry::tools {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Reads one text; complaints name the line of a key.
class MachineReader {
 public:
  explicit MachineReader(const std::string& text) : text_(text), all_(json::parse(text)) {}

  // By way of the text form, so that there is one grammar.
  Machine read() const {
    check_keys(all_,
               {"tree", "links", "ports", "engines", "host", "memory_gb", "contention", "name"});
    std::string lines = string(all_, "tree") + "\n";
    for (const json& link : list("links")) lines += link_line(link);
    for (const json& port : list("ports")) lines += port_line(port);
    for (const json& engine : list("engines")) lines += engine_line(engine);
    if (all_.contains("host")) lines += host_line(all_.at("host"));
    for (const auto& [key, word, unit] :
         {std::array{"memory_gb", "memory", "GB"}, std::array{"contention", "contention", ""}})
      if (all_.contains(key)) lines += fmt::format("{} {}{}\n", word, positive(all_, key), unit);
    Machine machine = Machine::parse(lines);
    if (all_.contains("name")) machine.name = string(all_, "name");
    return machine;
  }

 private:
  // Of the first place of a quoted text.
  int line_of(const std::string& key) const {
    const std::size_t at = text_.find(fmt::format("\"{}\"", key));
    return 1 + static_cast<int>(std::count(
                   text_.begin(),
                   text_.begin() + static_cast<std::ptrdiff_t>(std::min(at, text_.size())), '\n'));
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& what) const {
    throw std::invalid_argument(fmt::format("JSON machine, line {}: {}", line_of(key), what));
  }

  void check_keys(const json& object, const std::vector<std::string>& known) const {
    if (!object.is_object())
      throw std::invalid_argument("JSON machine: " + object.dump() + " is no object");
    for (const auto& [key, value] : object.items()) {
      if (std::ranges::count(known, key) == 0)
        refuse(key, fmt::format("unknown key '{}'{}", key, internal::nearest_name(key, known)));
    }
  }

  json list(const char* key) const { return all_.value(key, json::array()); }

  std::string string(const json& object, const char* key) const {
    if (!object.contains(key))
      throw std::invalid_argument(
          fmt::format("JSON machine: '{}' is missing in {}", key, object.dump()));
    if (!object.at(key).is_string())
      refuse(key, fmt::format("'{}' is {}, not a text", key, object.at(key).dump()));
    return object.at(key).get<std::string>();
  }

  std::string positive(const json& object, const char* key) const {
    const json& value = object.at(key);
    if (!value.is_number() || value.get<double>() <= 0)
      refuse(key, fmt::format("'{}' is {}, not a positive number", key, value.dump()));
    return value.dump();
  }

  std::string optional(const json& object, const char* key, const char* before,
                       const char* unit) const {
    return object.contains(key) ? fmt::format(" {}{}{}", before, positive(object, key), unit) : "";
  }

  std::string numbers(const json& object, const char* key, const char* unit) const {
    std::string text;
    for (const json& value : object.value(key, json::array()))
      text += fmt::format(" {}{}", value.dump(), unit);
    return text;
  }

  static std::string pairs_of(const json& list, const char* between) {
    std::string text;
    for (const json& pair : list)
      text += fmt::format("{}{}{}{}", text.empty() ? "" : ",", pair.at(0).dump(), between,
                          pair.at(1).dump());
    return text;
  }

  std::string source(const json& object) const {
    return object.contains("source") ? " source " + string(object, "source") : "";
  }

  std::string shape(const json& link) const {
    for (const char* shape : {"mesh", "ring", "index"})
      if (link.contains(shape)) return fmt::format(" {} {}", shape, string(link, shape));
    const std::string in = link.contains("within") ? " in " + string(link, "within") : "";
    if (link.contains("xor")) return fmt::format(" xor {}{}", link.at("xor").dump(), in);
    if (!link.contains("pairs"))
      refuse(
          string(link, "name"),
          fmt::format("link '{}' has none of mesh, ring, index, xor, pairs", string(link, "name")));
    return " pairs " + pairs_of(link.at("pairs"), "-") + in;
  }

  std::string link_line(const json& link) const {
    check_keys(link, {"name", "mesh", "ring", "index", "xor", "pairs", "within", "gb_s",
                      "latency_us", "issue_us", "port", "curve", "source"});
    std::string line = "link " + string(link, "name") + shape(link) +
                       optional(link, "gb_s", "", "GB/s") + optional(link, "latency_us", "", "us") +
                       optional(link, "issue_us", "issue ", "us");
    if (link.contains("port")) line += " port " + string(link, "port");
    if (link.contains("curve")) line += " curve " + pairs_of(link.at("curve"), ":");
    return line + source(link) + "\n";
  }

  std::string port_line(const json& port) const {
    check_keys(port, {"name", "gb_s", "level", "duplex", "source"});
    const std::string duplex = port.contains("duplex") ? string(port, "duplex") : "full";
    if (duplex != "full" && duplex != "half")
      refuse("duplex", fmt::format("duplex '{}' is neither full nor half", duplex));
    return "port " + string(port, "name") + optional(port, "gb_s", "", "GB/s") +
           (port.contains("level") ? " of " + string(port, "level") : "") +
           (duplex == "half" ? " half" : "") + source(port) + "\n";
  }

  std::string engine_line(const json& engine) const {
    check_keys(engine, {"name", "gb_s", "sends", "relays", "reorders", "source"});
    std::string line = "engine " + string(engine, "name") + optional(engine, "gb_s", "", "GB/s");
    for (const char* use : {"sends", "relays", "reorders"})
      if (engine.value(use, false)) line += fmt::format(" {}", use);
    return line + source(engine) + "\n";
  }

  std::string host_line(const json& host) const {
    check_keys(host, {"dispatch", "combine", "processors", "waiting_us", "caches_mb", "rank_mb",
                      "network_gb_s", "together", "flag_ns", "source"});
    std::string line = "host";
    for (const char* half : {"dispatch", "combine"}) {
      if (!host.contains(half)) continue;
      const json& cost = host.at(half);
      check_keys(cost, {"rank_us", "token_ns", "gb_s"});
      line += fmt::format(" {} {}us {}ns{}", half, positive(cost, "rank_us"),
                          positive(cost, "token_ns"), numbers(cost, "gb_s", "GB/s"));
    }
    line += optional(host, "processors", "processors ", "");
    if (host.contains("waiting_us")) line += " waiting" + numbers(host, "waiting_us", "us");
    if (host.contains("caches_mb")) line += " caches" + numbers(host, "caches_mb", "MB");
    return line + optional(host, "rank_mb", "rank ", "MB") +
           optional(host, "network_gb_s", "network ", "GB/s") +
           (host.value("together", false) ? " together" : "") +
           optional(host, "flag_ns", "flag ", "ns") + source(host) + "\n";
  }

  const std::string& text_;
  const json all_;
};

ordered_json spans_json(const std::vector<Span>& spans) {
  ordered_json list = ordered_json::array();
  for (const Span& span : spans)
    list.push_back({{"what", span.what},
                    {"start_us", span.start_us},
                    {"end_us", span.end_us},
                    {"bytes", span.bytes},
                    {"count", span.count}});
  return list;
}

ordered_json prediction_json(const Prediction& prediction) {
  ordered_json loads = ordered_json::array(), doubled = ordered_json::object();
  for (const Load& load : prediction.loads) {
    loads.push_back({{"name", load.name},
                     {"gb_s", load.gb_s},
                     {"source", load.source},
                     {"instances", load.instances},
                     {"dispatch_bytes", load.dispatch_bytes},
                     {"combine_bytes", load.combine_bytes},
                     {"dispatch_us", load.dispatch_us},
                     {"combine_us", load.combine_us}});
  }
  for (const auto& [name, us] : prediction.doubled) doubled[name] = us;
  return {{"strategy", prediction.strategy},
          {"dispatch_us", prediction.dispatch_us},
          {"combine_us", prediction.combine_us},
          {"pair_us", prediction.pair_us()},
          {"bound_us",
           {{"dispatch", prediction.dispatch_bound_us}, {"combine", prediction.combine_bound_us}}},
          {"simulated", prediction.simulated},
          {"received_bytes", prediction.received_bytes},
          {"staged_bytes", prediction.staged_bytes},
          {"limited_by", prediction.limited_by},
          {"loads", std::move(loads)},
          {"pair_us_if_doubled", std::move(doubled)},
          {"step",
           {{"gathered_bytes", prediction.step.gathered_bytes},
            {"gather_us", prediction.step.gather_us},
            {"layer_us", prediction.step.layer_us},
            {"paired_us", prediction.step.paired_us},
            {"step_us", prediction.step.step_us},
            {"paired_step_us", prediction.step.paired_step_us}}},
          {"dispatch_tasks", spans_json(prediction.dispatch_spans)},
          {"combine_tasks", spans_json(prediction.combine_spans)}};
}

}  // namespace

std::string read_file(const std::string& name) {
  std::ifstream file(name);
  if (!file) throw std::invalid_argument(fmt::format("cannot open '{}'", name));
  return {std::istreambuf_iterator<char>(file), {}};
}

Machine machine_from_json(const std::string& text) try {
  return MachineReader(text).read();
} catch (const json::exception& error) {
  throw std::invalid_argument(fmt::format("JSON machine: {}", error.what()));
}

ordered_json plan_json(const PlannedPoint& point) {
  const ExchangeConfig& exchange = point.workload.exchange;
  ordered_json predictions = ordered_json::array();
  for (const Prediction& prediction : point.plan.predictions)
    predictions.push_back(prediction_json(prediction));
  return {{"machine", {{"name", point.machine.name}, {"text", point.machine.to_text()}}},
          {"ranks", point.machine.tree.num_ranks()},
          {"tokens", exchange.max_tokens},
          {"hidden", exchange.hidden},
          {"top_k", exchange.top_k},
          {"experts", exchange.num_experts},
          {"dtype", data_type_name(exchange.dtype)},
          {"wire", wire_name(exchange.wire)},
          {"groups", point.workload.groups},
          {"groups_chosen", point.workload.groups_chosen},
          {"predictions", std::move(predictions)},
          {"sentence", point.plan.sentence},
          {"notes", point.plan.notes}};
}

ordered_json links_json(const Machine& machine) {
  const internal::Graph graph(machine);
  ordered_json kinds = ordered_json::array();
  for (int kind = 0; kind < graph.num_kinds(); ++kind) {
    const Machine::Link& link = machine.links[kind];
    ordered_json pairs = ordered_json::array();
    for (int rank = 0; rank < graph.num_ranks(); ++rank) {
      for (const int other : graph.neighbours(rank, kind))
        if (rank < other) pairs.push_back({rank, other});
    }
    kinds.push_back({{"name", link.name},
                     {"load", link.port.empty() ? link.name : link.port},
                     {"pairs", std::move(pairs)}});
  }
  return kinds;
}

}  // namespace ferry::tools
