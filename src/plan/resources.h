// Resources: the links, ports, levels, engines and processors of a machine that hops use. The equal
// resources of a class of ranks are one resource.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "plan/classes.h"
#include "plan/graph.h"
#include "plan/schedule.h"

namespace ferry::internal {

constexpr double kBytesPerUs = 1e3;  // 1 GB/s

// A message over a link of a kind. `own` says whether the sender is the source of its tokens; else
// it passes them on.
struct Hop {
  int from = 0, to = 0;
  int kind = 0;
  bool own = true;
};

// The ranks that share processors. `count` is the number of equal nodes that this one represents.
struct Node {
  std::vector<int> ranks;
  std::int64_t count = 1;
};
std::vector<Node> nodes_of(const Graph& graph, const Classes& classes);

// The resources of a machine. A resource is made when it is first used.
class Resources {
 public:
  Resources(const Graph& graph, const Classes& classes, double row_bytes, int chunks);

  // The uses of a message over a hop in a dispatch, or back over it in a combine. A resource that
  // is used twice is in the list twice.
  std::vector<Use> of(const Hop& hop, bool combine, double bytes);
  // The properties of a hop that decide which resources it uses: the kind of its link, whether the
  // sender is the source of the tokens, and the outermost level at which its ends are in different
  // groups.
  struct Passage {
    int kind = 0;
    bool own = true;
    int outermost = 0;
  };
  std::size_t num_passages() const;
  std::size_t index(const Passage& passage) const;
  Passage passage(std::size_t index) const;
  // Add the uses at one end of a hop, without the link. of() returns both ends and the link.
  void add_sender(int rank, const Passage& passage, std::vector<Use>& uses);
  void add_receiver(int rank, const Passage& passage, std::vector<Use>& uses);
  // The load of the link itself, or nullopt if only its port has a rate. link_cost() is the
  // Use::cost of a message.
  std::optional<LoadKind> link_load(int kind) const;
  double link_cost(int kind, double bytes) const;
  // The uses of a rank's engines that reorder rows.
  std::vector<Use> reordering(int rank);
  // The use of the processors of a rank's node.
  Use host(int rank, double us_per_byte);
  // Adds a resource with `instances` equally loaded instances.
  int add(const LoadKind& kind, std::int64_t instances);
  // Adds a kind of load and returns its index in kinds().
  int add_kind(const LoadKind& kind);

  const std::vector<Resource>& list() const noexcept { return list_; }
  const std::vector<LoadKind>& kinds() const noexcept { return kinds_; }

 private:
  // Identifies a resource: its sort and index, the class of its rank or part (`a`), its direction,
  // and the number with which the other end is seen.
  enum class What { kLink, kPort, kLevel, kEngine, kIssue, kHost };
  struct Key {
    What what;
    int index, a = 0, direction = 0;
    std::uint64_t seen = 0;
    // clang-tidy 14 reads its literal 0 as a pointer.
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr)
  };

  void add_port(int rank, const Passage& passage, bool out, std::vector<Use>& uses);
  void add_levels(int rank, int outermost, bool out, std::vector<Use>& uses);
  int find(const Key& key, const LoadKind& kind);
  std::int64_t instances(const Key& key) const;
  // The level whose groups each have one port, or one set of processors. -1 means one port for each
  // rank, but one set of processors for all ranks.
  int port_level(const Machine::Port& port) const;
  int host_level() const;

  // A division of the machine into parts. Two parts are equal if the lowest classes of their ranks
  // are equal.
  struct Parts {
    std::vector<int> class_of;            // [ranks]: the class of the part of each rank
    std::vector<std::int64_t> num_equal;  // [classes]: number of parts
  };
  Parts parts(const std::vector<int>& part_of) const;

  const Graph& graph_;
  const Classes& classes_;
  const double row_bytes_;
  const int chunks_;
  std::vector<Parts> groups_, sharers_;  // [levels]
  std::vector<Resource> list_;
  std::vector<LoadKind> kinds_;
  std::map<Key, int> ids_;
};

}  // namespace ferry::internal
