// copy_row, copy_row_to_many, the fence and the prefetch. Cached copies go through a row in the
// order of row_order(); streaming copies store whole cache lines past the caches, and the ends of a
// row, which share lines with other rows, by ordinary stores.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/copy_row.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first: it includes this file again for each target.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace ferry::internal::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Streams, and cached copies that go upwards, write this many bytes to each destination in turn:
// writes to several pages at a time are faster than one row after the other. For streams, such
// turns are as fast as turns of one line, for any mixture of alignments; for cached copies they are
// faster.
inline constexpr std::size_t kTurnBytes = 512;

// The part of a source that stays in the cache while it is copied to every destination.
inline constexpr std::size_t kCachedBytes = 65536;

// The bytes before the first multiple of `unit` in `bytes` at `to`.
HWY_INLINE std::size_t bytes_before(const std::byte* to, std::size_t bytes, std::size_t unit) {
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % unit;
  return std::min(bytes, (unit - misaligned) % unit);
}

// Copies from the first byte to the last. With streaming, `dst` is aligned to a line and `bytes` is
// a multiple of a line.
template <Stores stores>
HWY_INLINE void copy_upwards(std::byte* dst, const std::byte* src, std::size_t bytes) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(dst, src, bytes);
#else
  const hn::ScalableTag<std::uint8_t> tag;
  const std::size_t step = hn::Lanes(tag);
  auto* const to = reinterpret_cast<std::uint8_t*>(dst);
  const auto* const from = reinterpret_cast<const std::uint8_t*>(src);
  std::size_t i = 0;
  for (; i + step <= bytes; i += step) {
    const auto lanes = hn::LoadU(tag, from + i);
    if constexpr (stores == Stores::kStreaming) {
      hn::Stream(lanes, tag, to + i);
    } else {
      hn::StoreU(lanes, tag, to + i);
    }
  }
  // With streaming, bytes remain only for vectors (of SVE) whose size does not divide a turn.
  if (i < bytes) std::memcpy(to + i, from + i, bytes - i);
#endif
}

// Copies the part of a row from `begin` to `end` bytes after the start of its first whole line. The
// part that begins at 0 includes the bytes before the first whole line and after the last.
HWY_INLINE void stream_part(std::byte* to, const std::byte* from, std::size_t bytes,
                            std::size_t begin, std::size_t end) {
  const std::size_t head = bytes_before(to, bytes, kLineBytes);
  const std::size_t lines = (bytes - head) / kLineBytes * kLineBytes;
  const std::size_t tail = bytes - head - lines;
  if (begin == 0 && head != 0) std::memcpy(to, from, head);
  if (begin == 0 && tail != 0) std::memcpy(to + head + lines, from + head + lines, tail);
  if (begin >= lines) return;
  copy_upwards<Stores::kStreaming>(to + head + begin, from + head + begin,
                                   std::min(end, lines) - begin);
}

// The first half upwards, then the second half downwards. A processor that goes through lines one
// after the other fetches some beyond the last. Beyond a row lie rows of other ranks: a line
// fetched there makes the next store of its rank wait (docs/decisions/rows_from_both_ends.md).
// Inwards, what lies beyond is the other half of the same row.
// Downwards, the next vector is read before this one is stored. A read waits for an earlier store
// when the last twelve bits of both addresses are equal. Large tensors of PyTorch begin one line
// after the start of a page, received rows at the start. So without this order each read would wait
// for the store before it.
HWY_INLINE void copy_inwards(std::byte* dst, const std::byte* src, std::size_t bytes) {
#if HWY_TARGET == HWY_SCALAR
  std::memcpy(dst, src, bytes);
#else
  const hn::ScalableTag<std::uint8_t> tag;
  const std::size_t step = hn::Lanes(tag);
  auto* const to = reinterpret_cast<std::uint8_t*>(dst);
  const auto* const from = reinterpret_cast<const std::uint8_t*>(src);
  const std::size_t head = bytes_before(dst, bytes, step);
  const std::size_t steps = (bytes - head) / step;
  const std::size_t middle = head + steps / 2 * step, end = head + steps * step;
  std::memcpy(to, from, head);
  for (std::size_t i = head; i < middle; i += step)
    hn::Store(hn::LoadU(tag, from + i), tag, to + i);
  std::memcpy(to + end, from + end, bytes - end);
  if (middle == end) return;
  auto next = hn::LoadU(tag, from + end - step);
  for (std::size_t i = end - step; i > middle; i -= step) {
    const auto now = next;
    next = hn::LoadU(tag, from + i - step);
    hn::Store(now, tag, to + i);
  }
  hn::Store(next, tag, to + middle);
#endif
}

