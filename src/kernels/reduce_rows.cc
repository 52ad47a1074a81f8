// reduce_rows: the weighted sum of rows, one block of the output at a time, the rows innermost, so
// that sums stay in registers and the output is written once. The elements behind the last whole
// chunk are summed one at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_rows.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first: it includes this file again for each target.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/kernels.h"
#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ferry::internal::HWY_NAMESPACE {

// How far ahead of the sums each row is prefetched when it is in memory, which streaming implies:
// 10 to 20 % faster. Rows in a cache are not prefetched: that would cost up to 30 %.
inline constexpr std::size_t kAheadBytes = 512;

// Lines at the end of each row that are fetched while the first half is summed: the second half
// begins there, and the processor does not prefetch it.
inline constexpr std::size_t kEndLines = 6;

// A sum over rows of row_type, rounded to out_type.
template <DataType row_type, DataType out_type, bool weighted>
struct RowSum {
  static constexpr bool kPaired = row_type == DataType::kBf16 && out_type == DataType::kBf16;
  static constexpr std::size_t kRowElement = row_type == DataType::kFp32 ? 4 : 2;
  static constexpr std::size_t kOutElement = out_type == DataType::kFp32 ? 4 : 2;

  const ReduceRows& args;

  static HWY_INLINE std::size_t chunk() { return 2 * hn::Lanes(FloatTag()); }
  static const std::byte* at(const void* row, std::size_t bytes) {
    return static_cast<const std::byte*>(row) + bytes;
  }
  std::byte* out_at(std::size_t h) const {
    return static_cast<std::byte*>(args.out) + h * kOutElement;
  }

  template <DataType type>
  static HWY_INLINE void add_chunk(const std::byte* from, Floats& a, Floats& b) {
    Floats x, y;
    load_chunk<type, kPaired>(from, x, y);
    a = hn::Add(a, x);
    b = hn::Add(b, y);
  }

  // A product is rounded, then added, so MulAdd is not used.
  static HWY_INLINE void add_row_chunk(const std::byte* from, Floats weight, Floats& a, Floats& b) {
    Floats x, y;
    load_chunk<row_type, kPaired>(from, x, y);
    if constexpr (weighted) {
      x = hn::Mul(weight, x);
      y = hn::Mul(weight, y);
    }
    a = hn::Add(a, x);
    b = hn::Add(b, y);
  }

  // Adds up elements [h, h + chunks * chunk()), chunks being one (a and b) or two.
  template <int chunks, bool streaming>
  HWY_INLINE void add_rows(std::size_t h, Floats& a, Floats& b, Floats& c, Floats& d) const {
    a = b = c = d = hn::Zero(FloatTag());
    for (const void* bias : args.bias) {
      if (bias == nullptr) continue;
      add_chunk<out_type>(at(bias, h * kOutElement), a, b);
      if constexpr (chunks == 2) add_chunk<out_type>(at(bias, (h + chunk()) * kOutElement), c, d);
    }
    const std::size_t ahead = h * kRowElement + kAheadBytes;
    const bool fetch = streaming && ahead < static_cast<std::size_t>(args.hidden) * kRowElement;
    for (int k = 0; k < args.num_rows; ++k) {
      const Floats weight = hn::Set(FloatTag(), weighted ? args.weights[k] : 1.0f);
      const std::byte* from = at(args.rows[k], h * kRowElement);
      for (std::size_t i = 0; fetch && i < chunks * chunk() * kRowElement; i += kLineBytes)
        hwy::Prefetch(from + kAheadBytes + i);
      add_row_chunk(from, weight, a, b);
      if constexpr (chunks == 2) add_row_chunk(from + chunk() * kRowElement, weight, c, d);
    }
  }

  // Stores the sums of the same elements.
  template <int chunks, bool streaming>
  HWY_INLINE void store(std::size_t h, Floats a, Floats b, Floats c, Floats d) const {
    store_chunk<out_type, kPaired>(a, b, out_at(h), streaming);
    if constexpr (chunks == 2) store_chunk<out_type, kPaired>(c, d, out_at(h + chunk()), streaming);
  }

  void one_element(std::size_t h) const {
    float sum = 0.0f;
    for (const void* bias : args.bias) {
      if (bias != nullptr) sum += to_float(at(bias, h * kOutElement), out_type);
    }
    for (int k = 0; k < args.num_rows; ++k) {
      const float x = to_float(at(args.rows[k], h * kRowElement), row_type);
      sum += weighted ? args.weights[k] * x : x;
    }
    from_float(sum, out_at(h), out_type);
  }

  // Where vectors are shorter than a line a block has two chunks.
  static HWY_INLINE bool short_vectors() {
    return hn::Lanes(FloatTag()) * sizeof(float) < kLineBytes;
  }
  static HWY_INLINE std::size_t step() { return short_vectors() ? 2 * chunk() : chunk(); }

