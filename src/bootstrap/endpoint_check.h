// Rank 0's looks at its own endpoint, once ranks are late: whether the address leads to itself, and
// whether another process is rank 0 of the same group.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "bootstrap/collectives.h"
#include "ferry/status.h"

namespace ferry::internal {

// True when both hellos are of one process.
bool is_same_process(const Hello& a, const Hello& b);

// Waits until the deadline for the listener of an earlier group to close. Throws Error; at once
// where another rank 0 of this group listens, which then refuses all its ranks.
Descriptor listen_patiently(const Roster& roster, Deadline deadline);

// Looks at a TCP endpoint while its owner waits for connections; a Unix socket cannot be another's.
class EndpointCheck {
 public:
  explicit EndpointCheck(const Roster& roster);
  ~EndpointCheck();
  EndpointCheck(const EndpointCheck&) = delete;
  EndpointCheck& operator=(const EndpointCheck&) = delete;

  // Another rank 0, or an address that has not led anywhere for kPatience: a name server or a
  // service may know a new host only after some seconds. The first call after kAfter starts a
  // thread that looks.
  std::optional<Error> problem();

  // Ranks that are late by kAfter may be at another address, or with another rank 0.
  static constexpr std::chrono::seconds kAfter{1}, kPatience{10};

 private:
  void look_until_stopped() noexcept;

  const Roster roster_;
  const std::string addresses_;  // of this host
  const Deadline begin_ = Deadline::after(kAfter);
  std::atomic<bool> stop_ = false;  // relaxed: a hint; join() orders everything else
  const std::function<bool()> stopped_ = [this] { return stop_.load(std::memory_order_relaxed); };
  std::mutex mutex_;
  std::optional<Error> problem_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace ferry::internal
