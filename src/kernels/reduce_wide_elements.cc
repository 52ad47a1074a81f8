// reduce_elements for integers and fp64, in blocks: the compiler makes vectors of the inner loops.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/reduce_elements.h"

namespace ferry::internal {

namespace {

constexpr std::int64_t kBlock = 512;  // elements

// Unsigned types: sums and products wrap around as those of signed ones do on the same bits. They
// have at least 32 bits, so that no product overflows an int.
template <typename T>
struct Wrapping {
  using type = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;
};
template <>
struct Wrapping<double> {
  using type = double;
};

template <typename T>
bool is_nan(T value) noexcept {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

template <typename T, ReduceOp op>
T reduce_two(T a, T b) noexcept {
  using W = typename Wrapping<T>::type;
  if constexpr (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
    return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
  } else if constexpr (op == ReduceOp::kProduct) {
    return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
  } else if constexpr (op == ReduceOp::kMin) {
    return b < a || is_nan(b) ? b : a;
  } else if constexpr (op == ReduceOp::kMax) {
    return a < b || is_nan(b) ? b : a;
  } else if constexpr (std::is_integral_v<T> && op == ReduceOp::kBand) {
    return static_cast<T>(a & b);
  } else if constexpr (std::is_integral_v<T> && op == ReduceOp::kBor) {
    return static_cast<T>(a | b);
  } else if constexpr (std::is_integral_v<T> && op == ReduceOp::kBxor) {
    return static_cast<T>(a ^ b);
  } else {
    return a;  // bitwise on floating point: can_reduce is false
  }
}

template <typename T, ReduceOp op>
void reduce(const ReduceElements& args) noexcept {
  T block[kBlock], next[kBlock];
  for (std::int64_t begin = 0; begin < args.count; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, args.count - begin);
    const std::size_t bytes = static_cast<std::size_t>(length) * sizeof(T);
    const auto at = [&](const void* row) { return static_cast<const T*>(row) + begin; };
    std::memcpy(block, at(args.rows[0]), bytes);
    for (int row = 1; row < args.num_rows; ++row) {
      std::memcpy(next, at(args.rows[row]), bytes);
      for (std::int64_t i = 0; i < length; ++i) block[i] = reduce_two<T, op>(block[i], next[i]);
    }
    if constexpr (op == ReduceOp::kAvg) {
      for (std::int64_t i = 0; i < length; ++i) block[i] /= static_cast<T>(args.num_rows);
    }
    std::memcpy(static_cast<T*>(args.out) + begin, block, bytes);
  }
}

template <typename T>
void reduce_by(const ReduceElements& args) noexcept {
  switch (args.op) {
    case ReduceOp::kSum: return reduce<T, ReduceOp::kSum>(args);
    case ReduceOp::kAvg: return reduce<T, ReduceOp::kAvg>(args);
    case ReduceOp::kProduct: return reduce<T, ReduceOp::kProduct>(args);
    case ReduceOp::kMin: return reduce<T, ReduceOp::kMin>(args);
    case ReduceOp::kMax: return reduce<T, ReduceOp::kMax>(args);
    case ReduceOp::kBand: return reduce<T, ReduceOp::kBand>(args);
    case ReduceOp::kBor: return reduce<T, ReduceOp::kBor>(args);
    case ReduceOp::kBxor: return reduce<T, ReduceOp::kBxor>(args);
  }
}

}  // namespace

void reduce_wide_elements(const ReduceElements& args) noexcept {
  switch (args.type) {
    case DataType::kFp64: return reduce_by<double>(args);
    case DataType::kBytes: return reduce_by<std::uint8_t>(args);
    case DataType::kInt8: return reduce_by<std::int8_t>(args);
    case DataType::kInt16: return reduce_by<std::int16_t>(args);
    case DataType::kInt32: return reduce_by<std::int32_t>(args);
    case DataType::kInt64: return reduce_by<std::int64_t>(args);
    case DataType::kUint16: return reduce_by<std::uint16_t>(args);
    case DataType::kUint32: return reduce_by<std::uint32_t>(args);
    case DataType::kUint64: return reduce_by<std::uint64_t>(args);
    default: return;  // reduce_elements has the others
  }
}

bool can_reduce(DataType type, ReduceOp op) noexcept {
  if (type == DataType::kFp8E4m3 || op > ReduceOp::kBxor) return false;
  const bool floating = type == DataType::kBf16 || type == DataType::kFp16 ||
                        type == DataType::kFp32 || type == DataType::kFp64;
  return floating ? op <= ReduceOp::kMax : op != ReduceOp::kAvg;
}

}  // namespace ferry::internal
