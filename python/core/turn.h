// Objects that Python closes, and that one thread at a time may call.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "core/errors.h"
#include "core/forked.h"

namespace ferry::python {

// A value that close() releases. A running call keeps it alive.
template <typename T>
class Closable {
 public:
  // `name`: that of the object, for errors.
  Closable(std::shared_ptr<T> value, const char* name)
      : kept_(std::make_shared<Kept<std::shared_ptr<T>>>(std::move(value))), name_(name) {}

  // Throws Error(kClosed) after close(), and in a forked child.
  std::shared_ptr<T> get() const {
    if (!kept_->mine())
      throw Error(Code::kClosed,
                  fmt::format("this process was forked after the {} was made", name_));
    if (!**kept_) throw Error(Code::kClosed, fmt::format("this {} was closed", name_));
    return **kept_;
  }
  void close() const {
    if (kept_->mine()) (**kept_).reset();
  }
  const char* name() const noexcept { return name_; }

 private:
  std::shared_ptr<Kept<std::shared_ptr<T>>> kept_;
  const char* name_;
};

// Lets one thread at a time call a value, which has a flag `busy`. Refuses a second thread. A value
// whose calls are of two kinds, each for one thread, has two flags.
template <typename T>
class Turn {
 public:
  explicit Turn(const Closable<T>& object, std::atomic<bool> T::*busy = &T::busy)
      : held_(object.get()), busy_((*held_).*busy) {
    if (busy_.exchange(true, std::memory_order_acquire))
      refuse(
          "another thread is in a call of this {0}: one caller at a time (or one {0} per thread)",
          object.name());
  }
  ~Turn() {
    busy_.store(false, std::memory_order_release);  // partner: the constructor
    // Last, as it may run code of Python, which may call this value.
    if constexpr (requires(T & value) { value.look(); }) held_->look();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  T& operator*() const noexcept { return *held_; }
  T* operator->() const noexcept { return held_.get(); }

 private:
  std::shared_ptr<T> held_;
  std::atomic<bool>& busy_;
};

}  // namespace ferry::python
