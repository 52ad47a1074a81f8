// Member: the side of every rank but the lowest in the collectives of processes. It finds the
// coordinator, then exchanges frames with it alone. Owns one connection.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/collectives.h"
#include "bootstrap/connection.h"

namespace ferry::internal {

class Member final : public Collectives {
 public:
  // Connects until the coordinator accepts this rank. Throws Error with the coordinator's reason
  // when it does not.
  Member(const Roster& roster, Deadline deadline);

 private:
  std::vector<std::string> gather(std::uint32_t call, std::string_view mine,
                                  Deadline deadline) override;
  std::optional<Descriptor> pass(std::uint32_t call, const Handouts& handouts,
                                 Deadline deadline) override;
  void watch() override;
  [[noreturn]] void fail(const Error& error) override;

  bool try_to_join(const Roster& roster, Deadline deadline);
  void throw_if_lost(const Roster& roster);
  Error coordinator_lost() const;
  std::optional<Frame> await_welcome(const Roster& roster, Deadline deadline);
  // True when the kernel, or a proof of the secret, shows that the other end may be the
  // coordinator.
  bool greet_on_host(const Roster& roster);
  bool greet_with_proof(const Roster& roster, Deadline deadline);
  // The coordinator's reply. When it is late, this rank sends its timeout to the coordinator, whose
  // reply names the missing ranks and is thrown.
  Frame await(FrameKind kind, std::uint32_t call, Deadline deadline);
  std::optional<Frame> next_frame(Deadline deadline);
  // The frame; nullopt when the coordinator closed the connection.
  std::optional<Frame> frame_or_verdict(Deadline deadline, const std::string& awaited);

  int rank_, coordinator_;
  std::size_t size_;
  std::unique_ptr<Connection> connection_;
  std::string who_;                  // the coordinator, for messages: "pid 12, host a"
  std::string seen_;                 // the process at the endpoint, for the message of a timeout
  std::string unreached_;            // why there is no connection
  std::optional<Deadline> hung_up_;  // after the coordinator closed: when another must be found
  LocalRanks local_ranks_;
};

}  // namespace ferry::internal
