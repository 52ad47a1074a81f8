// How a rank ends the process of another one that survive() cannot leave behind.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "group/state.h"

namespace ferry::internal {

namespace {

// The pause between two looks at a process that has the signal.
constexpr std::chrono::milliseconds kFencePause{1};

// Why `rank` may not be ended; empty: it may.
std::string reason_against(const GroupState& group, int rank, int pid) {
  const std::vector<int>& members = group.view().members;
  if (!std::ranges::count(members, rank))
    return fmt::format("view {} has ranks {}", group.view().number, fmt::join(members, ", "));
  if (rank == group.rank()) return "it is this rank";
  if (group.usable()) return "the group is usable, so no rank has died or missed a deadline";
  if (pid == 0) return "it is of another host, where this rank cannot end it";
  if (pid == getpid()) return "it is a thread of this process";
  return {};
}

}  // namespace

Status fence(GroupState& group, int rank) noexcept {
  Rendezvous& ranks = group.rendezvous();
  const int pid = rank >= 0 && rank < group.size() ? ranks.pid(rank) : 0;
  if (const std::string reason = reason_against(group, rank, pid); !reason.empty())
    return {Code::kInvalidArgument, fmt::format("fence: rank {}: {}", rank, reason), group.rank()};
  const std::string name = group.name_of(rank);
  if (const int error = ranks.kill(rank); error != 0 && error != ESRCH) {
    return {Code::kSystem, fmt::format("fence: {} cannot be ended: {}", name, std::strerror(error)),
            rank};
  }
  const Deadline by = group.deadline();
  while (ranks.alive(rank)) {
    if (by.passed())
      return {Code::kTimeout, fmt::format("fence: {} has got SIGKILL and has not ended", name),
              rank};
    std::this_thread::sleep_for(kFencePause);
  }
  group.log(LogLevel::kWarn, fmt::format("ended the process of {}", name));
  return {};
}

}  // namespace ferry::internal
