// Rows of floats with difficult values: each row has its own kind of values, from ordinary ones to
// random bits, and sometimes a NaN or an infinity.
#pragma once

#include <cstdint>
#include <vector>

#include "exchange/random.h"
#include "ferry/types.h"

namespace ferry::test {

// Lengths around the block sizes of the wire formats.
std::int64_t random_hidden(Random& random);

// [num_rows, hidden] of `type`.
std::vector<std::byte> random_rows(std::int64_t num_rows, std::int64_t hidden, DataType type,
                                   Random& random);

// [size], finite, in [-2, 2).
std::vector<float> random_floats(std::int64_t size, Random& random);

// `values` as elements of `type`.
std::vector<std::byte> elements_of(const std::vector<float>& values, DataType type);

}  // namespace ferry::test
