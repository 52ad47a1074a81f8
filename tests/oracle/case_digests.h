// CaseDigests: one line for each case, its kind and a digest of all its numbers. Written by the
// parts of vectors_test.cc; compared with the frozen lines in vectors.txt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ferry/types.h"

namespace ferry::test {

class CaseDigests {
 public:
  // What is added from here on belongs to this case.
  void begin_case(std::string_view kind);

  // All NaN of `type` count as one: which of them a sum gives depends on the processor.
  void add(std::span<const std::byte> elements, DataType type);
  template <typename T>
  void add(const std::vector<T>& numbers) {
    const auto bytes = std::as_bytes(std::span(numbers));
    if constexpr (std::is_same_v<T, float>) {
      add(bytes, DataType::kFp32);
    } else {
      add(bytes, DataType::kBytes);
    }
  }

  // "dispatch padded 3f8a..." for each case, in order.
  std::vector<std::string> lines() const;

 private:
  struct Case {
    std::string kind;
    std::uint64_t digest;
  };
  std::vector<Case> cases_;
};

}  // namespace ferry::test
