// Wire formats: the encodings of a row between ranks. A format is a value that names its sizes and
// two kernels; docs/numerics.md defines every bit. The scales of a row are beside the row in
// dispatch, and inside the row in combine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ferry/types.h"

namespace ferry::internal {

// The caller's factors for one row: smooth or static scales.
struct RowFactors {
  const float* data = nullptr;  // null: none
  bool per_channel = false;     // [hidden]; else one value for all channels
};

// The arguments of an encoder. Memories do not overlap, and may have any alignment.
struct EncodeRow {
  const void* row;    // [hidden] of row_type
  DataType row_type;  // kBf16, kFp16, kFp32
  std::int64_t hidden;
  RowFactors factors = {};     // int8, int8_static
  void* out;                   // encoded_bytes(hidden, row_type) at most
  void* scales = nullptr;      // [num_scales(hidden)] of 4 bytes, consecutive
  const void* next = nullptr;  // the row to encode next, which is prefetched; or null
};

// Decodes a row, without dividing by the factors.
struct DecodeRow {
  const void* encoded;
  const void* scales = nullptr;
  DataType row_type;  // kBf16, kFp16, kFp32: of `out`; combine formats: the type that was encoded
  std::int64_t hidden;
  void* out;  // [hidden] of row_type
};

struct WireFormat {
  const char* name;
  DataType element_type;  // elements of encoded rows; kBytes: opaque
  std::size_t (*encoded_bytes)(std::int64_t hidden, DataType row_type) noexcept;  // most
  std::int64_t (*num_scales)(std::int64_t hidden) noexcept;
  void (*encode)(const EncodeRow& row) noexcept;  // null: the row is sent as it is
  void (*decode)(const DecodeRow& row) noexcept;
};

// The format of kNone has no kernels, and the element_type kBytes.
const WireFormat& wire_format(Wire wire) noexcept;
const WireFormat& wire_format(CombineWire wire) noexcept;

}  // namespace ferry::internal
