#include "ferry/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

#include "base/check.h"
#include "ferry/status.h"
#include "topology/mate.h"

namespace ferry {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(Code::kInvalidArgument, what); }

void check_range(const char* what, int value, int end) {
  if (value < 0 || value >= end) refuse(fmt::format("{} {} is not in [0, {})", what, value, end));
}

// Expands the fan-outs from the outermost level to the innermost. A fan-out of one number is used
// for all groups of the level above. Returns the number of ranks.
int count_groups(std::vector<Topology::Level>& levels) {
  std::int64_t above = 1;
  for (Topology::Level& level : levels) {
    if (level.fanout.size() == 1) level.fanout.resize(above, level.fanout[0]);
    if (std::ssize(level.fanout) != above) {
      refuse(
          fmt::format("level '{}' has {} fan-outs, but there {} {} above it: give one number for "
                      "all, or one for each, such as 3+5",
                      level.name, level.fanout.size(), above == 1 ? "is" : "are",
                      above == 1 ? "1 group" : fmt::format("{} groups", above)));
    }
    above = std::accumulate(level.fanout.begin(), level.fanout.end(), std::int64_t{0});
    if (above > Topology::kMostRanks) {
      refuse(fmt::format("level '{}' has {} groups, at most {}", level.name, above,
                         Topology::kMostRanks));
    }
  }
  return static_cast<int>(above);
}

// Finds the first rank of each group, from the innermost level to the outermost.
void place_groups(std::vector<Topology::Level>& levels, int num_ranks) {
  std::vector<int> inner(num_ranks + 1);
  std::iota(inner.begin(), inner.end(), 0);
  for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
    level->first = inner;
    inner = {0};
    int end = 0;
    for (const int groups : level->fanout) inner.push_back(level->first[end += groups]);
    // The groups of a level hold the ranks in order, without gaps, and each group of the level
    // above consists of whole groups.
    FERRY_CHECK(std::ssize(level->first), ==, level->num_groups() + 1);
    FERRY_CHECK(end, ==, level->num_groups());
    FERRY_CHECK(level->first.front(), ==, 0);
    FERRY_CHECK(level->first.back(), ==, num_ranks);
    FERRY_CHECK(inner.back(), ==, num_ranks);
  }
}

// Checks the pairs of a level within the groups [first_group, end_group), which are siblings. Each
// rank must have one mate in every sibling group.
void check_pairs(const Topology::Level& level, int first_group, int end_group) {
  const auto refuse_pairs = [&](const std::string& why) {
    refuse(fmt::format("level '{}': mates by pairs: {}", level.name, why));
  };
  const int first = level.first[first_group], ranks = level.first[end_group] - first;
  const auto group_of = [&](int position) {
    const auto next = std::ranges::upper_bound(level.first, first + position);
    return static_cast<int>(next - level.first.begin()) - 1 - first_group;
  };
  const int siblings = end_group - first_group;
  const std::int64_t needed = std::int64_t{ranks} * (siblings - 1);  // ends of pairs
  if (2 * std::ssize(level.link.mates) != needed)
    refuse_pairs(fmt::format("{} do not give each of {} ranks one in each of {} {}s",
                             level.link.mates.size(), ranks, siblings, level.name));
  std::vector<std::vector<int>> mates(ranks, std::vector<int>(siblings));
  for (const auto& [a, b] : level.link.mates) {
    if (std::max(a, b) >= ranks)
      refuse_pairs(fmt::format("{}-{} has a position outside [0, {})", a, b, ranks));
    if (group_of(a) == group_of(b))
      refuse_pairs(fmt::format("{}-{} are of the same {}", a, b, level.name));
    ++mates[a][group_of(b)], ++mates[b][group_of(a)];
  }
  for (int position = 0; position < ranks; ++position) {
    for (int group = 0; group < siblings; ++group) {
      if (mates[position][group] != (group == group_of(position) ? 0 : 1))
        refuse_pairs(fmt::format("{} has {} in {} {}, not one", position, mates[position][group],
                                 level.name, group));
    }
  }
}

