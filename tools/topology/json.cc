// Converts the JSON form of a topology to and from its text.
#include <fmt/format.h>

#include <algorithm>

#include "tools/refuse.h"
#include "tools/topology/parts.h"

namespace ferry::tools {

namespace {

using nlohmann::json;

// Makes "3+5" from [3, 5], or "3" from 3. Topology::parse checks the numbers.
std::string fanout_text(const json& fanout) {
  if (!fanout.is_array()) return fanout.dump();
  std::string text;
  for (const json& count : fanout) text += (text.empty() ? "" : "+") + count.dump();
  return text;
}

// Makes "0-5+1-4" from [[0, 5], [1, 4]].
std::string pairs_text(const json& pairs) {
  std::string text;
  for (const json& pair : pairs)
    text += fmt::format("{}{}-{}", text.empty() ? "" : "+", pair.at(0).dump(), pair.at(1).dump());
  return text;
}

std::string second_way_text(const json& way) {
  std::string text = fmt::format("@also{}xor", way.at("mates_xor").dump());
  if (way.contains("bandwidth_gb_s"))
    text += fmt::format("{}GB/s", way.at("bandwidth_gb_s").dump());
  return text;
}

std::string level_text(const json& level) {
  const json& name = level.at("name");
  std::string text = fmt::format("{}:{}", name.get<std::string>(), fanout_text(level.at("fanout")));
  for (const auto& [key, value] : level.items()) {
    if (key == "name" || key == "fanout") continue;
    if (key == "links")
      text += fmt::format("@{}links", value.dump());
    else if (key == "mates_xor")
      text += fmt::format("@{}xor", value.dump());
    else if (key == "mates")
      text += "@pairs" + pairs_text(value);
    else if (key == "bandwidth_gb_s")
      text += fmt::format("@{}GB/s", value.dump());
    else if (key == "latency_us")
      text += fmt::format("@{}us", value.dump());
    else if (key == "second_way")
      text += second_way_text(value);
    else
      refuse(
          "JSON topology: level {} has '{}', which is none of name, fanout, links, mates_xor, "
          "mates, second_way, bandwidth_gb_s, latency_us",
          name.dump(), key);
  }
  return text;
}

Report::Json second_way_json(const Topology::SecondWay& way) {
  Report::Json second = {{"mates_xor", way.mates_xor}};
  if (way.bandwidth_gb_s > 0) second["bandwidth_gb_s"] = way.bandwidth_gb_s;
  return second;
}

}  // namespace

Topology topology_from_json(const std::string& text) try {
  const json levels = json::parse(text).at("levels");
  std::string all;
  for (const json& level : levels) all += (all.empty() ? "" : ",") + level_text(level);
  Topology topology = Topology::parse(all);
  if (topology.num_levels() != std::ssize(levels))
    refuse("JSON topology: '{}' is not one level each", all);
  return topology;
} catch (const json::exception& error) {
  refuse("JSON topology: {}", error.what());
}

Report::Json levels_json(const Topology& topology) {
  using Json = Report::Json;
  Json levels = Json::array();
  for (int index = 0; index < topology.num_levels(); ++index) {
    const Topology::Level& level = topology.level(index);
    const int first = level.fanout[0];
    const bool even = std::ranges::count(level.fanout, first) == std::ssize(level.fanout);
    levels.push_back({{"name", level.name},
                      {"fanout", even ? Json(first) : Json(level.fanout)},
                      {"links", level.link.count},
                      {"bandwidth_gb_s", level.link.bandwidth_gb_s},
                      {"latency_us", level.link.latency_us}});
    if (level.link.mates_xor != 0) levels.back()["mates_xor"] = level.link.mates_xor;
    if (!level.link.mates.empty()) levels.back()["mates"] = level.link.mates;
    if (level.link.second_way)
      levels.back()["second_way"] = second_way_json(*level.link.second_way);
  }
  return levels;
}

}  // namespace ferry::tools
