// Graph: the links between the ranks of a machine, and the shortest ways over them.
#pragma once

#include <array>
#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "ferry/plan.h"

namespace ferry::internal {

// The pairs of positions that a link of shape pairs or xor joins in a group of `size` ranks. Pairs
// of xor are included if the lower position is in the group.
std::vector<std::array<int, 2>> joined_pairs(const Machine::Link& link, int size);

// The level of a link; -1: the whole machine. Throws for a level that does not exist.
int find_level(const Topology& tree, const Machine::Link& link);
// The ranks of each group of a level. Level -1: one group, the whole machine.
std::vector<std::vector<int>> groups_of(const Topology& tree, int level);

// The ranks of the tree are in the order 0, 1, 2, .., as machines are parsed from texts.
class Graph {
 public:
  // Throws for links without an end, levels that do not exist, and ranks that no way leads to.
  explicit Graph(const Machine& machine);

  const Machine& machine() const noexcept { return machine_; }
  const Topology& tree() const noexcept { return machine_.tree; }
  int num_ranks() const noexcept { return machine_.tree.num_ranks(); }
  // Each link of the machine is a kind. A mesh over groups behind a shared port also has parts as
  // kinds: its links between mates of these groups, and its links inside them. With the parts a
  // token crosses to a group once.
  int num_kinds() const noexcept { return static_cast<int>(kinds_.size()); }
  const Machine::Link& link(int kind) const { return machine_.links[kinds_[kind].link]; }
  int link_index(int kind) const { return kinds_[kind].link; }  // the same for all parts
  bool is_part(int kind) const { return kind >= std::ssize(machine_.links); }
  // [kinds]: those that a strategy leaves out, which sends to each rank, or once to each group.
  std::vector<bool> closed_per_rank() const;
  std::vector<bool> closed_per_group() const;
  // Whether all groups of a level have equally many ranks, and these share links evenly.
  bool even() const noexcept { return even_; }

  // Ranks that a link of this kind joins to `rank`.
  std::vector<int> neighbours(int rank, int kind) const;
  // The same for a kind without cliques, in an order that all ranks of a ring share.
  const std::vector<int>& joined(int rank, int kind) const { return kinds_[kind].joined[rank]; }
  // 1 for the second direction of a ring, whose links are not those of the first; else 0.
  int turn(int from, int to, int kind) const;
  // [ranks]: the group of each rank at a level of the tree; the link of that group that the rank
  // shares.
  const std::vector<int>& groups(int level) const { return groups_[level]; }
  const std::vector<int>& sharers(int level) const { return sharers_[level]; }
  // The outermost level at which two ranks are in different groups; num_levels() if there is none.
  int outermost_parted(int a, int b) const noexcept {
    int level = 0;
    while (level < std::ssize(groups_) && groups_[level][a] == groups_[level][b]) ++level;
    return level;
  }
  // The outermost level of which links of this kind join different groups.
  int outermost(int kind) const { return kinds_[kind].outermost; }
  // The kinds of links, the outermost first.
  const std::vector<int>& kinds_inwards() const noexcept { return inwards_; }

  // Sets of ranks of which every two are joined; empty for shapes other than mesh and index.
  struct Cliques {
    std::vector<int> of;  // [ranks]
    std::vector<std::vector<int>> members;
  };
  const Cliques& cliques(int kind) const { return kinds_[kind].cliques; }

  // The last hop to a rank, on a way from a source with the fewest hops.
  struct Reached {
    int from = -1;  // -1: the source itself
    int kind = -1;
    int depth = 0;

    bool operator==(const Reached&) const = default;
  };
  // Which of the shortest ways are taken. The kinds that `closed` marks are left out. Where several
  // last hops over one kind lead to a rank, the first one found counts, or with `last` the last
  // one: in a ring the opposite rank is reached over the other side.
  struct WayRule {
    std::vector<bool> closed;  // [kinds of links]
    bool last = false;

    // clang-tidy 14 reads its literal 0 as a pointer.
    auto operator<=>(const WayRule&) const = default;  // NOLINT(modernize-use-nullptr)
  };
  // Ranks that no way leads to keep depth -1. `order`: the ranks that are reached, by depth.
  struct Ways {
    std::vector<Reached> reached;
    std::vector<int> order;
  };
  Ways ways(int source, const WayRule& rule) const;
  // The rules over which tokens are dealt equally: two where some ranks are reached over two ways
  // of equal length. Looks at every rank of up to 512 ranks, and at every n-th rank of more.
  std::vector<WayRule> dealt(const std::vector<bool>& closed) const;
  // The distance from one rank to the next that such a look takes.
  int look_step() const noexcept;

 private:
  struct Kind {
    int link = 0;  // of the machine
    bool has_parts = false;
    int outermost = 0;
    Cliques cliques;
    std::vector<std::vector<int>> joined;  // [ranks]; for kinds without cliques
    std::vector<int> next;                 // [ranks] of a ring
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
