// Forks: a child of a process that is in a group must not touch the group's memory. What the child
// inherits is neither usable nor ever destroyed there.
#pragma once

#include <utility>

namespace ferry::python {

// Counts the forks that this process descends from, since the module was loaded.
int fork_generation() noexcept;

// A value of this process alone: in a forked child it is left as it is for ever.
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
    mutable T value_;  // its destructor runs above, or never
  };
  int generation_;
};

}  // namespace ferry::python
