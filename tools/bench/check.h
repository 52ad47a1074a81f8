// Compares what a rank received and combined with the oracle, bit for bit, in little memory:
// expected rows are made one at a time, expected results a few tokens at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ferry/exchange.h"
#include "tools/bench/plan.h"

namespace ferry::bench {

struct Comparison {
  std::uint64_t compared = 0;  // elements
  std::uint64_t wrong = 0;     // of these, different in any bit, or missing, or too many
};

// Rows, scales, sources, weights, local ids and all counts of the handle. Not compared: contents of
// gap rows, and anything of padding rows.
Comparison compare_received(const Plan& plan, std::size_t rank, std::uint64_t salt,
                            const Received& received);

// How combine summed rows between nodes, which decides where sums are rounded.
struct BetweenNodes {
  std::vector<int> nodes = {};               // [R]; empty: one
  std::vector<std::vector<int>> outer = {};  // [R]: the node's groups, outermost first
  Algorithm algorithm = Algorithm::kFullmesh;
};

// `out`: [tokens, hidden], the combine of the tokens as they were sent (identity experts).
Comparison compare_combined(const Plan& plan, std::size_t rank, std::uint64_t salt,
                            const std::byte* out, const BetweenNodes& between_nodes = {});

}  // namespace ferry::bench
