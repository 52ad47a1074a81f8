// RefusedMemory: while it lives, this thread gets a few more blocks of memory, and then none, or
// all but the next one.
#pragma once

namespace ferry::test {

class RefusedMemory {
 public:
  // `blocks`: those that this thread still gets. `once`: only one block is refused.
  explicit RefusedMemory(int blocks, bool once = false) noexcept;
  ~RefusedMemory();
  RefusedMemory(const RefusedMemory&) = delete;
  RefusedMemory& operator=(const RefusedMemory&) = delete;
};

}  // namespace ferry::test