  // Steps from element `first` on: upwards, or downwards. Each of the last `fetches` steps
  // prefetches one line at the end of a row: the last line of each row in turn, then the one before
  // it.
  enum Direction { kUp, kDown };
  template <bool streaming>
  HWY_NOINLINE void steps(std::size_t first, std::size_t count, Direction direction,
                          std::size_t fetches = 0) const {
    short_vectors() ? steps_of<2, streaming>(first, count, direction, fetches)
                    : steps_of<1, streaming>(first, count, direction, fetches);
  }

  // The rows of the next step are read before this one is stored, as in copy_inwards.
  template <int chunks, bool streaming>
  HWY_INLINE void steps_of(std::size_t first, std::size_t count, Direction direction,
                           std::size_t fetches) const {
    const std::size_t size = chunks * chunk(), stride = direction == kUp ? size : 0 - size;
    std::size_t line = static_cast<std::size_t>(args.hidden) * kRowElement - kLineBytes;
    int row = 0;
    Floats a = hn::Zero(FloatTag()), b = a, c = a, d = a;
    std::size_t h = first;
    for (std::size_t i = 0; i < count; ++i, h += stride) {
      if (count - i <= fetches) {
        hwy::Prefetch(at(args.rows[row], line));
        if (++row == args.num_rows) row = 0, line -= kLineBytes;
      }
      Floats next_a, next_b, next_c, next_d;
      add_rows<chunks, streaming>(h, next_a, next_b, next_c, next_d);
      if (i > 0) store<chunks, streaming>(h - stride, a, b, c, d);
      a = next_a, b = next_b, c = next_c, d = next_d;
    }
    if (count > 0) store<chunks, streaming>(h - stride, a, b, c, d);
  }

  template <bool streaming>
  HWY_NOINLINE void range(std::size_t begin, std::size_t end) const {
    const std::size_t count = (end - begin) / step();
    steps<streaming>(begin, count, kUp);
    std::size_t h = begin + count * step();
    const std::size_t rest = (end - h) / chunk();
    steps_of<1, streaming>(h, rest, kUp, 0);
    for (h += rest * chunk(); h < end; ++h) one_element(h);
  }

  // The first half upwards, then the second half downwards, as copy_inwards (copy_row.cc).
  void inwards() const {
    const auto hidden = static_cast<std::size_t>(args.hidden);
    const std::size_t count = hidden / step(), up = count / 2;
    const std::size_t ends = std::min(kEndLines, hidden * kRowElement / 2 / kLineBytes);
    steps<false>(0, up, kUp, std::min(up, ends * args.num_rows));
    range<false>(count * step(), hidden);
    steps<false>((count - 1) * step(), count - up, kDown);
  }

  // Whole cache lines are streamed; the elements before and after them share their lines with other
  // rows.
  void run() const {
    const auto hidden = static_cast<std::size_t>(args.hidden);
    const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(args.out) % kLineBytes;
    if (args.stores == Stores::kCached || misaligned % kOutElement != 0)
      return row_order() == RowOrder::kUpwards ? range<false>(0, hidden) : inwards();
    const std::size_t line = kLineBytes / kOutElement;
    const std::size_t head = std::min(hidden, (kLineBytes - misaligned) % kLineBytes / kOutElement);
    const std::size_t body = (hidden - head) / line * line;
    range<false>(0, head);
    range<true>(head, head + body);
    range<false>(head + body, hidden);
  }
};

template <DataType row_type, DataType out_type>
void sum_rows(const ReduceRows& args) {
  if (args.weights != nullptr) {
    RowSum<row_type, out_type, true>{args}.run();
  } else {
    RowSum<row_type, out_type, false>{args}.run();
  }
}

template <DataType row_type>
void sum_rows_of(const ReduceRows& args) {
  switch (args.out_type) {
    case DataType::kBf16: return sum_rows<row_type, DataType::kBf16>(args);
    case DataType::kFp16: return sum_rows<row_type, DataType::kFp16>(args);
    default: return sum_rows<row_type, DataType::kFp32>(args);
  }
}

void sum_any_rows(const ReduceRows& args) {
  switch (args.row_type) {
    case DataType::kBf16: return sum_rows_of<DataType::kBf16>(args);
    case DataType::kFp16: return sum_rows_of<DataType::kFp16>(args);
    default: return sum_rows_of<DataType::kFp32>(args);
  }
}

}  // namespace ferry::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ferry::internal {

HWY_EXPORT(sum_any_rows);

void reduce_rows(const ReduceRows& args) noexcept { HWY_DYNAMIC_DISPATCH(sum_any_rows)(args); }

}  // namespace ferry::internal
#endif
