// Coordinator: the side of the first rank of a roster in every collective of processes. It gathers
// from all members and replies to all, in one thread, and does not block on any of them. It keeps a
// connection to each member as long as it lives.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/acceptor.h"
#include "bootstrap/collectives.h"
#include "bootstrap/connection.h"

namespace ferry::internal {

class Coordinator final : public BootstrapCollectives {
 public:
  // Accepts the members. A roster of one rank needs no endpoint.
  Coordinator(const Roster& roster, Deadline deadline);
  std::string local_address() const override;

 private:
  // The texts of the members for the next gather.
  struct Gathering {
    std::uint32_t call = 0;
    std::vector<std::string> texts;  // by place
    std::vector<bool> came;
  };

  // If a rank is lost, gives up or is missing at the deadline, all others receive the Error that
  // this throws.
  std::vector<std::string> gather(std::uint32_t call, std::string_view mine,
                                  Deadline deadline) override;
  std::optional<Descriptor> pass(std::uint32_t call, const Handouts& handouts,
                                 Deadline deadline) override;
  void watch() override;
  [[noreturn]] void fail(const Error& error) override;

  // Sends the same frame to every member, each with its handout if there are any. If a member is
  // lost meanwhile, the next gather finds out.
  void reply(FrameKind kind, std::uint32_t call, std::string payload, const Handouts& handouts,
             Deadline deadline);
  void take_from(std::size_t place);
  void gather_next(std::uint32_t call);
  std::vector<Connection*> connections() const;
  template <typename Which>
  std::vector<int> ranks_where(const Which& which) const;

  std::vector<int> ranks_;
  std::vector<Peer> members_;  // by place; the entry of the coordinator is empty
  Gathering gathering_;
};

}  // namespace ferry::internal
