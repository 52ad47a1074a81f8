#include "collectives/refused_memory.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

constexpr int kNoLimit = -1;
thread_local int blocks_left = kNoLimit;
thread_local bool refuses_once = false;

}  // namespace

void* operator new(std::size_t bytes) {
  if (blocks_left == 0) {
    if (refuses_once) blocks_left = kNoLimit;
    throw std::bad_alloc();
  }
  if (blocks_left > 0) --blocks_left;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
// Its memory comes from malloc too, as operator delete below expects.
void* operator new(std::size_t bytes, const std::nothrow_t& /*nothrow*/) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace ferry::test {

RefusedMemory::RefusedMemory(int blocks, bool once) noexcept {
  blocks_left = blocks;
  refuses_once = once;
}
RefusedMemory::~RefusedMemory() { blocks_left = kNoLimit; }

}  // namespace ferry::test
