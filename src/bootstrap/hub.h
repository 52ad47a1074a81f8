// Hub: rank 0's side of every collective of processes. It gathers from all and answers to all.
// Owns one connection to each rank for the life of the group. Called by star.cc; calls meeting.h
// and Connection.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bootstrap/connection.h"
#include "bootstrap/meeting.h"
#include "bootstrap/party.h"

namespace ferry::internal {

class Hub {
 public:
  Hub(const Party& party, Deadline deadline);

  // The text that every rank sent for this call, by seat; `mine` is rank 0's. When a rank is lost,
  // gives up or does not come, all others are told the Error that is thrown.
  std::vector<std::string> gather(std::uint32_t call, std::string mine, Deadline deadline);

  // The same frame to every rank, each with the descriptor of its seat if there are any. A rank
  // that is lost meanwhile is found by the next gather.
  void answer(Kind kind, std::uint32_t call, std::string payload,
              const std::vector<std::shared_ptr<const Descriptor>>& passed, Deadline deadline);

 private:
  struct Gathering;

  [[noreturn]] void fail(Code code, const std::string& text);
  void hear(std::size_t seat, Gathering& gathering);
  std::vector<Connection*> connections() const;
  std::string name(std::size_t seat) const;
  template <typename Which>
  std::string rank_list_of(const Which& which) const;

  std::vector<int> ranks_;
  std::vector<Member> members_;  // by seat; rank 0's is empty
};

}  // namespace ferry::internal
