// Gathering from all ranks and answering them, in one thread, blocking on none of them.
#include "transport/hub.h"

#include <fmt/format.h>
#include <unistd.h>

#include "transport/agree.h"
#include "transport/meeting.h"

namespace ferry::internal {
namespace {

constexpr int kPollMs = 1000;

}  // namespace

struct Hub::Gathering {
  std::uint32_t call;
  std::vector<std::string> texts;
  std::vector<bool> came;

  std::vector<int> absent() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < came.size(); ++rank) {
      if (!came[rank]) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }
};

Hub::Hub(const Hello& self, Deadline deadline) : members_(meet(self, deadline)) {}

std::vector<pid_t> Hub::pids() const {
  std::vector<pid_t> pids{getpid()};
  for (std::size_t rank = 1; rank < members_.size(); ++rank)
    pids.push_back(members_[rank]->credentials().pid);
  return pids;
}

std::vector<std::string> Hub::gather(std::uint32_t call, std::string mine, Deadline deadline) {
  Gathering gathering{call, std::vector<std::string>(members_.size()),
                      std::vector<bool>(members_.size())};
  gathering.texts[0] = std::move(mine);
  gathering.came[0] = true;
  while (true) {
    for (const int rank : gathering.absent()) hear(rank, gathering);
    const std::vector<int> absent = gathering.absent();
    if (absent.empty()) return std::move(gathering.texts);
    if (deadline.passed()) {
      fail(Code::kTimeout,
           fmt::format("{} of {} did not come to collective {} before the deadline of rank 0",
                       rank_list(absent), members_.size(), call));
    }
    service(connections(), deadline.remaining_ms(kPollMs));
  }
}

void Hub::hear(int rank, Gathering& gathering) {
  Connection& connection = *members_[static_cast<std::size_t>(rank)];
  std::optional<Frame> frame = connection.take();
  if (!frame && !connection.closed()) return;
  if (!frame) {
    fail(Code::kPeerLost, fmt::format("rank {} (pid {}) ended or left the group", rank,
                                      connection.credentials().pid));
  }
  if (frame->kind == Kind::kFailure) {
    const Error error = failure_in(frame->payload);
    fail(error.code(),
         fmt::format("{}; {} had not come", error.what(), rank_list(gathering.absent())));
  }
  if (frame->kind != Kind::kGather || frame->call != gathering.call) {
    fail(Code::kMismatch,
         fmt::format("rank {} is at collective {}, rank 0 at {}: ranks make the same calls in the "
                     "same order",
                     rank, frame->call, gathering.call));
  }
  gathering.texts[static_cast<std::size_t>(rank)] = std::move(frame->payload);
  gathering.came[static_cast<std::size_t>(rank)] = true;
}

void Hub::answer(Kind kind, std::uint32_t call, std::string payload,
                 const std::shared_ptr<const Descriptor>& passed, Deadline deadline) {
  const auto shared = std::make_shared<const std::string>(std::move(payload));
  for (Connection* connection : connections()) {
    if (connection != nullptr) connection->send(kind, call, shared, passed);
  }
  if (flush_all(connections(), deadline)) return;
  std::vector<int> stuck;
  for (std::size_t rank = 1; rank < members_.size(); ++rank) {
    if (members_[rank]->unsent()) stuck.push_back(static_cast<int>(rank));
  }
  fail(Code::kTimeout,
       fmt::format("{} did not take the answer of collective {} before the deadline of rank 0",
                   rank_list(stuck), call));
}

void Hub::fail(Code code, const std::string& text) {
  const Error error(code, text);
  tell_failure(connections(), error);
  throw error;
}

std::vector<Connection*> Hub::connections() const {
  std::vector<Connection*> all;
  for (const auto& member : members_) all.push_back(member.get());
  return all;
}

}  // namespace ferry::internal
