// half_copy with the widest vectors of this machine. Called by wire_bench.cc.
#include "half_copy.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "half_copy.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first: it includes this file again for each target.
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ferry::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void half_copy_bytes(std::uint8_t* dst, const std::uint8_t* src, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> tag;
  const std::size_t step = hn::Lanes(tag);
  for (std::size_t i = 0; i < bytes; i += 2 * step)
    hn::StoreU(hn::Xor(hn::LoadU(tag, src + i), hn::LoadU(tag, src + i + step)), tag, dst + i / 2);
}

}  // namespace ferry::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ferry::bench {

HWY_EXPORT(half_copy_bytes);

void half_copy(void* dst, const void* src, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(half_copy_bytes)
  (static_cast<std::uint8_t*>(dst), static_cast<const std::uint8_t*>(src), bytes);
}

}  // namespace ferry::bench
#endif