// Checks that for every position of a group, position ^ bits is a position of that group too.
void check_xor(const Topology::Level& level, int bits) {
  const int size = static_cast<int>(std::bit_ceil(static_cast<unsigned>(bits) + 1));
  for (int group = 0; group < level.num_groups(); ++group) {
    const int ranks = level.first[group + 1] - level.first[group];
    if (ranks % size != 0)
      refuse(fmt::format("level '{}': with {}xor a group has a multiple of {} ranks, but {} has {}",
                         level.name, bits, size, group, ranks));
  }
}

void check_second_way(const Topology::Level& level, bool outermost, bool has_mates) {
  if (!level.link.second_way) return;
  const auto& [bits, rate] = *level.link.second_way;
  if (!outermost || !has_mates)
    refuse(
        fmt::format("level '{}' has a second way (also{}xor), but only the outermost level down "
                    "to 'host' has one",
                    level.name, bits));
  if (level.link.mates.empty() && bits == level.link.mates_xor)
    refuse(fmt::format("level '{}': the second way joins the same ranks as the first ({}xor)",
                       level.name, bits));
  if (rate > 0 && level.link.bandwidth_gb_s <= 0)
    refuse(fmt::format("level '{}': a second way of {} GB/s beside a first one of unknown rate",
                       level.name, rate));
  check_xor(level, bits);
}

// Checks that every position has a mate.
void check_mates(const Topology::Level& level, bool has_mates) {
  if (!level.link.mates.empty()) {
    if (!has_mates)
      refuse(fmt::format("level '{}' has pairs of mates, but levels down to 'host' have mates",
                         level.name));
    int end = 0;
    for (const int siblings : level.fanout) {
      check_pairs(level, end, end + siblings);
      end += siblings;
    }
  }
  if (level.link.mates_xor == 0) return;
  if (!has_mates)
    refuse(fmt::format("level '{}' has {}xor, but no mates: levels down to 'host' do", level.name,
                       level.link.mates_xor));
  check_xor(level, level.link.mates_xor);
}

std::string fanout_text(const std::vector<int>& fanout) {
  const bool even = std::ranges::all_of(fanout, [&](int count) { return count == fanout[0]; });
  return even ? std::to_string(fanout[0]) : fmt::format("{}", fmt::join(fanout, "+"));
}

std::string link_text(const Topology::Link& link) {
  std::string text;
  if (link.count != 1) text += fmt::format("@{}links", link.count);
  if (link.mates_xor != 0) text += fmt::format("@{}xor", link.mates_xor);
  for (std::size_t i = 0; i < link.mates.size(); ++i)
    text += fmt::format("{}{}-{}", i == 0 ? "@pairs" : "+", link.mates[i][0], link.mates[i][1]);
  if (link.bandwidth_gb_s != 0) text += fmt::format("@{}GB/s", link.bandwidth_gb_s);
  if (link.latency_us != 0) text += fmt::format("@{}us", link.latency_us);
  if (link.second_way) {
    text += fmt::format("@also{}xor", link.second_way->mates_xor);
    if (link.second_way->bandwidth_gb_s != 0)
      text += fmt::format("{}GB/s", link.second_way->bandwidth_gb_s);
  }
  return text;
}

// The ranks of each node, in ascending order.
std::vector<std::vector<int>> group_by_node(const std::vector<int>& nodes) {
  std::vector<std::vector<int>> ranks;
  for (int rank = 0; rank < std::ssize(nodes); ++rank) {
    if (nodes[rank] == std::ssize(ranks)) ranks.emplace_back();
    if (nodes[rank] < 0 || nodes[rank] >= std::ssize(ranks)) {
      refuse(
          fmt::format("rank {} is on node {}, but nodes are numbered by their lowest rank: the "
                      "next new node is {}",
                      rank, nodes[rank], ranks.size()));
    }
    ranks[nodes[rank]].push_back(rank);
  }
  return ranks;
}

}  // namespace

double Topology::Link::total_gb_s() const noexcept {
  const double second = second_way ? second_way->bandwidth_gb_s : 0;
  return bandwidth_gb_s + (second_way && second == 0 ? bandwidth_gb_s : second);
}

double Topology::Link::second_share() const noexcept {
  if (!second_way) return 0;
  return total_gb_s() > 0 ? 1 - bandwidth_gb_s / total_gb_s() : 0.5;
}

Topology::Topology() : Topology(from_nodes({0})) {}

