// The oracle of Collectives: the elements of every rank, drawn from a seed, and what they are
// reduced to, one element after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ferry/types.h"

namespace ferry::test {

using Bytes = std::vector<std::byte>;

// `count` elements of a rank in a call: numbers of every sign and size, for floating-point types
// with zeros of both signs, subnormals, infinities and NaNs.
Bytes elements_of(std::uint64_t seed, int rank, std::int64_t count, DataType dtype);

// The elements of all ranks, reduced in ascending rank order as docs/numerics.md says.
Bytes reduced(const std::vector<Bytes>& ranks, DataType dtype, ReduceOp op);

// The counts of all ranks: uneven, some 0.
std::vector<std::int64_t> counts_of(int num_ranks, std::int64_t count);

inline constexpr DataType kEveryType[] = {
    DataType::kBf16,    DataType::kFp16,   DataType::kFp32,  DataType::kBytes, DataType::kInt8,
    DataType::kFp8E4m3, DataType::kFp64,   DataType::kInt16, DataType::kInt32, DataType::kInt64,
    DataType::kUint16,  DataType::kUint32, DataType::kUint64};

}  // namespace ferry::test
