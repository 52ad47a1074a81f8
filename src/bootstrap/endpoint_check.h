// The coordinator ("rank 0" here, as in endpoint.h) uses this to check its own endpoint if ranks
// are late: whether the address leads to this process, and whether another process is rank 0 of the
// same group.
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

// Whether both hellos are of one process.
bool is_same_process(const Hello& a, const Hello& b);

// Listens. While another process holds the endpoint, such as rank 0 of an earlier group, this tries
// again until the deadline, and then throws Error. If that process is rank 0 of the same group,
// this throws soon after kAfter, because that process refuses this rank 0 and all of its ranks.
Descriptor listen_patiently(const Roster& roster, Deadline deadline);

// Checks a TCP endpoint while its owner waits for connections: its address may lead to another
// process. A Unix socket needs no check, since only one process can listen at its name.
class EndpointCheck {
 public:
  explicit EndpointCheck(const Roster& roster);
  ~EndpointCheck();
  EndpointCheck(const EndpointCheck&) = delete;
  EndpointCheck& operator=(const EndpointCheck&) = delete;

  // Returns the problem, if there is one: another rank 0 listens, or the address has led to no
  // listener for kPatience. A name server or a service may know a new host only after some seconds.
  // The first call after kAfter starts a thread that checks.
  std::optional<Error> problem();

  // Ranks that are late by kAfter may be using another address, or another rank 0.
  static constexpr std::chrono::seconds kAfter{1}, kPatience{10};

 private:
  void look_until_stopped() noexcept;

  const Roster roster_;
  const std::string addresses_;  // the addresses of this host
  const Deadline begin_ = Deadline::after(kAfter);
  // Relaxed, since it is only a hint; join() orders all other data.
  std::atomic<bool> stop_ = false;
  const std::function<bool()> stopped_ = [this] { return stop_.load(std::memory_order_relaxed); };
  std::mutex mutex_;
  std::optional<Error> problem_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace ferry::internal
