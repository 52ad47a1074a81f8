// Await: what a rank waits for, said once. The loop itself is GroupState::wait (wait.cc).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferry::internal {

// Flags of all ranks, one per rank at a fixed stride. Up when the flag is >= value.
struct Await {
  const char* operation;  // "dispatch", "combine", "barrier", ...
  std::uint64_t number;   // of the operation
  const char* phase;      // "counts", "growth", "reuse", "rows", "outputs"
  const std::atomic<std::uint64_t>* flags;
  std::size_t stride_bytes;
  std::uint64_t value;
  std::chrono::nanoseconds limit;                // the deadline, from the start of the wait
  bool crowded;                                  // more threads than processors: yield early
  const std::vector<bool>* only = nullptr;       // wait for these ranks; null: for all
  std::vector<std::int64_t>* wait_ns = nullptr;  // [R] += time waited for each rank
  // [R] of several nodes: the rank that passes each rank's flag on to this node (ForwardingTable);
  // null: the rank itself.
  const std::vector<int>* last_hop = nullptr;
  // Raised here when what this rank sent has ended, which it does too towards a rank that is gone.
  bool outgoing = false;
  // Giving up is an answer: the group stays whole, and those that are gone do not end the wait for
  // the others.
  bool patient = false;

  const std::atomic<std::uint64_t>& flag(int rank) const noexcept {
    return *reinterpret_cast<const std::atomic<std::uint64_t>*>(
        reinterpret_cast<const std::byte*>(flags) + rank * stride_bytes);
  }
  // Acquire: what the rank published before it raised the flag is visible afterwards. Partner:
  // raise().
  bool up(int rank) const noexcept {
    return (only && !(*only)[rank]) || flag(rank).load(std::memory_order_acquire) >= value;
  }
};

// Raises a flag of mine. Sequentially consistent, so that a rank that announced its sleep before it
// looked at the flag is seen by the ring() that follows (partner: GroupState::sleep_until_rung).
inline void raise(std::atomic<std::uint64_t>& flag, std::uint64_t value) noexcept {
  flag.exchange(value, std::memory_order_seq_cst);
}

}  // namespace ferry::internal
