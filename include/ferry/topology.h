// Topology: the tree of ranks, as named levels from the outside in ("host:2,numa:2,rank:4"). A
// plain value; docs/topology.md has the grammar and the vocabulary. Throws
// Error(kInvalidArgument).
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/cplusplus.h"
#include "ferry/export.h"

namespace ferry {

class FERRY_EXPORT Topology {
 public:
  // The most ranks and levels.
  static constexpr int kMostRanks = 65536;
  static constexpr int kMostLevels = 64;
  // The level whose groups are the nodes: ranks that share memory.
  static constexpr std::string_view kHost = "host";
  // The innermost level; each of its groups is one rank.
  static constexpr std::string_view kRank = "rank";

  // Other links between the same groups, at the outermost level. They join each rank with the rank
  // whose position in its group differs in the bits of mates_xor.
  struct SecondWay {
    int mates_xor = 0;
    double bandwidth_gb_s = 0;  // rate of one link; 0: that of the first way

    bool operator==(const SecondWay&) const = default;
  };

  // The links from a group of a level to the others in the group above it. Given or measured; 0:
  // unknown.
  struct Link {
    double bandwidth_gb_s = 0;  // 1e9 bytes/s of one link, in each direction
    double latency_us = 0;      // latency of a small message between groups
    int count = 1;      // equal links of a group; consecutive ranks share one (Topology::link_of)
    int mates_xor = 0;  // bits in which the positions of mates differ
    // Pairs of mates, for links that follow no rule: positions in the group above, each with one
    // mate in every sibling group. Empty: no pairs.
    std::vector<std::array<int, 2>> mates = {};
    std::optional<SecondWay> second_way = {};

    // The bandwidth of one link of each way, added up.
    double total_gb_s() const noexcept;
    // The part of the tokens that takes the second way, so that both ways need the same time.
    double second_share() const noexcept;

    bool operator==(const Link&) const = default;
  };

  struct Level {
    std::string name;
    std::vector<int> fanout;  // [groups of the level above, or 1]: groups in each of them
    Link link = {};
    std::vector<int> first;  // [groups + 1]: where the ranks of each group begin, all ranks in
                             // the order of the tree

    int num_groups() const noexcept { return static_cast<int>(first.size()) - 1; }
    bool operator==(const Level&) const = default;
  };

  // One rank.
  Topology();

  // Levels, such as "host:2@12.5GB/s@5us,rank:3+5", or the name of a preset, such as "gpu8:4". Rank
  // 0 is the first leaf of the tree, and so on.
  static Topology parse(std::string_view text);

  // Two levels, from the node of each rank; nodes are numbered by their lowest rank, and their
  // ranks need not be neighbours.
  static Topology from_nodes(const std::vector<int>& nodes);

  // The same tree with another link at a level. Throws as parse() does.
  Topology with_link(int level, const Link& link) const;

  // The text that parse() reads: names, fan-outs and links, without the order of ranks of
  // from_nodes().
  std::string to_text() const;

  int num_ranks() const noexcept { return static_cast<int>(order_.size()); }
  int num_levels() const noexcept { return static_cast<int>(levels_.size()); }
  // Level 0 is the outermost.
  const Level& level(int index) const { return levels_.at(index); }
  // The index of a level; -1: no level has this name.
  int find_level(std::string_view name) const noexcept;

  // Groups of a level are numbered in the order of the tree, through all groups above.
  int group_of(int rank, int level) const;
  // Ascending.
  std::span<const int> members(int group, int level) const;
  // Which link of its group at a level a rank uses: the rank at position i of n, with c links, uses
  // i * c / n.
  int link_of(int rank, int level) const;

  // Nodes are the groups of level "host"; without that level all ranks are node 0.
  int num_nodes() const noexcept;
  int node_of(int rank) const;
  std::span<const int> node_ranks(int node) const;  // ascending
  std::vector<int> nodes() const;                   // [num_ranks]
  // The rank that serves `rank` in `node` when `rank` sends there directly: its mate of
  // Link::mates. Without such pairs, the rank whose position in `node` is that of `rank` in its own
  // node, with the bits of Link::mates_xor inverted, modulo the size of `node`. In its own node:
  // `rank`.
  int mate(int rank, int node) const;

  bool operator==(const Topology&) const = default;

 private:
  explicit Topology(std::vector<Level> levels);  // without `first`
  void check_link(int level) const;
  int position(int rank, int level) const;

  std::vector<Level> levels_;
  std::vector<int> order_;  // [num_ranks]: ranks as the leaves of the tree
  std::vector<int> place_;  // [num_ranks]: where a rank is in order_
};

}  // namespace ferry
