#include "exchange/internode/count_row.h"

#include <algorithm>
#include <limits>

#include "base/bytes.h"

namespace ferry::internal {

namespace {

constexpr unsigned kBits = 7, kMore = 1U << kBits;
constexpr unsigned kMostBits = 35;  // of five bytes, which hold any count

void append_varint(std::uint32_t value, std::vector<std::byte>& out) {
  for (; value >= kMore; value >>= kBits)
    out.push_back(static_cast<std::byte>((value & (kMore - 1)) | kMore));
  out.push_back(static_cast<std::byte>(value));
}

// False: there is none, or it has more than five bytes.
bool get_varint(ByteReader& reader, std::uint64_t& value) noexcept {
  value = 0;
  for (unsigned shift = 0; shift < kMostBits; shift += kBits) {
    const auto byte = reader.get<std::uint8_t>();
    value |= static_cast<std::uint64_t>(byte & (kMore - 1)) << shift;
    if (byte < kMore) return reader.ok();
  }
  return false;
}

// Calls found(index, count) for each count that is not 0. False: the bytes are no row of `size`.
template <typename Found>
bool each_count(std::span<const std::byte> bytes, std::size_t size, const Found& found) noexcept {
  ByteReader reader(bytes);
  for (std::size_t at = 0; reader.remaining() > 0; ++at) {
    std::uint64_t zeros = 0, count = 0;
    if (!get_varint(reader, zeros) || !get_varint(reader, count)) return false;
    if (at >= size || zeros >= size - at) return false;
    if (count == 0 || count > std::numeric_limits<std::int32_t>::max()) return false;
    at += zeros;
    found(at, static_cast<std::int32_t>(count));
  }
  return true;
}

}  // namespace

void append_counts(std::span<const std::int32_t> row, std::vector<std::byte>& out) {
  std::uint32_t zeros = 0;
  for (const std::int32_t count : row) {
    if (count == 0) {
      ++zeros;
      continue;
    }
    append_varint(zeros, out);
    append_varint(static_cast<std::uint32_t>(count), out);
    zeros = 0;
  }
}

bool are_counts(std::span<const std::byte> bytes, std::size_t size) noexcept {
  return each_count(bytes, size, [](std::size_t, std::int32_t) {});
}

void read_counts(std::span<const std::byte> bytes, std::span<std::int32_t> row) noexcept {
  std::ranges::fill(row, 0);
  each_count(bytes, row.size(), [&](std::size_t at, std::int32_t count) { row[at] = count; });
}

}  // namespace ferry::internal
