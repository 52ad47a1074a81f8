#include "core/forked.h"

#include <pthread.h>

#include <atomic>

namespace ferry::python {

namespace {

std::atomic<int> forks{0};  // one writer: the child's only thread, before anything else runs

[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] {
  forks.store(forks.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
});

}  // namespace

int fork_generation() noexcept { return forks.load(std::memory_order_relaxed); }

}  // namespace ferry::python
