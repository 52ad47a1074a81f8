// Graph: a machine with its links made, and the ways over them.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/plan.h"

namespace ferry::internal {

// The pairs of positions that a link of shape pairs or xor joins in a group of `size` ranks: of
// xor, those whose lower position is in the group.
std::vector<std::array<int, 2>> joined_pairs(const Machine::Link& link, int size);

// The order of the tree's ranks is 0, 1, 2, ..: machines come from texts.
class Graph {
 public:
  // Refuses links without an end, levels that do not exist, ranks that no way leads to.
  explicit Graph(const Machine& machine);

  const Machine& machine() const noexcept { return machine_; }
  const Topology& tree() const noexcept { return machine_.tree; }
  int num_ranks() const noexcept { return machine_.tree.num_ranks(); }
  int num_kinds() const noexcept { return static_cast<int>(kinds_.size()); }
  // All groups of each level have equally many ranks, which share links evenly.
  bool even() const noexcept { return even_; }

  // Ranks that a link of this kind joins to `rank`.
  std::vector<int> neighbours(int rank, int kind) const;
  // The same of a kind without cliques, in an order that all ranks of a ring share.
  const std::vector<int>& joined(int rank, int kind) const { return kinds_[kind].joined[rank]; }
  // 1 for the second direction of a ring, which is no link of the first.
  int turn(int from, int to, int kind) const;
  // [ranks]: of a level of the tree; which ranks of a group share one of its links.
  const std::vector<int>& groups(int level) const { return groups_[level]; }
  const std::vector<int>& sharers(int level) const { return sharers_[level]; }
  // The outermost level at which two ranks are of different groups; the number of levels: of none.
  int outermost_parted(int a, int b) const noexcept {
    int level = 0;
    while (level < std::ssize(groups_) && groups_[level][a] == groups_[level][b]) ++level;
    return level;
  }
  // The outermost level whose groups links of this kind join.
  int outermost(int kind) const { return kinds_[kind].outermost; }
  // The outermost first.
  const std::vector<int>& kinds_inwards() const noexcept { return inwards_; }

  // Ranks of which every two are joined, and which of them `rank` is in; empty for other shapes.
  struct Cliques {
    std::vector<int> of;  // [ranks]
    std::vector<std::vector<int>> members;
  };
  const Cliques& cliques(int kind) const { return kinds_[kind].cliques; }

  // Over which a rank is reached from a source with the fewest hops; [ranks].
  struct Reached {
    int from = -1;  // -1: the source itself
    int kind = -1;
    int depth = 0;
  };
  // Without the kinds that `closed` marks; ranks that it cuts off keep depth -1. [order]: by depth.
  struct Ways {
    std::vector<Reached> reached;
    std::vector<int> order;
  };
  Ways ways(int source, const std::vector<bool>& closed) const;

 private:
  struct Kind {
    int outermost = 0;
    Cliques cliques;
    std::vector<std::vector<int>> joined;  // [ranks], without cliques
    std::vector<int> next;                 // [ranks] of a ring
  };

  void make(const Machine::Link& link, Kind& kind) const;
  void make_cliques(const Machine::Link& link, Kind& kind) const;
  void make_joined(const Machine::Link& link, Kind& kind) const;
  void join(const Machine::Link& link, Kind& kind, int a, int b) const;
  int outermost_crossed(const Kind& kind) const;
  void reach_from(int from, int kind, std::vector<bool>& seen, Ways& ways) const;
  void check_connected() const;

  Machine machine_;
  std::vector<std::vector<int>> groups_, sharers_;  // [levels][ranks]
  std::vector<Kind> kinds_;
  std::vector<int> inwards_;
  bool even_ = true;
};

}  // namespace ferry::internal
