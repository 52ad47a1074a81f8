// Graph: the links between the ranks of a machine, and the shortest ways over them.
#pragma once

#include <array>
#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/plan.h"

namespace ferry::internal {

// The pairs of positions that a link of shape pairs or xor joins in a group of `size` ranks. A pair
// of xor is included if its lower position is in the group.
std::vector<std::array<int, 2>> joined_pairs(const Machine::Link& link, int size);

// Returns the level of a link, or -1 for the whole machine. Throws if the level does not exist.
int find_level(const Topology& tree, const Machine::Link& link);
// Returns the ranks of each group of a level. Level -1 has one group, the whole machine.
std::vector<std::vector<int>> groups_of(const Topology& tree, int level);

// The links between ranks. The ranks of the tree must be in the order 0, 1, 2, .., which
// Machine::parse ensures.
class Graph {
 public:
  // Throws for links without an end, levels that do not exist, and ranks that cannot be reached.
  explicit Graph(const Machine& machine);

  const Machine& machine() const noexcept { return machine_; }
  const Topology& tree() const noexcept { return machine_.tree; }
  int num_ranks() const noexcept { return machine_.tree.num_ranks(); }
  // The number of kinds of links. Each link of the machine is a kind. A mesh that joins groups at
  // one or more levels over shared resources (entered_levels) has further kinds, its parts: for
  // each such level its links between mates, and its links inside the innermost of these groups. If
  // a token takes the parts, it crosses to a group once.
  int num_kinds() const noexcept { return static_cast<int>(kinds_.size()); }
  const Machine::Link& link(int kind) const { return machine_.links[kinds_[kind].link]; }
  // A mesh and its parts have the same index.
  int link_index(int kind) const { return kinds_[kind].link; }
  bool is_part(int kind) const { return kind >= std::ssize(machine_.links); }
  // [kinds]: the kinds that a strategy does not use, if it sends to each rank, or once to each
  // group.
  std::vector<bool> closed_per_rank() const;
  std::vector<bool> closed_per_group() const;
  // Whether all groups of a level have the same number of ranks, and these ranks share links
  // evenly.
  bool even() const noexcept { return even_; }

  // The ranks that a link of this kind joins to `rank`.
  std::vector<int> neighbours(int rank, int kind) const;
  // The neighbours of a rank for a kind without cliques. All ranks of a ring have them in the same
  // order.
  const std::vector<int>& joined(int rank, int kind) const { return kinds_[kind].joined[rank]; }
  // The direction of a hop. 1 is the second direction of a ring, which has links of its own; other
  // hops have 0.
  int turn(int from, int to, int kind) const;
  // [ranks]. groups() has the group of each rank at a level of the tree; sharers() has the link of
  // that group which the rank uses.
  const std::vector<int>& groups(int level) const { return groups_[level]; }
  const std::vector<int>& sharers(int level) const { return sharers_[level]; }
  // The outermost level at which two ranks are in different groups; num_levels() if there is none.
  int outermost_parted(int a, int b) const noexcept {
    int level = 0;
    while (level < std::ssize(groups_) && groups_[level][a] == groups_[level][b]) ++level;
    return level;
  }
  // The outermost level at which links of this kind join different groups.
  int outermost(int kind) const { return kinds_[kind].outermost; }
  // The kinds of links, the outermost first.
  const std::vector<int>& kinds_inwards() const noexcept { return inwards_; }

  // Sets of ranks in which every two ranks are joined. Only the shapes mesh and index have cliques.
  struct Cliques {
    std::vector<int> of;  // [ranks]
    std::vector<std::vector<int>> members;
  };
  const Cliques& cliques(int kind) const { return kinds_[kind].cliques; }

  // The last hop to a rank, on a way with the fewest hops from a source.
  struct Reached {
    int from = -1;  // -1: the source itself
    int kind = -1;
    int depth = 0;

    bool operator==(const Reached&) const = default;
  };
  // A choice among the shortest ways. Ways do not use the kinds that `closed` marks. If several
  // last hops over one kind lead to a rank, the first one found is taken, or with `last` the last
  // one. In a ring the opposite rank is then reached over the other side.
  struct WayRule {
    std::vector<bool> closed;  // [kinds of links]
    bool last = false;

    // clang-tidy 14 reads its literal 0 as a pointer.
    auto operator<=>(const WayRule&) const = default;  // NOLINT(modernize-use-nullptr)
  };
  // The ways from one source. A rank that cannot be reached keeps depth -1. `order` has the reached
  // ranks by depth.
  struct Ways {
    std::vector<Reached> reached;
    std::vector<int> order;
  };
  Ways ways(int source, const WayRule& rule) const;
  // The rules among which tokens are divided equally. There are two rules if some ranks are reached
  // over two ways of equal length. Checks every rank if there are up to 512 ranks, and every n-th
  // rank if there are more.
  std::vector<WayRule> dealt(const std::vector<bool>& closed) const;
  // The step from one checked rank to the next, so that checks take a limited time.
  int look_step() const noexcept;

 private:
  struct Kind {
    int link = 0;  // the index of a link of the machine
    bool has_parts = false;
    int outermost = 0;
    Cliques cliques;
    std::vector<std::vector<int>> joined;  // [ranks], empty for kinds with cliques
    std::vector<int> next;                 // [ranks], the next rank of a ring
  };

  void make(const Machine::Link& link, Kind& kind) const;
  void make_cliques(const Machine::Link& link, Kind& kind) const;
  void make_joined(const Machine::Link& link, Kind& kind) const;
  void number(Cliques& cliques) const;
  std::vector<int> entered_levels(int kind) const;
  void add_parts(int kind);
  Kind mates(int outer, int level) const;
  void join(const Machine::Link& link, Kind& kind, int a, int b) const;
  int outermost_crossed(const Kind& kind) const;
  void reach_from(int from, int kind, bool last, std::vector<bool>& seen, Ways& ways) const;
  void check_connected() const;

  Machine machine_;
  std::vector<std::vector<int>> groups_, sharers_;  // [levels][ranks]
  std::vector<Kind> kinds_;
  std::vector<int> inwards_;
  bool even_ = true;
};

}  // namespace ferry::internal
