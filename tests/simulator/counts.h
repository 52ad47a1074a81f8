// What an operation costs when many ranks run it, counted and not timed: the ranks of a simulation
// join, make an exchange, dispatch, combine and lose a rank, with the code of the engine.
//   counts.cc  the run            laws.cc  how each count may grow
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ferry/config.h"

namespace ferry::test {

struct Shape {
  std::string topology;
  std::int64_t tokens = 4;  // of each rank
  int num_experts = 0;
  int top_k = 4;
  Layout layout = Layout::kExpertMajor;

  int num_ranks() const;
  int num_hosts() const;
};

// Messages and bytes that one rank sent.
struct Sent {
  std::int64_t messages = 0, bytes = 0;

  void add(std::size_t more_bytes);
};

// What the ranks sent in one step. "Most" is the maximum over the ranks, taken for messages and for
// bytes separately.
struct StepCounts {
  std::int64_t chain = 0;  // longest chain of messages between hosts, each after the one before
  Sent most;               // packets between hosts
  std::map<std::string, Sent> kinds;  // messages in them, by kind, of the rank with the most
  Sent rank_0, most_others;           // sockets, while ranks meet; calls that send
};

struct ScaleCounts {
  StepCounts join, create, dispatch, combine, death;
  std::int64_t descriptors_rank_0 = 0, descriptors_others = 0, endpoints = 0;
  std::int64_t segment_bytes = 0;                       // reserved, of a host
  std::int64_t control_bytes = 0;                       // of them flags, records and counts
  std::int64_t backed_bytes = 0;                        // by a rank, when it makes the exchange
  std::int64_t private_rank_0 = 0, private_others = 0;  // allocated after an operation
  std::int64_t count_entries = 0;  // of the matrix, read by a rank in a dispatch
  std::vector<std::string> wrong;  // empty: every output equals the oracle, every error is right
};

ScaleCounts count(const Shape& shape);

// A count and the law that it follows: it may grow no faster than `law` does.
struct Count {
  std::string name;
  double value = 0;
  std::string law_name;
  double law = 0;
};
std::vector<Count> counts_of(const Shape& shape, const ScaleCounts& counted);

}  // namespace ferry::test
