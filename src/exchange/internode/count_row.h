// The bytes of a row of the count matrix between nodes. For each count that is not 0 there are two
// varints: the number of zeros before the count, and the count. A varint has 7 bits in a byte, the
// lowest first, and the highest bit of a byte is set where another byte follows. Every rank sends
// its row to every node, and with many experts most counts are 0. So the number of bytes grows with
// the entries of the rank's tokens and not with the number of experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ferry::internal {

void append_counts(std::span<const std::int32_t> row, std::vector<std::byte>& out);
// True when the bytes are a row of `size` counts.
bool are_counts(std::span<const std::byte> bytes, std::size_t size) noexcept;
// Reads a row of row.size() counts. `bytes` must be such a row (are_counts).
void read_counts(std::span<const std::byte> bytes, std::span<std::int32_t> row) noexcept;

}  // namespace ferry::internal
