// Summands: the rows that add up to the result of one token, in order, and memory for rows that
// have to be computed first. Each worker has one and uses it again for every token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"

namespace ferry::internal {

class Summands {
 public:
  // `encoded_bytes`: the size of a row in the wire format of combine.
  Summands(std::int64_t hidden, std::size_t encoded_bytes)
      : hidden_(hidden), encoded_bytes_(encoded_bytes) {}

  void clear() noexcept { count_ = 0, used_ = 0; }
  void add(const void* row, DataType type, float weight = 1.0f) noexcept {
    rows_[count_] = row;
    types_[count_] = type;
    weights_[count_++] = weight;
  }
  // Memory for a row of float32, which stays valid until clear().
  std::byte* scratch();
  // Memory for an encoded row, which the next one overwrites.
  std::byte* encoded();

  // Sums as reduce_rows does, over these rows: fills in rows, weights and their type. Rows of
  // several types are first converted to float32, which is exact.
  void reduce(ReduceRows target, bool weighted);

 private:
  static constexpr int kMost = kMaxRows;

  void promote();

  std::int64_t hidden_;
  std::size_t encoded_bytes_;
  int count_ = 0;
  std::size_t used_ = 0;
  std::array<const void*, kMost> rows_;
  std::array<DataType, kMost> types_;
  std::array<float, kMost> weights_;
  std::vector<std::unique_ptr<std::byte[]>> made_;
  std::unique_ptr<std::byte[]> encoded_;
};

}  // namespace ferry::internal
