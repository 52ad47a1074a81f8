// Member: the side of every rank but the lowest in the collectives of processes. It finds the
// coordinator, then talks to it alone. Owns one connection. Called through Collectives; calls
// Connection, Endpoint and Hello.
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
  // Tries until the coordinator lets this rank in. Throws Error with its reason when it does not.
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
  // Whether the kernel, or a proof of the secret, says that the coordinator may be at the other
  // end.
  bool greet_on_host(const Roster& roster);
  bool greet_with_proof(const Roster& roster, Deadline deadline);
  // The coordinator's answer. When it is late, the coordinator is asked who is missing; its verdict
  // is thrown.
  Frame await(FrameKind kind, std::uint32_t call, Deadline deadline);
  std::optional<Frame> next_frame(Deadline deadline);
  // The frame, or nothing when the coordinator hung up.
  std::optional<Frame> frame_or_verdict(Deadline deadline, const std::string& awaited);

  int rank_, coordinator_;
  std::size_t size_;
  std::unique_ptr<Connection> connection_;
  std::string who_;                  // the coordinator, for messages: "pid 12, host a"
  std::string seen_;                 // what was met at the endpoint, for the message of a deadline
  std::string unreached_;            // why nobody was
  std::optional<Deadline> hung_up_;  // the coordinator did; by when another must be found
  LocalRanks local_ranks_;
};

}  // namespace ferry::internal
