// Spoke: the side of ranks 1, 2, ... of the rendezvous of processes. It finds rank 0, then talks to
// it alone. Owns one connection. Called by star.cc; calls Connection, Door and Hello.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "bootstrap/connection.h"
#include "bootstrap/party.h"

namespace ferry::internal {

class Spoke {
 public:
  // Tries until rank 0 lets this rank in. Throws Error with rank 0's reason when it does not.
  Spoke(const Party& party, Deadline deadline);

  void say(std::uint32_t call, std::string_view text);

  // Rank 0's answer. When it is late, rank 0 is asked who is missing; its verdict is thrown.
  Frame await(Kind kind, std::uint32_t call, Deadline deadline);

 private:
  bool try_to_join(const Party& party, Deadline deadline);
  // Whether the kernel, or a proof of the secret, says that rank 0 may be at the other end.
  bool greet_on_host(const Party& party);
  bool greet_with_proof(const Party& party, Deadline deadline);
  std::optional<Frame> next_frame(Deadline deadline);
  // The frame, or nothing when rank 0 hung up.
  std::optional<Frame> frame_or_verdict(Deadline deadline, const std::string& awaited);

  int rank_, hub_;
  std::unique_ptr<Connection> connection_;
  std::string who_;        // rank 0, for messages: "pid 12, host a"
  std::string seen_;       // what was met at the door, for the message of a deadline
  std::string unreached_;  // why nobody was
};

}  // namespace ferry::internal
