// Rows of floats that look for trouble: each row has a character of its own, from ordinary values
// to raw bits, and now and then a NaN or an infinity. Used by the parts of vectors_test.cc.
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
