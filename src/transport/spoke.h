// Spoke: the side of ranks 1, 2, ... of the rendezvous of processes. It finds rank 0, then talks to
// it alone. Owns one connection. Called by processes.cc; calls Connection and Hello.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "transport/connection.h"
#include "transport/hello.h"

namespace ferry::internal {

class Spoke {
 public:
  // Tries until rank 0 lets this rank in. Throws Error with rank 0's reason when it does not.
  Spoke(const Hello& self, Deadline deadline);

  // Process ids, in rank order.
  const std::vector<pid_t>& pids() const noexcept { return pids_; }

  void say(std::uint32_t call, std::string_view text);

  // Rank 0's answer. When it is late, rank 0 is asked who is missing; its verdict is thrown.
  Frame await(Kind kind, std::uint32_t call, Deadline deadline);

 private:
  bool try_to_join(const Hello& self, const std::string& name, Deadline deadline);
  std::optional<Frame> next_frame(Deadline deadline);
  // The frame, or nothing when rank 0 hung up.
  std::optional<Frame> frame_or_verdict(Deadline deadline, const std::string& awaited);

  int rank_;
  std::unique_ptr<Connection> connection_;
  std::vector<pid_t> pids_;
  std::string seen_;  // what was met at the address, for the message of a deadline
};

}  // namespace ferry::internal