// A part of the source goes to every destination before the next part does.
template <void (*copy)(std::byte*, const std::byte*, std::size_t)>
HWY_INLINE void cache_row(void* const* dsts, int num_dsts, const void* src, std::size_t bytes,
                          std::size_t part) {
  for (std::size_t at = 0; at < bytes; at += part) {
    for (int k = 0; k < num_dsts; ++k) {
      copy(static_cast<std::byte*>(dsts[k]) + at, static_cast<const std::byte*>(src) + at,
           std::min(part, bytes - at));
    }
  }
}

void cache_row_upwards(void* const* dsts, int num_dsts, const void* src, std::size_t bytes) {
  const std::size_t turn = num_dsts == 1 ? bytes : kTurnBytes;
  cache_row<copy_upwards<Stores::kCached>>(dsts, num_dsts, src, bytes, turn);
}

void cache_row_inwards(void* const* dsts, int num_dsts, const void* src, std::size_t bytes) {
  cache_row<copy_inwards>(dsts, num_dsts, src, bytes, kCachedBytes);
}

void stream_row(void* const* dsts, int num_dsts, const void* src, std::size_t bytes) {
  const std::size_t turn = num_dsts == 1 ? bytes : kTurnBytes;
  for (std::size_t at = 0; at < bytes; at += turn) {
    for (int k = 0; k < num_dsts; ++k) {
      stream_part(static_cast<std::byte*>(dsts[k]), static_cast<const std::byte*>(src), bytes, at,
                  at + turn);
    }
  }
}

}  // namespace ferry::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ferry::internal {

HWY_EXPORT(cache_row_upwards);
HWY_EXPORT(cache_row_inwards);
HWY_EXPORT(stream_row);

namespace {

// The bytes at the beginning of a row that a prefetch makes faster; behind them the hardware
// prefetches.
constexpr std::size_t kPrefetchBytes = 128;

}  // namespace

void copy_row(void* dst, const void* src, std::size_t bytes, Stores stores) noexcept {
  copy_row_to_many(&dst, 1, src, bytes, stores);
}

void copy_row_to_many(void* const* dsts, int num_dsts, const void* src, std::size_t bytes,
                      Stores stores) noexcept {
  if (stores == Stores::kStreaming) {
    HWY_DYNAMIC_DISPATCH(stream_row)(dsts, num_dsts, src, bytes);
  } else if (row_order() == RowOrder::kUpwards) {
    HWY_DYNAMIC_DISPATCH(cache_row_upwards)(dsts, num_dsts, src, bytes);
  } else {
    HWY_DYNAMIC_DISPATCH(cache_row_inwards)(dsts, num_dsts, src, bytes);
  }
}

void stores_fence() noexcept { hwy::FlushStream(); }

void prefetch_row(const void* row, std::size_t bytes) noexcept {
  const auto* head = static_cast<const std::byte*>(row);
  const std::size_t end = std::min(bytes, kPrefetchBytes);
  for (std::size_t at = 0; at < end; at += kLineBytes) hwy::Prefetch(head + at);
}

}  // namespace ferry::internal
#endif
