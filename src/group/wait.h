// Await describes the flags that a rank waits for, CallTime the time limit. The loop itself is
// GroupState::wait (wait.cc).
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "network/message_channel.h"

namespace ferry::internal {

// The deadline of one call, which all of its waits share. A wait looks at it every few
// milliseconds; the time begins with the first look. The time between two looks counts for at most
// kLongestLookNs, and at most half of the limit: if it was longer, this rank did not run (it was
// stopped, maybe with all others), or it moved rows.
class CallTime {
 public:
  explicit CallTime(std::chrono::nanoseconds limit) noexcept
      : limit_(limit), remaining_ns_(limit.count()) {}

  bool passed() noexcept { return passed(now_ns()); }
  bool passed(std::int64_t now) noexcept {
    if (looked_ns_ == 0) looked_ns_ = now;
    remaining_ns_ -= std::min({now - looked_ns_, kLongestLookNs, limit_.count() / 2});
    looked_ns_ = now;
    return remaining_ns_ <= 0;
  }
  std::chrono::nanoseconds limit() const noexcept { return limit_; }
  std::chrono::nanoseconds remaining() const noexcept {
    return std::chrono::nanoseconds(remaining_ns_);
  }

 private:
  static constexpr std::int64_t kLongestLookNs = 100'000'000;  // 50 times the longest sleep

  std::chrono::nanoseconds limit_;
  std::int64_t remaining_ns_;
  std::int64_t looked_ns_ = 0;  // 0: not yet
};

// Counts a call that waits (Survival::num_calls), from begin() to its end. Relaxed: survive() in
// another thread may or may not see a call that the program makes beside it; those that make
// objects count themselves (Making).
class CountedWait {
 public:
  explicit CountedWait(std::atomic<int>& num_calls) noexcept : num_calls_(num_calls) {}
  ~CountedWait() {
    if (counted_) num_calls_.fetch_sub(1, std::memory_order_relaxed);
  }
  CountedWait(const CountedWait&) = delete;
  CountedWait& operator=(const CountedWait&) = delete;
  void begin() noexcept {
    if (!counted_) num_calls_.fetch_add(1, std::memory_order_relaxed);
    counted_ = true;
  }

 private:
  std::atomic<int>& num_calls_;
  bool counted_ = false;
};

// Flags of all ranks, one per rank at a fixed stride. Up when the flag is >= value.
struct Await {
  const char* operation;  // "dispatch", "combine", "barrier", ...
  std::uint64_t number;   // number of the operation
  const char* phase;      // "counts", "growth", "reuse", "rows", "outputs"
  const std::atomic<std::uint64_t>* flags;
  std::size_t stride_bytes;
  std::uint64_t value;
  CallTime* time;                                // deadline of the call
  bool crowded;                                  // more threads than processors: yield early
  int per_call = 0;                              // how much one call raises a flag; 0: unknown
  const std::vector<bool>* only = nullptr;       // wait for these ranks; null: for all
  std::vector<std::int64_t>* wait_ns = nullptr;  // [R] += time waited for each rank
  // [R] of several nodes: the rank that passes each rank's flag on to this node (ForwardingTable);
  // null: the rank itself.
  const std::vector<int>* last_hop = nullptr;
  // [R] For a wait until messages have been sent: the messages to each rank so far. Messages to a
  // rank that is gone count as sent. Null: another kind of wait.
  const std::vector<MessageChannel::Traffic>* outgoing = nullptr;
  // [R] The ranks that this rank needs. While a flag is missing, a needed rank that is gone breaks
  // the group, even if its own flag is up; a rank that is gone and not needed ends no wait. A late
  // rank, needed or not, gives kTimeout, and the group stays usable. Null: all awaited ranks are
  // needed, and a late one breaks the group.
  const std::vector<bool>* needed = nullptr;
  // Work that this rank can do while flags are missing. Called where it would sleep: by then all
  // other ranks on this processor have had their turn. Returns the nanoseconds that it took, which
  // do not count as waiting; 0: there was nothing to do.
  const std::function<std::int64_t()>* meanwhile = nullptr;

  const std::atomic<std::uint64_t>& flag(int rank) const noexcept {
    return *reinterpret_cast<const std::atomic<std::uint64_t>*>(
        reinterpret_cast<const std::byte*>(flags) + rank * stride_bytes);
  }
  bool patient() const noexcept { return needed != nullptr; }
  // Acquire: what the rank published before it raised the flag is visible afterwards. Partner:
  // raise().
  bool up(int rank) const noexcept {
    return (only && !(*only)[rank]) || flag(rank).load(std::memory_order_acquire) >= value;
  }
};

// Raises a flag of this rank. Sequentially consistent, so that a rank that announced its sleep
// before it looked at the flag is seen by the ring() that follows (partner:
// GroupState::sleep_until_rung).
inline void raise(std::atomic<std::uint64_t>& flag, std::uint64_t value) noexcept {
  flag.exchange(value, std::memory_order_seq_cst);
}

// The same for a flag that other ranks may raise too: the largest value is kept.
inline void raise_to(std::atomic<std::uint64_t>& flag, std::uint64_t value) noexcept {
  std::uint64_t seen = flag.load(std::memory_order_relaxed);
  while (seen < value && !flag.compare_exchange_weak(seen, value, std::memory_order_seq_cst)) {
  }
}

}  // namespace ferry::internal
