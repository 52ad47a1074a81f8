// Element types, layouts and the description of rows that callers pass in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ferry/export.h"

namespace ferry {

enum class DataType : std::uint8_t {
  kBf16,
  kFp16,
  kFp32,
  kBytes,  // opaque, one byte per element; can be dispatched, not combined
};

enum class IndexType : std::uint8_t { kInt32, kInt64 };

// How received rows lie (see docs/window_layout.md for the exact order).
enum class Layout : std::uint8_t {
  kRankMajor,    // [N, H], one row per distinct (token, this rank), ordered by source rank, token
  kExpertMajor,  // [P, H], one row per (token, local expert), ordered by local expert, source rank,
                 // token, k
  kPadded,       // [L, capacity, H], inside each expert ordered as in kExpertMajor
};

FERRY_EXPORT std::size_t element_bytes(DataType type) noexcept;
FERRY_EXPORT const char* data_type_name(DataType type) noexcept;
FERRY_EXPORT const char* layout_name(Layout layout) noexcept;

// A caller's matrix [num_rows, hidden]; row i starts at data + i * pitch_bytes.
struct Rows {
  const void* data = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t hidden = 0;  // elements in a row
  DataType dtype = DataType::kBf16;
  std::int64_t pitch_bytes = 0;  // 0: dense, hidden * element_bytes(dtype)
};

}  // namespace ferry
