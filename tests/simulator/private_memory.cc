#include "simulator/private_memory.h"

#include <array>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "simulator/simulation.h"

namespace {

constexpr int kMostRanks = 65536;
constexpr std::size_t kHeadBytes = 16;

std::array<std::int64_t, kMostRanks> bytes_of_rank;

// In front of each block.
struct Head {
  std::size_t bytes;
  int rank;
};
static_assert(sizeof(Head) <= kHeadBytes);

void* allocate(std::size_t bytes, std::size_t align) {
  const std::size_t before = align > kHeadBytes ? align : kHeadBytes;
  const std::size_t all = (before + bytes + before - 1) / before * before;
  auto* const block = static_cast<std::byte*>(std::aligned_alloc(before, all));
  if (block == nullptr) throw std::bad_alloc();
  std::byte* const memory = block + before;
  const int rank = ferry::test::Simulation::running_rank();
  new (memory - kHeadBytes) Head{bytes, rank};
  if (rank >= 0) bytes_of_rank[static_cast<std::size_t>(rank)] += static_cast<std::int64_t>(bytes);
  return memory;
}

void release(void* memory, std::size_t align) noexcept {
  if (memory == nullptr) return;
  auto* const bytes = static_cast<std::byte*>(memory);
  const Head head = *reinterpret_cast<Head*>(bytes - kHeadBytes);
  if (head.rank >= 0)
    bytes_of_rank[static_cast<std::size_t>(head.rank)] -= static_cast<std::int64_t>(head.bytes);
  std::free(bytes - (align > kHeadBytes ? align : kHeadBytes));
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, kHeadBytes); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return allocate(bytes, static_cast<std::size_t>(align));
}
void operator delete(void* memory) noexcept { release(memory, kHeadBytes); }
void operator delete(void* memory, std::size_t) noexcept { release(memory, kHeadBytes); }
void operator delete(void* memory, std::align_val_t align) noexcept {
  release(memory, static_cast<std::size_t>(align));
}
void operator delete(void* memory, std::size_t, std::align_val_t align) noexcept {
  release(memory, static_cast<std::size_t>(align));
}

namespace ferry::test {

std::int64_t allocated_bytes(int rank) { return bytes_of_rank[static_cast<std::size_t>(rank)]; }
void forget_allocations() { bytes_of_rank = {}; }

}  // namespace ferry::test
