// The memory of the bench: large buffers in huge pages, and arrays that forked ranks share with the
// process that made them. Owns the mappings.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace ferry::bench {

// A mapping of whole huge pages, aligned to them. Its bytes are zero, and no page exists before the
// first access.
class Mapping {
 public:
  enum class Kind {
    kPrivate,  // the kernel is advised to use huge pages
    kShared    // processes that are forked later share the mapping
  };
  Mapping() = default;
  Mapping(std::size_t bytes, Kind kind);  // throws std::bad_alloc
  ~Mapping();
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const noexcept { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Makes every page of zeroed memory exist, in memory near the core of the calling thread.
void touch(std::byte* data, std::size_t bytes) noexcept;

// An array of `size` zeroed elements that this process shares with its children.
template <typename T>
class SharedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  SharedArray() = default;
  explicit SharedArray(std::size_t size)
      : mapping_(size * sizeof(T), Mapping::Kind::kShared), size_(size) {}

  T& operator[](std::size_t i) const noexcept { return reinterpret_cast<T*>(mapping_.data())[i]; }
  std::size_t size() const noexcept { return size_; }

 private:
  Mapping mapping_;
  std::size_t size_ = 0;
};

}  // namespace ferry::bench
