// Text and JSON of `ferry topology`. Called by topology.cc; calls topology/choose.h.
#include "topology_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "doctor_report.h"
#include "plan/choose.h"
#include "plan/traffic.h"
#include "topology_json.h"

namespace ferry::tools {

namespace {

using internal::bytes_text;
using internal::LinkBytes;
using nlohmann::ordered_json;

constexpr std::array kAlgorithms = {Algorithm::kFullmesh, Algorithm::kHierarchical,
                                    Algorithm::kAllgather};
constexpr int kMostLines = 48;    // of a tree or a list of mates
constexpr int kMostColumns = 16;  // nodes in a list of mates

// What does not fit a screen is counted.
std::string cut(const std::vector<std::string>& lines) {
  std::string text;
  for (int i = 0; i < std::min<int>(kMostLines, std::ssize(lines)); ++i) text += lines[i] + '\n';
  if (std::ssize(lines) > kMostLines)
    text += fmt::format("  .. and {} lines more\n", std::ssize(lines) - kMostLines);
  return text;
}

std::string counted(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string level_text(const Topology& topology, int index) {
  const Topology::Level& level = topology.level(index);
  const std::string link = link_text(level.link);
  const auto& fanout = level.fanout;
  const auto [least, most] = std::ranges::minmax(fanout);
  const std::string each =
      least == most ? std::to_string(least) : fmt::format("{} to {}", least, most);
  return fmt::format("  {:<10} {:>6} {:>14}   {}", level.name, level.num_groups(), each,
                     link.empty() ? "speed unknown" : link);
}

// Groups with their ranks, but for the ranks themselves.
void add_tree(const Topology& topology, int level, int first, std::vector<std::string>& lines) {
  if (level + 1 == topology.num_levels()) return;
  const auto ranks = [&](int group) { return topology.members(group, level); };
  for (int group = 0; group < topology.level(level).num_groups(); ++group) {
    const int outer = level == 0 ? 0 : topology.group_of(ranks(group)[0], level - 1);
    if (outer != first) continue;
    lines.push_back(fmt::format("{}{} {}: ranks {}", std::string(2 * level + 2, ' '),
                                topology.level(level).name, group,
                                ranks_text(topology, group, level)));
    add_tree(topology, level + 1, group, lines);
  }
}

// [positions][groups of the level]: who serves the ranks at a position of their group.
std::vector<std::vector<int>> mates_of(const Topology& topology, int level) {
  const int num_groups = topology.level(level).num_groups();
  std::size_t most = 0;
  for (int group = 0; group < num_groups; ++group)
    most = std::max(most, topology.members(group, level).size());
  std::vector<std::vector<int>> mates(most);
  for (std::size_t position = 0; position < most; ++position) {
    for (int group = 0; group < num_groups; ++group) {
      const auto ranks = topology.members(group, level);
      mates[position].push_back(ranks[position % ranks.size()]);
    }
  }
  return mates;
}

std::string mates_text(const Topology& topology, int level) {
  std::vector<std::string> lines;
  for (std::vector<int>& mates : mates_of(topology, level)) {
    const bool all = std::ssize(mates) <= kMostColumns;
    if (!all) mates.resize(kMostColumns);
    lines.push_back(
        fmt::format("  {:>8}  {:>5}{}", lines.size(), fmt::join(mates, " "), all ? "" : " .."));
  }
  return fmt::format(
      "\nmates: who serves the ranks at a position of their {0}, in {0} 0, 1, ..{1}\n{2}",
      topology.level(level).name,
      level == 0 ? "" : fmt::format(" of the same {}", topology.level(level - 1).name), cut(lines));
}

std::string mates_text(const Topology& topology) {
  if (topology.num_nodes() == 1) return "\none node: nobody needs a mate\n";
  std::string text;
  for (int level = 0; level <= topology.find_level(Topology::kHost); ++level)
    if (topology.level(level).num_groups() > 1) text += mates_text(topology, level);
  return text;
}

std::string shape_text(const ExchangeConfig& config) {
  return fmt::format("{} of each rank, hidden {}, {} of {}, {}, wire {}",
                     counted(config.max_tokens, "token"), config.hidden, config.top_k,
                     counted(config.num_experts, "expert"), data_type_name(config.dtype),
                     wire_name(config.wire));
}

std::string bytes_table(const Topology& topology, const ExchangeConfig& config) {
  const internal::Traffic traffic = internal::traffic_of(config, topology.num_ranks());
  std::string text = fmt::format(
      "\nbytes of the busiest link of each level, dispatch + combine\n({}; "
      "routing uniform)\n  {:<10} ",
      shape_text(config), "level");
  std::vector<std::vector<LinkBytes>> bytes;
  for (const Algorithm algorithm : kAlgorithms) {
    text += fmt::format(" {:>21}", internal::algorithm_name(algorithm));
    bytes.push_back(internal::level_bytes(topology, traffic, algorithm));
  }
  text += '\n';
  const int host = topology.find_level(Topology::kHost);
  for (int level = 0; level < topology.num_levels(); ++level) {
    text += fmt::format("  {:<10} ", topology.level(level).name);
    for (const auto& of_algorithm : bytes) {
      text +=
          fmt::format(" {:>21}", fmt::format("{} + {}", bytes_text(of_algorithm[level].dispatch),
                                             bytes_text(of_algorithm[level].combine)));
    }
    text += level > host ? "  loads and stores\n" : "  network\n";
  }
  return text;
}

// In lines of a hundred columns.
std::string wrapped(const std::string& sentence) {
  constexpr std::size_t kColumns = 98;
  std::string text;
  std::string_view rest = sentence;
  while (rest.size() > kColumns) {
    const std::size_t blank = rest.rfind(' ', kColumns);
    text += fmt::format("  {}\n", rest.substr(0, blank));
    rest.remove_prefix(blank + 1);
  }
  return text + fmt::format("  {}\n", rest);
}

}  // namespace

std::string ranks_text(const Topology& topology, int group, int level) {
  const auto ranks = topology.members(group, level);
  return cpus_text({ranks.begin(), ranks.end()});
}

std::string link_text(const Topology::Link& link) {
  std::vector<std::string> parts;
  if (link.bandwidth_gb_s > 0)
    parts.push_back(fmt::format("{} of {} GB/s", counted(link.count, "link"), link.bandwidth_gb_s));
  else if (link.count > 1)
    parts.push_back(counted(link.count, "link"));
  if (link.latency_us > 0) parts.push_back(fmt::format("{} us", link.latency_us));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<std::string> traffic_lines(const Topology& topology, const ExchangeConfig& config) {
  const internal::Traffic traffic = internal::traffic_of(config, topology.num_ranks());
  std::vector<std::vector<LinkBytes>> bytes;
  for (const Algorithm algorithm : kAlgorithms)
    bytes.push_back(internal::level_bytes(topology, traffic, algorithm));
  std::vector<std::string> lines = {shape_text(config) +
                                    ": bytes of a dispatch and its combine on the busiest link"};
  for (int level = 0; level < topology.num_levels(); ++level) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < kAlgorithms.size(); ++i) {
      parts.push_back(fmt::format("{} {}", internal::algorithm_name(kAlgorithms[i]),
                                  bytes_text(bytes[i][level].pair())));
    }
    const bool network = level <= topology.find_level(Topology::kHost);
    if (!network) parts = {bytes_text(bytes[0][level].pair()) + " of loads and stores"};
    lines.push_back(fmt::format("{}: {}", topology.level(level).name, fmt::join(parts, ", ")));
  }
  if (topology.num_nodes() > 1) lines.emplace_back("equal colours: mates");
  return lines;
}

std::string topology_text(const Topology& topology, const ExchangeConfig& config) {
  std::string text =
      fmt::format("{}\n{}, {}\n\n  {:<10} {:>6} {:>14}   links of each group\n", topology.to_text(),
                  counted(topology.num_ranks(), "rank"), counted(topology.num_nodes(), "node"),
                  "level", "groups", "in each above");
  for (int level = 0; level < topology.num_levels(); ++level)
    text += level_text(topology, level) + '\n';
  std::vector<std::string> tree;
  add_tree(topology, 0, 0, tree);
  if (!tree.empty()) text += '\n' + cut(tree);
  text += mates_text(topology) + bytes_table(topology, config);
  const AlgorithmChoice choice =
      internal::choose_algorithm(topology, internal::traffic_of(config, topology.num_ranks()));
  return text + fmt::format("\nauto is {}\n{}", internal::algorithm_name(choice.algorithm),
                            wrapped(choice.reason));
}

std::string topology_json(const Topology& topology, const ExchangeConfig& config) {
  const internal::Traffic traffic = internal::traffic_of(config, topology.num_ranks());
  const AlgorithmChoice choice = internal::choose_algorithm(topology, traffic);
  ordered_json mates = ordered_json::object(), bytes = ordered_json::object();
  for (int level = 0; level <= topology.find_level(Topology::kHost); ++level)
    mates[topology.level(level).name] = mates_of(topology, level);
  for (const Algorithm algorithm : kAlgorithms) {
    ordered_json& levels = bytes[internal::algorithm_name(algorithm)];
    const std::vector<LinkBytes> found = internal::level_bytes(topology, traffic, algorithm);
    for (int level = 0; level < topology.num_levels(); ++level) {
      levels[topology.level(level).name] = {{"dispatch", found[level].dispatch},
                                            {"combine", found[level].combine}};
    }
  }
  const ordered_json object = {
      {"topology", topology.to_text()},
      {"num_ranks", topology.num_ranks()},
      {"levels", levels_json(topology)},
      {"nodes", topology.nodes()},
      {"mates", mates},
      {"level_bytes", bytes},
      {"auto",
       {{"algorithm", internal::algorithm_name(choice.algorithm)}, {"reason", choice.reason}}}};
  return object.dump(2) + '\n';
}

}  // namespace ferry::tools
