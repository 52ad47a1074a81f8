// The bytes of a row of the count matrix between nodes: for each count that is not 0 how many zeros
// lie before it, and the count, both as varints (7 bits in a byte, the lowest first, the highest
// bit set where more follow). With many experts most counts are 0, and every rank sends its row to
// every node: the bytes follow the entries of its tokens and not the experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ferry::internal {

void append_counts(std::span<const std::int32_t> row, std::vector<std::byte>& out);
// True when the bytes are a row of `size` counts.
bool are_counts(std::span<const std::byte> bytes, std::size_t size) noexcept;
// `bytes` are a row of so many counts.
void read_counts(std::span<const std::byte> bytes, std::span<std::int32_t> row) noexcept;

}  // namespace ferry::internal
