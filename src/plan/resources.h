// Resources: what hops use on a machine: links, ports, levels, engines, processors. Those of one
// class of ranks are one.
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

// Over a link of a kind, with tokens of the sender's own or with those that it passes on.
struct Hop {
  int from = 0, to = 0;
  int kind = 0;
  bool own = true;
};

// Ranks that share processors, and how many equal nodes they stand for.
struct Node {
  std::vector<int> ranks;
  std::int64_t count = 1;
};
std::vector<Node> nodes_of(const Graph& graph, const Classes& classes);

// The resources of a machine as far as hops use them, with those of one class made one.
class Resources {
 public:
  Resources(const Graph& graph, const Classes& classes, double row_bytes, int chunks);

  // What a message uses that goes over a hop, forwards or home. The same one twice counts twice.
  std::vector<Use> of(const Hop& hop, bool combine, double bytes);
  // Over which kind of link a hop goes, with what a source sends of its own or what it passes on,
  // and the outermost level at which its ends are of different groups.
  struct Passage {
    int kind = 0;
    bool own = true;
    int outermost = 0;
  };
  std::size_t num_passages() const;
  std::size_t index(const Passage& passage) const;
  Passage passage(std::size_t index) const;
  // What of() gives, but for the link, at either end.
  void add_sender(int rank, const Passage& passage, std::vector<Use>& uses);
  void add_receiver(int rank, const Passage& passage, std::vector<Use>& uses);
  // The link itself; nothing where only its port has a rate. Use::cost of a message over it.
  std::optional<LoadKind> link_load(int kind) const;
  double link_cost(int kind, double bytes) const;
  // The rank's engines that bring rows into order.
  std::vector<Use> reordering(int rank);
  // The processors of a rank's node.
  Use host(int rank, double us_per_byte);
  // One more, with so many equally loaded instances.
  int add(const LoadKind& kind, std::int64_t instances);
  // An index into kinds().
  int add_kind(const LoadKind& kind);

  const std::vector<Resource>& list() const noexcept { return list_; }
  const std::vector<LoadKind>& kinds() const noexcept { return kinds_; }

 private:
  // What, which of them, the class of its end or part, direction, how the other end looks.
  enum class What { kLink, kPort, kLevel, kEngine, kIssue, kHost };
  struct Key {
    What what;
    int index, a = 0, direction = 0;
    std::uint64_t seen = 0;
    // clang-tidy 14 takes the 0 in it for a pointer.
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr)
  };

  void add_port(int rank, int kind, bool out, std::vector<Use>& uses);
  void add_levels(int rank, int outermost, bool out, std::vector<Use>& uses);
  int find(const Key& key, const LoadKind& kind);
  std::int64_t instances(const Key& key) const;
  // The level whose groups have one each; -1: of a port, each rank has one; of processors, there is
  // one for all.
  int port_level(const Machine::Port& port) const;
  int host_level() const;

  // Parts of the machine, which count as equal if the lowest of the classes of their ranks is.
  struct Parts {
    std::vector<int> class_of;            // [ranks]: of its part
    std::vector<std::int64_t> num_equal;  // [classes]: parts
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
