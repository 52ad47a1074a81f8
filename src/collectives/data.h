// The transfer of the data of a call. A rank copies its data from the caller's memory into its own
// window, and the ranks that need them read them there, or in place (Calls::show). The arguments
// have been checked. Offsets and sizes are in bytes.
//   pairs.cc   each rank has other data for each rank
//   share.cc   all ranks read the same data of a rank
//   sums.cc    reductions
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/calls.h"
#include "collectives/copy.h"
#include "ferry/types.h"

namespace ferry::internal {

// Counts are in elements of a fixed number of bytes.
struct CountedBytes {
  std::span<const std::int64_t> counts;  // [ranks]
  std::size_t element;
  std::size_t of(int rank) const noexcept {
    return static_cast<std::size_t>(counts[rank]) * element;
  }
  std::size_t most(int but) const noexcept;
  std::size_t before(int rank) const noexcept;
};

// The part of `bytes` that round `round` moves, at most `most`.
struct Chunk {
  Chunk(std::size_t bytes, std::size_t most, std::int64_t round) noexcept
      : begin(std::min(bytes, most * static_cast<std::size_t>(round))),
        size(std::min(bytes - begin, most)) {}
  std::size_t begin, size;
};
// At least one, so that ranks also wait for each other when they have no data.
std::int64_t num_rounds(std::size_t bytes, std::size_t most) noexcept;

struct PairData {
  const std::byte* in;
  CountedBytes sent;  // by destination, in this order in `in`
  std::byte* out;
  CountedBytes received;  // by source, likewise
};
// A rank may show `in` before, if it has published its `sent` as the first list of counts.
Status move_pairs(Calls& calls, const PairData& data);

struct GatheredData {
  const std::byte* in;  // may be this rank's part of `out`
  std::byte* out;
  CountedBytes parts;  // by rank
};
Status gather_all(Calls& calls, const GatheredData& data);
Status broadcast(Calls& calls, std::byte* data, std::size_t bytes, int root);

struct ReducedBlocks {
  const std::byte* in;
  CountedBytes blocks;  // by rank
  std::byte* out;       // the block of this rank
  DataType dtype;
  ReduceOp op;
};
Status reduce_scatter(Calls& calls, const ReducedBlocks& data);

struct ReducedData {
  static constexpr int kAll = -1;
  const std::byte* in;
  std::byte* out;  // may equal in
  std::int64_t count;
  DataType dtype;
  ReduceOp op;
  int root;  // the rank that gets the result, or kAll
};
Status reduce(Calls& calls, const ReducedData& data);

}  // namespace ferry::internal
