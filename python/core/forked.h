// Forks: a forked child must not touch the memory of a group of its parent. The child can neither
// use an inherited Kept value nor destroy it.
#pragma once

#include <utility>

namespace ferry::python {

// The number of forks between the process that loaded the module and this process.
int fork_generation() noexcept;

// A value of this process. In a forked child its destructor does not run.
template <typename T>
class Kept {
 public:
  explicit Kept(T value) : value_(std::move(value)), generation_(fork_generation()) {}
  ~Kept() {
    if (mine()) value_.~T();
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  bool mine() const noexcept { return generation_ == fork_generation(); }
  T& operator*() const noexcept { return value_; }
  T* operator->() const noexcept { return &value_; }

 private:
  union {
    mutable T value_;  // a union member, so that only ~Kept destroys it
  };
  int generation_;
};

}  // namespace ferry::python
