// Element types, layouts and the description of rows that callers pass in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ferry/cplusplus.h"
#include "ferry/export.h"

namespace ferry {

enum class DataType : std::uint8_t {
  kBf16,
  kFp16,
  kFp32,
  kBytes,    // opaque, one byte per element; can be dispatched, not combined
  kInt8,     // received rows of an int8 wire
  kFp8E4m3,  // received rows of an fp8 wire: 1 sign, 4 exponent, 3 mantissa bits, no infinity
  // For Collectives only, which take kBytes as unsigned integers of 8 bits.
  kFp64,
  kInt16,
  kInt32,
  kInt64,
  kUint16,
  kUint32,
  kUint64,
};

// The operations by which a reduction of Collectives combines the elements of the ranks, in
// ascending rank order.
enum class ReduceOp : std::uint8_t {
  kSum,
  kAvg,  // the sum divided by the number of ranks; floating-point types only
  kProduct,
  kMin,  // NaN where one element is NaN, as kMax
  kMax,
  kBand,  // bitwise; integer types only, as the two below
  kBor,
  kBxor,
};

enum class IndexType : std::uint8_t { kInt32, kInt64 };

// The order of received rows (docs/window_layout.md).
enum class Layout : std::uint8_t {
  kRankMajor,    // [N, H], one row per distinct (token, this rank), ordered by source rank, token
  kExpertMajor,  // [P, H], one row per (token, local expert), ordered by local expert, source rank,
                 // token, k
  kPadded,       // [L, capacity, H], inside each expert ordered as in kExpertMajor
};

// How dispatch encodes rows; they arrive encoded (docs/numerics.md). All wires except kNone take
// tokens of kBf16, kFp16 or kFp32 and give one byte per element.
enum class Wire : std::uint8_t {
  kNone,
  kInt8,        // a float32 scale per row; smooth scales if given
  kInt8Static,  // the caller's scales; none are sent
  kFp8,         // a float32 scale per 128 channels
  kFp8Pow2,     // as kFp8, each scale rounded up to a power of two
  kFp8Ue8m0,    // as kFp8Pow2, of each scale only the exponent, four in an int32
};

// How combine encodes rows while they travel. Except for kNone, each row loses precision; the rows
// are summed in float32.
enum class CombineWire : std::uint8_t {
  kNone,
  kInt8Block8,    // int8 with a scale per 8 elements, CANN's combine mode 2
  kInt8Block128,  // the same per 128
  kLogfmt10,      // 10 bits an element in blocks of 128
};

// The layout of the scales of received rows.
enum class ScaleOrder : std::uint8_t {
  kRowMajor,     // [rows, scales]
  kColumnMajor,  // [scales, rows], columns start at multiples of 16 bytes
};

// Whether combine rounds between the rows and the result.
enum class Partials : std::uint8_t {
  kNone,     // no: one rounding, at the end
  kPerRank,  // the summands of one rank are added first and rounded to the type of the rows, as
             // where a rank returns one row for all of its experts (DeepEP V2)
};

FERRY_EXPORT std::size_t element_bytes(DataType type) noexcept;
FERRY_EXPORT const char* data_type_name(DataType type) noexcept;
FERRY_EXPORT const char* reduce_op_name(ReduceOp op) noexcept;
FERRY_EXPORT const char* layout_name(Layout layout) noexcept;
FERRY_EXPORT const char* wire_name(Wire wire) noexcept;
FERRY_EXPORT const char* wire_name(CombineWire wire) noexcept;

// A caller's matrix [num_rows, hidden]; row i starts at data + i * pitch_bytes.
struct Rows {
  const void* data = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t hidden = 0;  // elements in a row
  DataType dtype = DataType::kBf16;
  std::int64_t pitch_bytes = 0;  // 0: dense, hidden * element_bytes(dtype)
};

}  // namespace ferry
