// Fiber: a function with its own stack, which can be suspended and resumed. All fibers run on one
// thread.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace ferry::test {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Called outside of the fiber: runs it until it calls leave(), or its body ends.
  void resume();
  // Called inside the fiber: suspends it.
  void leave();
  bool done() const noexcept { return done_; }

 private:
  // What the C++ runtime keeps for each thread: the exceptions that are being handled.
  struct Exceptions {
    void* caught;
    unsigned uncaught;
  };
  struct Unmap {
    void operator()(std::byte* stack) const noexcept;
  };
  static constexpr std::size_t kStackBytes = std::size_t{1} << 20;

  static void begin(unsigned high, unsigned low);
  void switch_exceptions() noexcept;

  std::function<void()> body_;
  std::unique_ptr<std::byte, Unmap> stack_;
  ucontext_t inside_ = {}, outside_ = {};
  Exceptions other_ = {};  // of the side that does not run
  bool done_ = false;
  void* fake_stack_ = nullptr;  // AddressSanitizer's, of the side that does not run
  const void* outside_stack_ = nullptr;
  std::size_t outside_bytes_ = 0;
};

}  // namespace ferry::test
