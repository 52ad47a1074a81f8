// Compares the rows and results of a rank with the oracle, bit for bit. It needs little memory: it
// makes expected rows one at a time, and expected results a few tokens at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ferry/exchange.h"
#include "tools/bench/plan.h"

namespace ferry::bench {

struct Comparison {
  std::uint64_t compared = 0;  // number of elements
  std::uint64_t wrong = 0;     // elements that differ in any bit, are missing, or are too many
};

// Compares rows, scales, sources, weights, local ids and all counts of the handle. It does not
// compare the contents of gap rows, or anything of padding rows.
Comparison compare_received(const Plan& plan, std::size_t rank, std::uint64_t salt,
                            const Received& received);

// How a combine sums rows between nodes. This decides where sums are rounded.
struct BetweenNodes {
  std::vector<int> nodes = {};               // [R], the node of each rank; empty: all on one node
  std::vector<std::vector<int>> outer = {};  // [R], the groups of its node, outermost first
  Algorithm algorithm = Algorithm::kFullmesh;
};

// Compares `out`, [tokens, hidden], with the combine of the tokens that the rank sent (identity
// experts).
Comparison compare_combined(const Plan& plan, std::size_t rank, std::uint64_t salt,
                            const std::byte* out, const BetweenNodes& between_nodes = {});

}  // namespace ferry::bench
