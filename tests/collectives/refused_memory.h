// RefusedMemory: while it lives, this thread gets a few more blocks of memory, and then none.
#pragma once

namespace ferry::test {

class RefusedMemory {
 public:
  explicit RefusedMemory(int blocks) noexcept;  // that this thread still gets
  ~RefusedMemory();
  RefusedMemory(const RefusedMemory&) = delete;
  RefusedMemory& operator=(const RefusedMemory&) = delete;
};

}  // namespace ferry::test
