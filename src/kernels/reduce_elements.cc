// reduce_elements for bf16, fp16 and fp32: a vector of results at a time, the rows innermost, so
// that results stay in registers and are written once. The elements behind the last whole vector
// are reduced one at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_elements.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first: it includes this file again for each target.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/kernels.h"
#include "kernels/lanes-inl.h"
#include "kernels/reduce_elements.h"

HWY_BEFORE_NAMESPACE();
namespace ferry::internal::HWY_NAMESPACE {

template <ReduceOp op>
HWY_INLINE Floats reduce_lanes(Floats a, Floats b) {
  if constexpr (op == ReduceOp::kProduct) {
    return hn::Mul(a, b);
  } else if constexpr (op == ReduceOp::kMin) {
    return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(b)), b, a);
  } else if constexpr (op == ReduceOp::kMax) {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(b)), b, a);
  } else {
    return hn::Add(a, b);
  }
}

template <ReduceOp op>
float reduce_one(float a, float b) {
  if (op == ReduceOp::kProduct) return a * b;
  if (op == ReduceOp::kMin) return b < a || b != b ? b : a;
  if (op == ReduceOp::kMax) return a < b || b != b ? b : a;
  return a + b;
}

// Inline for fp32: a small call has such elements only.
template <DataType type>
float load_one(const std::byte* element) {
  if constexpr (type != DataType::kFp32) return to_float(element, type);
  float value;
  std::memcpy(&value, element, sizeof value);
  return value;
}

template <DataType type>
void store_one(float value, std::byte* element) {
  if constexpr (type == DataType::kFp32) {
    std::memcpy(element, &value, sizeof value);
  } else {
    from_float(value, element, type);
  }
}

template <DataType type, ReduceOp op>
void reduce_floats(const ReduceElements& args) {
  constexpr std::size_t kElement = type == DataType::kFp32 ? 4 : 2;
  const auto at = [&](int row, std::int64_t i) {
    return static_cast<const std::byte*>(args.rows[row]) + i * kElement;
  };
  auto* const out = static_cast<std::byte*>(args.out);
  const auto divisor = static_cast<float>(args.num_rows);
  const auto chunk = static_cast<std::int64_t>(2 * hn::Lanes(FloatTag()));
  std::int64_t i = 0;
  for (; i + chunk <= args.count; i += chunk) {
    Floats a, b;
    load_chunk<type, false>(at(0, i), a, b);
    for (int row = 1; row < args.num_rows; ++row) {
      Floats x, y;
      load_chunk<type, false>(at(row, i), x, y);
      a = reduce_lanes<op>(a, x);
      b = reduce_lanes<op>(b, y);
    }
    if constexpr (op == ReduceOp::kAvg) {
      a = hn::Div(a, hn::Set(FloatTag(), divisor));
      b = hn::Div(b, hn::Set(FloatTag(), divisor));
    }
    store_chunk<type, false>(a, b, out + i * kElement, false);
  }
  for (; i < args.count; ++i) {
    float result = load_one<type>(at(0, i));
    for (int row = 1; row < args.num_rows; ++row)
      result = reduce_one<op>(result, load_one<type>(at(row, i)));
    store_one<type>(op == ReduceOp::kAvg ? result / divisor : result, out + i * kElement);
  }
}

template <DataType type>
void reduce_floats_by(const ReduceElements& args) {
  switch (args.op) {
    case ReduceOp::kAvg: return reduce_floats<type, ReduceOp::kAvg>(args);
    case ReduceOp::kProduct: return reduce_floats<type, ReduceOp::kProduct>(args);
    case ReduceOp::kMin: return reduce_floats<type, ReduceOp::kMin>(args);
    case ReduceOp::kMax: return reduce_floats<type, ReduceOp::kMax>(args);
    default: return reduce_floats<type, ReduceOp::kSum>(args);
  }
}

void reduce_any_floats(const ReduceElements& args) {
  switch (args.type) {
    case DataType::kBf16: return reduce_floats_by<DataType::kBf16>(args);
    case DataType::kFp16: return reduce_floats_by<DataType::kFp16>(args);
    default: return reduce_floats_by<DataType::kFp32>(args);
  }
}

}  // namespace ferry::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ferry::internal {

HWY_EXPORT(reduce_any_floats);

void reduce_elements(const ReduceElements& args) noexcept {
  switch (args.type) {
    case DataType::kBf16:
    case DataType::kFp16:
    case DataType::kFp32: return HWY_DYNAMIC_DISPATCH(reduce_any_floats)(args);
    default: return reduce_wide_elements(args);
  }
}

}  // namespace ferry::internal
#endif
