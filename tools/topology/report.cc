// Writes the report of `ferry topology`.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tools/text.h"
#include "tools/topology/parts.h"
#include "topology/mate.h"
#include "traffic/choose.h"
#include "traffic/ranking.h"
#include "traffic/tree_walk.h"

namespace ferry::tools {

namespace {

using internal::LinkBytes;
using Json = Report::Json;

constexpr std::array kAlgorithms = {Algorithm::kFullmesh, Algorithm::kHierarchical,
                                    Algorithm::kAllgather};
constexpr int kMostLines = 48;    // the limit for a tree or a list of mates
constexpr int kMostColumns = 16;  // the most nodes in a list of mates

// Returns the first kMostLines lines, and the number of lines that are left out.
std::string cut(const std::vector<std::string>& lines) {
  std::string text;
  for (int i = 0; i < std::min<int>(kMostLines, std::ssize(lines)); ++i) text += lines[i] + '\n';
  if (std::ssize(lines) > kMostLines)
    text += fmt::format("  .. and {} lines more\n", std::ssize(lines) - kMostLines);
  return text;
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

// Adds the groups of each level with their ranks. The innermost level, whose groups are the ranks,
// is left out.
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

// The mates where links join pairs of ranks, [ranks][groups of the level].
std::vector<std::vector<int>> mates_by_pairs(const Topology& topology, int level) {
  std::vector<std::vector<int>> mates(topology.num_ranks());
  for (int own = 0; own < topology.level(level).num_groups(); ++own) {
    const auto mine = topology.members(own, level);
    for (std::size_t position = 0; position < mine.size(); ++position) {
      for (int group = 0; group < topology.level(level).num_groups(); ++group) {
        const int rank = mine[position];
        mates[rank].push_back(group == own ? rank
                                           : internal::mate_of(topology, level, rank, position,
                                                               topology.members(group, level)));
      }
    }
  }
  return mates;
}

// The mates of each position, [positions][groups of the level].
std::vector<std::vector<int>> mates_of(const Topology& topology, int level, int mates_xor) {
  const int num_groups = topology.level(level).num_groups();
  std::size_t most = 0;
  for (int group = 0; group < num_groups; ++group)
    most = std::max(most, topology.members(group, level).size());
  std::vector<std::vector<int>> mates(most);
  for (std::size_t position = 0; position < most; ++position) {
    for (int group = 0; group < num_groups; ++group) {
      const auto ranks = topology.members(group, level);
      mates[position].push_back(ranks[internal::mate_position(position, ranks.size(), mates_xor)]);
    }
  }
  return mates;
}

std::string mates_text(const Topology& topology, int level, const char* way,
                       const std::string& of_whom, std::vector<std::vector<int>> mates) {
  std::vector<std::string> lines;
  for (std::vector<int>& of_position : mates) {
    const bool all = std::ssize(of_position) <= kMostColumns;
    if (!all) of_position.resize(kMostColumns);
    lines.push_back(fmt::format("  {:>8}  {:>5}{}", lines.size(), fmt::join(of_position, " "),
                                all ? "" : " .."));
  }
  return fmt::format(
      "\nmates{}: the rank that serves a {}, in {} 0, 1, ..{}\n{}", way, of_whom,
      topology.level(level).name,
      level == 0 ? "" : fmt::format(" of the same {}", topology.level(level - 1).name), cut(lines));
}

void add_mates(Report& report, const Topology& topology) {
  Json first = Json::object(), second = Json::object();
  if (topology.num_nodes() == 1) report.add("\none node: no rank needs a mate\n");
  for (int index = 0; index <= topology.find_level(Topology::kHost); ++index) {
    const Topology::Level& level = topology.level(index);
    const std::string position = "position of its " + level.name;
    const auto add = [&](Json& all, const char* way, const std::string& of_whom,
                         const std::vector<std::vector<int>>& mates) {
      all[level.name] = mates;
      if (level.num_groups() > 1) report.add(mates_text(topology, index, way, of_whom, mates));
    };
    if (level.link.mates.empty())
      add(first, "", position, mates_of(topology, index, level.link.mates_xor));
    else
      add(first, "", "rank", mates_by_pairs(topology, index));
    if (const auto& way = level.link.second_way)
      add(second, " over the second way", position, mates_of(topology, index, way->mates_xor));
  }
  report.add("", {{"mates", first}, {"second_way_mates", second}});
}

std::string shape_text(const ExchangeConfig& config) {
  return fmt::format("{} of each rank, hidden {}, {} of {}, {}, wire {}",
                     count_text(config.max_tokens, "token"), config.hidden, config.top_k,
                     count_text(config.num_experts, "expert"), data_type_name(config.dtype),
                     wire_name(config.wire));
}

// The bytes on the links, [algorithms][levels].
std::vector<std::vector<LinkBytes>> bytes_of(const Topology& topology,
                                             const ExchangeConfig& config) {
  const internal::Traffic traffic = internal::traffic_of(config, topology.num_ranks());
  std::vector<std::vector<LinkBytes>> bytes;
  for (const Algorithm algorithm : kAlgorithms)
    bytes.push_back(internal::level_bytes(topology, traffic, algorithm));
  return bytes;
}

void add_bytes(Report& report, const Topology& topology, const ExchangeConfig& config) {
  const std::vector<std::vector<LinkBytes>> bytes = bytes_of(topology, config);
  report.add(
      fmt::format("\nbytes of the busiest link of each level, dispatch + combine\n({}; "
                  "routing uniform)\n  {:<10} ",
                  shape_text(config), "level"));
  for (const Algorithm algorithm : kAlgorithms)
    report.add(fmt::format(" {:>21}", internal::algorithm_name(algorithm)));
  Json all = Json::object();
  for (int level = 0; level < topology.num_levels(); ++level) {
    const std::string& name = topology.level(level).name;
    report.add(fmt::format("\n  {:<10} ", name));
    for (std::size_t i = 0; i < kAlgorithms.size(); ++i) {
      const auto [dispatch, combine] = bytes[i][level];
      report.add(fmt::format(" {:>21}", fmt::format("{} + {}", internal::bytes_text(dispatch),
                                                    internal::bytes_text(combine))));
      all[internal::algorithm_name(kAlgorithms[i])][name] = {{"dispatch", dispatch},
                                                             {"combine", combine}};
    }
    const bool network = level <= topology.find_level(Topology::kHost);
    report.add(network ? "  network" : "  loads and stores");
  }
  report.add("\n", {{"level_bytes", all}});
}

}  // namespace

std::string ranks_text(const Topology& topology, int group, int level) {
  const auto ranks = topology.members(group, level);
  return ranges_text({ranks.begin(), ranks.end()});
}

std::string link_text(const Topology::Link& link) {
  std::vector<std::string> parts;
  if (link.bandwidth_gb_s > 0)
    parts.push_back(
        fmt::format("{} of {} GB/s", count_text(link.count, "link"), link.bandwidth_gb_s));
  else if (link.count > 1)
    parts.push_back(count_text(link.count, "link"));
  if (link.latency_us > 0) parts.push_back(fmt::format("{} us", link.latency_us));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<std::string> traffic_lines(const Topology& topology, const ExchangeConfig& config) {
  const std::vector<std::vector<LinkBytes>> bytes = bytes_of(topology, config);
  std::vector<std::string> lines = {shape_text(config) +
                                    ": bytes of a dispatch and its combine on the busiest link"};
  for (int level = 0; level < topology.num_levels(); ++level) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < kAlgorithms.size(); ++i) {
      parts.push_back(fmt::format("{} {}", internal::algorithm_name(kAlgorithms[i]),
                                  internal::bytes_text(bytes[i][level].pair())));
    }
    const bool network = level <= topology.find_level(Topology::kHost);
    if (!network) parts = {internal::bytes_text(bytes[0][level].pair()) + " of loads and stores"};
    lines.push_back(fmt::format("{}: {}", topology.level(level).name, fmt::join(parts, ", ")));
  }
  if (topology.num_nodes() > 1) lines.emplace_back("equal colours: mates");
  return lines;
}

Report topology_report(const Topology& topology, const ExchangeConfig& config) {
  Report report;
  const int num_ranks = topology.num_ranks();
  report.add(topology.to_text() + "\n",
             {{"topology", topology.to_text()}, {"num_ranks", num_ranks}});
  report.add(fmt::format("{}, {}\n\n  {:<10} {:>6} {:>14}   links of each group\n",
                         count_text(num_ranks, "rank"), count_text(topology.num_nodes(), "node"),
                         "level", "groups", "in each above"));
  for (int level = 0; level < topology.num_levels(); ++level)
    report.add(level_text(topology, level) + '\n');
  std::vector<std::string> tree;
  add_tree(topology, 0, 0, tree);
  report.add(tree.empty() ? "" : '\n' + cut(tree),
             {{"levels", levels_json(topology)}, {"nodes", topology.nodes()}});
  add_mates(report, topology);
  add_bytes(report, topology, config);
  const AlgorithmChoice choice =
      internal::choose_algorithm(topology, internal::traffic_of(config, num_ranks));
  const char* const name = internal::algorithm_name(choice.algorithm);
  report.add(
      fmt::format("\nauto is {}\n  {}\n", name, fmt::join(wrapped(choice.reason, 98), "\n  ")),
      {{"auto", {{"algorithm", name}, {"reason", choice.reason}}}});
  return report;
}

}  // namespace ferry::tools
