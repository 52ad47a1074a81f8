// Fixtures of the kernel tests: every SIMD target of the machine in turn, and rows with guards
// around them.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace ferry::internal::testing {

inline constexpr unsigned kSeed = 20240607;

// Runs body() once per SIMD target, then goes back to the best.
template <typename Body>
void for_each_target(Body body) {
  int num_targets = 0;
  const char* const* names = simd_targets(&num_targets);
  for (int i = 0; i < num_targets; ++i) {
    SCOPED_TRACE(std::string("SIMD target ") + names[i] + ", seed " + std::to_string(kSeed));
    ASSERT_TRUE(force_simd_target(names[i]));
    body();
  }
  ASSERT_TRUE(force_simd_target(""));
}

// The same, once in each RowOrder; then the order of this processor is restored.
template <typename Body>
void for_each_target_and_order(Body body) {
  const RowOrder usual = row_order();
  for (const RowOrder order : {RowOrder::kInwards, RowOrder::kUpwards}) {
    SCOPED_TRACE(order == RowOrder::kInwards ? "inwards" : "upwards");
    force_row_order(order);
    ASSERT_EQ(row_order(), order);
    for_each_target(body);
  }
  force_row_order(usual);
}

// A row at `offset` bytes behind a cache line, with guard bytes before and after it. Inputs and
// outputs have different guards, so that a byte too many is found.
inline constexpr std::byte kInputGuard{0x3c};
inline constexpr std::byte kOutputGuard{0xa5};

class GuardedRow {
 public:
  GuardedRow(std::size_t bytes, std::size_t offset, std::byte guard)
      : bytes_(bytes), guard_(guard), memory_(bytes + 4 * kLineBytes, guard) {
    const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(memory_.data()) % kLineBytes;
    begin_ = 2 * kLineBytes - misaligned + offset % kLineBytes;
  }

  std::byte* data() { return memory_.data() + begin_; }
  const std::byte* data() const { return memory_.data() + begin_; }
  std::size_t bytes() const { return bytes_; }
  std::vector<std::byte> copy() const { return {data(), data() + bytes_}; }

  void fill_random(std::mt19937& random) {
    for (std::size_t i = 0; i < bytes_; ++i) data()[i] = static_cast<std::byte>(random());
  }

  bool guards_intact() const {
    const auto is_guard = [this](std::byte b) { return b == guard_; };
    return std::all_of(memory_.data(), data(), is_guard) &&
           std::all_of(data() + bytes_, memory_.data() + memory_.size(), is_guard);
  }

 private:
  std::size_t bytes_;
  std::size_t begin_;
  std::byte guard_;
  std::vector<std::byte> memory_;
};

// Memory between two pages that fault when they are touched.
class FencedPages {
 public:
  explicit FencedPages(std::size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
    base_ = static_cast<std::byte*>(mmap(nullptr, bytes_ + 2 * kPage, PROT_NONE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    mprotect(base_ + kPage, bytes_, PROT_READ | PROT_WRITE);
  }
  ~FencedPages() { munmap(base_, bytes_ + 2 * kPage); }
  FencedPages(const FencedPages&) = delete;
  FencedPages& operator=(const FencedPages&) = delete;

  std::byte* first() { return base_ + kPage; }  // a row that begins at the fence
  std::byte* last(std::size_t bytes) {
    return base_ + kPage + bytes_ - bytes;
  }  // a row that ends at the fence

 private:
  static constexpr std::size_t kPage = 65536;  // a multiple of every machine's page
  std::size_t bytes_;
  std::byte* base_;
};

}  // namespace ferry::internal::testing
