// Makes the memory mappings of the bench; see memory.h.
#include "tools/bench/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace ferry::bench {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;

}  // namespace

Mapping::Mapping(std::size_t bytes, Kind kind) {
  bytes_ = (std::max<std::size_t>(bytes, 1) + kHugePage - 1) / kHugePage * kHugePage;
  const int flags =
      (kind == Kind::kShared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_NORESERVE;
  // The mapping has one huge page more, so that its begin can be aligned. Both ends are unmapped
  // afterwards.
  void* const room = mmap(nullptr, bytes_ + kHugePage, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(room);
  const std::size_t before =
      (kHugePage - reinterpret_cast<std::uintptr_t>(room) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes_, kHugePage - before);
  data_ = begin + before;
  if (kind == Kind::kPrivate)
    madvise(data_, bytes_, MADV_HUGEPAGE);  // only a hint: small pages work as well
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

void touch(std::byte* data, std::size_t bytes) noexcept {
  for (std::size_t at = 0; at < bytes; at += kPage) {
    // Only the write itself matters, since it makes the page exist. The bytes are zero already.
    *reinterpret_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
}

}  // namespace ferry::bench
