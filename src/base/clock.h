// Deadlines. They count the time in which this process ran (waiting.h).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>

#include "base/waiting.h"
#include "ferry/status.h"

namespace ferry::internal {

// A point in time by which a wait ends; the wait ends earlier when `interrupted` returns true.
// `interrupted` may be null or empty, and must outlive the deadline.
class Deadline {
 public:
  static constexpr int kLongestSleepMs = kLongestLookNs / 2'000'000;

  static Deadline after(std::chrono::nanoseconds span,
                        const std::function<bool()>* interrupted = nullptr) noexcept {
    return Deadline(running_ns() + span.count(), interrupted, nullptr);
  }
  bool passed() const noexcept { return running_ns() >= at_ns_ || interrupted(); }
  bool interrupted() const noexcept { return interrupted_ && *interrupted_ && (*interrupted_)(); }
  // This deadline, or `span` from now if that is earlier.
  Deadline earlier(std::chrono::nanoseconds span) const noexcept {
    return Deadline(std::min(at_ns_, running_ns() + static_cast<std::int64_t>(span.count())),
                    interrupted_, look_);
  }
  // The same deadline, with a function that waits call while ranks meet. An Error that `look`
  // throws ends the wait of all ranks.
  Deadline looking(const std::function<void()>& look) const noexcept {
    return Deadline(at_ns_, interrupted_, &look);
  }
  // A deadline `span` after this one, or after now if this one has not passed but is interrupted.
  // It cannot be interrupted itself. So waits that follow each other end by the same time.
  Deadline extended(std::chrono::nanoseconds span) const noexcept {
    return Deadline(std::min(at_ns_, running_ns()) + span.count(), nullptr, look_);
  }
  // Calls the function that looking() has set. If it throws an Error, calls `fail` with that.
  void look(const auto& fail) const {
    try {
      if (look_ != nullptr) (*look_)();
    } catch (const Error& error) {
      fail(error);
    }
  }
  std::int64_t remaining_ns() const noexcept { return at_ns_ - running_ns(); }
  // The remaining time for poll(2), rounded up, never negative, and at most `cap_ms`. It is at most
  // kLongestSleepMs, because running_ns() counts only a part of a longer sleep.
  int remaining_ms(int cap_ms = kLongestSleepMs) const noexcept {
    const std::int64_t ms = (remaining_ns() + 999'999) / 1'000'000;
    return static_cast<int>(
        std::clamp<std::int64_t>(ms, 0, std::min<std::int64_t>(cap_ms, kLongestSleepMs)));
  }

 private:
  Deadline(std::int64_t at_ns, const std::function<bool()>* interrupted,
           const std::function<void()>* look) noexcept
      : at_ns_(at_ns), interrupted_(interrupted), look_(look) {}

  std::int64_t at_ns_;
  const std::function<bool()>* interrupted_;
  const std::function<void()>* look_;
};

}  // namespace ferry::internal
