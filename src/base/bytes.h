// Converts values to bytes and back. ByteWriter and append() write, and ByteReader reads, every
// encoding that ferry makes by hand: frames of the bootstrap, heads of messages, rows and sums
// between nodes. ByteReader never reads beyond the end. Values are packed, in the byte order of the
// machine, because all ranks of a group run the same build.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ferry::internal {

static_assert(std::endian::native == std::endian::little, "the encodings are little-endian");

template <typename Value>
concept Encodable = std::is_trivially_copyable_v<Value> && !std::is_pointer_v<Value>;

// The bytes of one value, or of the elements of a contiguous range.
template <Encodable Value>
requires(!std::ranges::contiguous_range<Value>) std::span<const std::byte> bytes_of(
    const Value& value)
noexcept { return std::as_bytes(std::span(&value, 1)); }
template <std::ranges::contiguous_range Values>
std::span<const std::byte> bytes_of(const Values& values) noexcept {
  return std::as_bytes(std::span(std::data(values), std::size(values)));
}

inline std::string_view as_text(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Appends bytes to `out`, a std::string or a std::vector<std::byte>.
template <typename Out>
void append(Out& out, std::span<const std::byte> bytes) {
  const auto* begin = reinterpret_cast<const typename Out::value_type*>(bytes.data());
  static_assert(sizeof(*begin) == 1);
  out.insert(out.end(), begin, begin + bytes.size());
}
template <typename Out, typename Value>
void append(Out& out, const Value& value) {
  append(out, bytes_of(value));
}

// Writes values one after the other into memory of a known size. A value that does not fit is not
// written; after that nothing is written, and ok() is false.
class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> out) noexcept : out_(out) {}

  // Reserves the next `bytes` for the caller to fill. Returns an empty span if they do not fit.
  std::span<std::byte> reserve(std::size_t bytes) noexcept {
    ok_ = ok_ && bytes <= remaining();
    if (!ok_) return {};
    const std::span piece = out_.subspan(at_, bytes);
    at_ += bytes;
    return piece;
  }
  void put_bytes(std::span<const std::byte> bytes) noexcept {
    const std::span piece = reserve(bytes.size());
    if (!piece.empty()) std::memcpy(piece.data(), bytes.data(), bytes.size());
  }
  template <typename Value>
  void put(const Value& value) noexcept {
    put_bytes(bytes_of(value));
  }
  void put_zeros(std::size_t bytes) noexcept {
    const std::span piece = reserve(bytes);
    std::fill(piece.begin(), piece.end(), std::byte{0});
  }

  bool ok() const noexcept { return ok_; }
  std::size_t written() const noexcept { return at_; }
  std::size_t remaining() const noexcept { return out_.size() - at_; }

 private:
  std::span<std::byte> out_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

// Reads the values that a ByteWriter wrote. A value that would end beyond the end is read as zeros
// (or as no bytes), and so are all later values, and ok() is false. So a caller reads all fields
// first and tests ok() once.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> in) noexcept : in_(in) {}
  explicit ByteReader(std::string_view in) noexcept : in_(std::as_bytes(std::span(in))) {}

  // Returns the next `bytes` bytes in place, at any address; none if fewer remain.
  std::span<const std::byte> take(std::size_t bytes) noexcept {
    ok_ = ok_ && bytes <= remaining();
    if (!ok_) return {};
    const std::span piece = in_.subspan(at_, bytes);
    at_ += bytes;
    return piece;
  }
  std::span<const std::byte> rest() noexcept { return take(remaining()); }
  template <Encodable Value>
  Value get() noexcept {
    Value value{};
    get_all(std::span(&value, 1));
    return value;
  }
  // Reads all elements of `values`, or none of them.
  template <Encodable Value, std::size_t kCount>
  void get_all(std::span<Value, kCount> values) noexcept {
    const auto piece = take(values.size_bytes());
    if (!piece.empty()) std::memcpy(values.data(), piece.data(), piece.size());
  }

  bool ok() const noexcept { return ok_; }
  // Whether all bytes were read, and no more.
  bool done() const noexcept { return ok_ && remaining() == 0; }
  std::size_t remaining() const noexcept { return in_.size() - at_; }

 private:
  std::span<const std::byte> in_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace ferry::internal
