// Shape: the extents or strides of an array, kept in place: a call reads several arrays, and no
// allocation is needed for any of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

namespace ferry::python {

class Shape {
 public:
  static constexpr std::size_t kMostDims = 4;  // the most of any array that ferry reads or makes

  Shape(std::initializer_list<std::int64_t> extents = {}) : size_(extents.size()) {
    std::copy(extents.begin(), extents.end(), extents_.begin());
  }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  const std::int64_t* data() const noexcept { return extents_.data(); }
  const std::int64_t* begin() const noexcept { return data(); }
  const std::int64_t* end() const noexcept { return data() + size_; }
  std::int64_t back() const noexcept { return extents_[size_ - 1]; }
  std::int64_t operator[](std::size_t i) const noexcept { return extents_[i]; }
  std::int64_t& operator[](std::size_t i) noexcept { return extents_[i]; }

 private:
  std::array<std::int64_t, kMostDims> extents_ = {};
  std::size_t size_;
};

// Strides of C order.
inline Shape dense_strides(Shape shape) {
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) stride *= std::exchange(shape[i], stride);
  return shape;
}

}  // namespace ferry::python
