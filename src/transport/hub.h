// Hub: rank 0's side of every collective of processes. It gathers from all and answers to all.
// Owns one connection to each rank for the life of the group. Called by processes.cc; calls
// meeting.h and Connection.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/connection.h"
#include "transport/hello.h"

namespace ferry::internal {

class Hub {
 public:
  Hub(const Hello& self, Deadline deadline);

  // Process ids, in rank order.
  std::vector<pid_t> pids() const;

  // The text that every rank sent for this call, in rank order; `mine` is rank 0's. When a rank is
  // lost, gives up or does not come, all others are told the Error that is thrown.
  std::vector<std::string> gather(std::uint32_t call, std::string mine, Deadline deadline);

  // The same frame to every rank. A rank that is lost meanwhile is found by the next gather.
  void answer(Kind kind, std::uint32_t call, std::string payload,
              const std::shared_ptr<const Descriptor>& passed, Deadline deadline);

 private:
  struct Gathering;

  [[noreturn]] void fail(Code code, const std::string& text);
  void hear(int rank, Gathering& gathering);
  std::vector<Connection*> connections() const;

  std::vector<std::unique_ptr<Connection>> members_;  // by rank; rank 0's is null
};

}  // namespace ferry::internal
