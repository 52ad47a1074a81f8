#include "simulator/fiber.h"

#include <cxxabi.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace ferry::test {

namespace {

#if defined(__SANITIZE_ADDRESS__)
void start_switch(void** keep, const void* stack, std::size_t bytes) {
  __sanitizer_start_switch_fiber(keep, stack, bytes);
}
void finish_switch(void* kept, const void** from, std::size_t* bytes) {
  __sanitizer_finish_switch_fiber(kept, from, bytes);
}
#else
void start_switch(void**, const void*, std::size_t) {}
void finish_switch(void*, const void**, std::size_t*) {}
#endif

// Stacks are used again, because their pages are already mapped.
std::vector<std::byte*>& spare_stacks() {
  static std::vector<std::byte*> spare;
  return spare;
}

std::byte* take_stack(std::size_t bytes) {
  if (!spare_stacks().empty()) {
    std::byte* const stack = spare_stacks().back();
    spare_stacks().pop_back();
    return stack;
  }
  void* const stack = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(stack);
}

}  // namespace

void Fiber::Unmap::operator()(std::byte* stack) const noexcept { spare_stacks().push_back(stack); }

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(take_stack(kStackBytes)) {
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_.get();
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&inside_, reinterpret_cast<void (*)()>(&begin), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
}

void Fiber::begin(unsigned high, unsigned low) {
  auto* const self = reinterpret_cast<Fiber*>((std::uintptr_t{high} << 32) | std::uintptr_t{low});
  finish_switch(nullptr, &self->outside_stack_, &self->outside_bytes_);
  self->body_();
  self->done_ = true;
  self->switch_exceptions();
  start_switch(nullptr, self->outside_stack_, self->outside_bytes_);
  swapcontext(&self->inside_, &self->outside_);  // never returns
}

void Fiber::resume() {
  switch_exceptions();
  void* fake_stack = nullptr;
  start_switch(&fake_stack, stack_.get(), kStackBytes);
  swapcontext(&outside_, &inside_);
  finish_switch(fake_stack, nullptr, nullptr);
}

void Fiber::leave() {
  switch_exceptions();
  start_switch(&fake_stack_, outside_stack_, outside_bytes_);
  swapcontext(&inside_, &outside_);
  finish_switch(fake_stack_, &outside_stack_, &outside_bytes_);
}

void Fiber::switch_exceptions() noexcept {
  auto* const mine = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  std::swap(*mine, other_);
}

}  // namespace ferry::test
