// Member: the side of every rank but the coordinator in the collectives of processes. It finds the
// coordinator, and exchanges frames with it over one connection.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/collectives.h"
#include "bootstrap/connection.h"
#include "bootstrap/tcp.h"

namespace ferry::internal {

class Member final : public BootstrapCollectives {
 public:
  // Connects until the coordinator accepts this rank. If the coordinator refuses it, throws Error
  // with the coordinator's reason.
  Member(const Roster& roster, Deadline deadline);
  std::string local_address() const override { return local_address_of(connection_->socket()); }

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
  std::string coordinator_name() const;
  std::optional<Frame> await_welcome(const Roster& roster, Deadline deadline);
  // Returns true if the kernel, or a proof of the secret, shows that the other end may be the
  // coordinator.
  bool greet_on_host(const Roster& roster);
  bool greet_with_proof(const Roster& roster, Deadline deadline);
  // Waits for the coordinator's reply. If the reply is late, this rank sends its timeout to the
  // coordinator. The coordinator's reply to that names the missing ranks, and is thrown.
  Frame await(FrameKind kind, std::uint32_t call, Deadline deadline);
  std::optional<Frame> next_frame(Deadline deadline);
  // Returns the frame, or nullopt if the coordinator closed the connection.
  std::optional<Frame> frame_or_verdict(Deadline deadline, const std::string& awaited,
                                        std::uint32_t gather = 0);

  int rank_, coordinator_;
  std::size_t size_;
  std::unique_ptr<Connection> connection_;
  std::string who_;        // the coordinator's process, for messages: "pid 12, host a"
  std::string seen_;       // the process at the endpoint, for the message of a timeout
  std::string unreached_;  // why there is no connection
  // Set when a coordinator that had accepted this rank has closed the connection: by then another
  // coordinator must be found.
  std::optional<Deadline> hung_up_;
  LocalRanks local_ranks_;
};

}  // namespace ferry::internal