Topology::Topology(std::vector<Level> levels) : levels_(std::move(levels)) {
  const int num_ranks = count_groups(levels_);
  place_groups(levels_, num_ranks);
  for (int index = 0; index < num_levels(); ++index) check_link(index);
  order_.resize(num_ranks);
  std::iota(order_.begin(), order_.end(), 0);
  place_ = order_;
}

void Topology::check_link(int level) const {
  const bool has_mates = level <= find_level(kHost);
  check_mates(levels_[level], has_mates);
  check_second_way(levels_[level], level == 0, has_mates);
}

Topology Topology::with_link(int level, const Link& link) const {
  check_range("level", level, num_levels());
  Topology changed = *this;
  changed.levels_[level].link = link;
  changed.check_link(level);
  return changed;
}

Topology Topology::from_nodes(const std::vector<int>& nodes) {
  if (nodes.empty()) refuse("a topology of no ranks");
  const std::vector<std::vector<int>> ranks = group_by_node(nodes);
  Level hosts{.name = std::string(kHost), .fanout = {static_cast<int>(ranks.size())}, .first = {}};
  Level inner{.name = std::string(kRank), .fanout = {}, .first = {}};
  for (const std::vector<int>& node : ranks) inner.fanout.push_back(static_cast<int>(node.size()));
  Topology topology({std::move(hosts), std::move(inner)});
  auto leaf = topology.order_.begin();
  for (const std::vector<int>& node : ranks) leaf = std::ranges::copy(node, leaf).out;
  FERRY_CHECK(leaf - topology.order_.begin(), ==, std::ssize(nodes));
  for (int place = 0; place < topology.num_ranks(); ++place)
    topology.place_[topology.order_[place]] = place;
  return topology;
}

std::string Topology::to_text() const {
  std::string text;
  for (const Level& level : levels_) {
    text += fmt::format("{}{}:{}{}", text.empty() ? "" : ",", level.name, fanout_text(level.fanout),
                        link_text(level.link));
  }
  return text;
}

int Topology::find_level(std::string_view name) const noexcept {
  for (int index = 0; index < num_levels(); ++index) {
    if (levels_[index].name == name) return index;
  }
  return -1;
}

int Topology::group_of(int rank, int level) const {
  check_range("rank", rank, num_ranks());
  check_range("level", level, num_levels());
  const std::vector<int>& first = levels_[level].first;
  const auto next = std::ranges::upper_bound(first, place_[rank]);
  return static_cast<int>(next - first.begin()) - 1;
}

std::span<const int> Topology::members(int group, int level) const {
  check_range("level", level, num_levels());
  check_range("group", group, levels_[level].num_groups());
  const int begin = levels_[level].first[group];
  return std::span(order_).subspan(begin, levels_[level].first[group + 1] - begin);
}

int Topology::position(int rank, int level) const {
  const int group = group_of(rank, level);
  return place_[rank] - levels_[level].first[group];
}

int Topology::link_of(int rank, int level) const {
  const auto size = std::ssize(members(group_of(rank, level), level));
  return static_cast<int>(std::int64_t{position(rank, level)} * levels_[level].link.count / size);
}

int Topology::num_nodes() const noexcept {
  const int host = find_level(kHost);
  return host < 0 ? 1 : levels_[host].num_groups();
}

int Topology::node_of(int rank) const {
  check_range("rank", rank, num_ranks());
  const int host = find_level(kHost);
  return host < 0 ? 0 : group_of(rank, host);
}

std::span<const int> Topology::node_ranks(int node) const {
  check_range("node", node, num_nodes());
  const int host = find_level(kHost);
  return host < 0 ? std::span<const int>(order_) : members(node, host);
}

std::vector<int> Topology::nodes() const {
  std::vector<int> nodes(num_ranks());
  for (int rank = 0; rank < num_ranks(); ++rank) nodes[rank] = node_of(rank);
  return nodes;
}

int Topology::mate(int rank, int node) const {
  const int host = find_level(kHost);
  const std::span<const int> serving = node_ranks(node);
  check_range("rank", rank, num_ranks());
  if (node == node_of(rank)) return rank;
  const int mate = internal::mate_of(*this, host, rank, position(rank, host), serving);
  FERRY_CHECK(node_of(mate), ==, node);
  return mate;
}

}  // namespace ferry
