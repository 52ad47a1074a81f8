#include "collectives/oracle.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "exchange/random.h"
#include "kernels/kernels.h"

namespace ferry::test {

namespace {

using internal::from_float;
using internal::to_float;

bool in_float32(DataType dtype) {
  return dtype == DataType::kBf16 || dtype == DataType::kFp16 || dtype == DataType::kFp32;
}

double drawn_number(Random& random) {
  switch (random.below(40)) {
    case 0: return 0.0;
    case 1: return -0.0;
    case 2: return std::numeric_limits<double>::infinity();
    case 3: return 1e-6;  // a subnormal of fp16
    default: return static_cast<double>(random.below(2001) - 1000) / 128;
  }
}

// Whether an element is NaN. All NaNs are quiet and positive, and no sum has two of them, since it
// depends on the processor which of two NaNs the sum keeps.
bool is_nan(std::uint64_t seed, int rank, std::int64_t i) {
  return rank == 0 && (i + static_cast<std::int64_t>(seed)) % 97 == 0;
}

template <typename T>
T apply(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return static_cast<T>(a + b);
    case ReduceOp::kProduct: return static_cast<T>(a * b);
    case ReduceOp::kMin: return b != b ? b : a != a ? a : b < a ? b : a;
    case ReduceOp::kMax: return b != b ? b : a != a ? a : a < b ? b : a;
    default: break;
  }
  return a;
}

template <typename Unsigned, typename T>
T apply_to_integers(ReduceOp op, T a, T b) {
  const auto x = static_cast<Unsigned>(a), y = static_cast<Unsigned>(b);
  switch (op) {
    case ReduceOp::kSum: return static_cast<T>(x + y);
    case ReduceOp::kProduct: return static_cast<T>(std::uint64_t{x} * std::uint64_t{y});
    case ReduceOp::kBand: return static_cast<T>(x & y);
    case ReduceOp::kBor: return static_cast<T>(x | y);
    case ReduceOp::kBxor: return static_cast<T>(x ^ y);
    default: return apply(op, a, b);
  }
}

template <typename T>
T element(const Bytes& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T, typename Apply>
Bytes reduce_each(const std::vector<Bytes>& ranks, const Apply& apply_two) {
  Bytes out = ranks[0];
  for (std::size_t i = 0; i < out.size() / sizeof(T); ++i) {
    T result = element<T>(out, i);
    for (std::size_t rank = 1; rank < ranks.size(); ++rank)
      result = apply_two(result, element<T>(ranks[rank], i));
    std::memcpy(out.data() + i * sizeof(T), &result, sizeof(T));
  }
  return out;
}

template <typename T>
Bytes reduce_integers(const std::vector<Bytes>& ranks, ReduceOp op) {
  using Unsigned = std::make_unsigned_t<T>;
  return reduce_each<T>(ranks, [op](T a, T b) { return apply_to_integers<Unsigned>(op, a, b); });
}

Bytes reduce_doubles(const std::vector<Bytes>& ranks, ReduceOp op) {
  Bytes out = reduce_each<double>(ranks, [op](double a, double b) { return apply(op, a, b); });
  for (std::size_t i = 0; op == ReduceOp::kAvg && i < out.size() / 8; ++i) {
    const double average = element<double>(out, i) / static_cast<double>(ranks.size());
    std::memcpy(out.data() + i * 8, &average, 8);
  }
  return out;
}

Bytes reduce_in_float32(const std::vector<Bytes>& ranks, DataType dtype, ReduceOp op) {
  Bytes out = ranks[0];
  const std::size_t each = element_bytes(dtype);
  for (std::size_t at = 0; at < out.size(); at += each) {
    float result = to_float(ranks[0].data() + at, dtype);
    for (std::size_t rank = 1; rank < ranks.size(); ++rank)
      result = apply(op, result, to_float(ranks[rank].data() + at, dtype));
    if (op == ReduceOp::kAvg) result /= static_cast<float>(ranks.size());
    from_float(result, out.data() + at, dtype);
  }
  return out;
}

}  // namespace

Bytes elements_of(std::uint64_t seed, int rank, std::int64_t count, DataType dtype) {
  const std::size_t each = element_bytes(dtype);
  Bytes bytes(static_cast<std::size_t>(count) * each);
  Random random(seed, static_cast<std::uint64_t>(rank));
  for (std::int64_t i = 0; i < count; ++i) {
    std::byte* const place = bytes.data() + static_cast<std::size_t>(i) * each;
    if (in_float32(dtype) || dtype == DataType::kFp64) {
      const double number = is_nan(seed, rank, i) ? std::nan("") : drawn_number(random);
      if (dtype == DataType::kFp64) {
        std::memcpy(place, &number, sizeof number);
      } else {
        from_float(static_cast<float>(number), place, dtype);
      }
    } else {
      const std::uint64_t bits = random.next();
      std::memcpy(place, &bits, each);
    }
  }
  return bytes;
}

Bytes reduced(const std::vector<Bytes>& ranks, DataType dtype, ReduceOp op) {
  switch (dtype) {
    case DataType::kFp64: return reduce_doubles(ranks, op);
    case DataType::kBytes: return reduce_integers<std::uint8_t>(ranks, op);
    case DataType::kInt8: return reduce_integers<std::int8_t>(ranks, op);
    case DataType::kInt16: return reduce_integers<std::int16_t>(ranks, op);
    case DataType::kInt32: return reduce_integers<std::int32_t>(ranks, op);
    case DataType::kInt64: return reduce_integers<std::int64_t>(ranks, op);
    case DataType::kUint16: return reduce_integers<std::uint16_t>(ranks, op);
    case DataType::kUint32: return reduce_integers<std::uint32_t>(ranks, op);
    case DataType::kUint64: return reduce_integers<std::uint64_t>(ranks, op);
    default: return reduce_in_float32(ranks, dtype, op);
  }
}

std::vector<std::int64_t> counts_of(int num_ranks, std::int64_t count) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < num_ranks; ++rank) counts.push_back(rank % 3 == 1 ? 0 : count + rank);
  return counts;
}

}  // namespace ferry::test
