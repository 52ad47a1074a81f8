// Gathering from all ranks and answering them, in one thread, blocking on none of them.
#include "bootstrap/hub.h"

#include <fmt/format.h>

#include "bootstrap/agree.h"

namespace ferry::internal {
namespace {

constexpr int kPollMs = 1000;

}  // namespace

struct Hub::Gathering {
  std::uint32_t call;
  std::vector<std::string> texts;
  std::vector<bool> came;
};

Hub::Hub(const Party& party, Deadline deadline)
    : ranks_(party.ranks), members_(meet(party, deadline)) {}

std::vector<std::string> Hub::gather(std::uint32_t call, std::string mine, Deadline deadline) {
  Gathering gathering{call, std::vector<std::string>(members_.size()),
                      std::vector<bool>(members_.size())};
  gathering.texts[0] = std::move(mine);
  gathering.came[0] = true;
  const auto is_absent = [&](std::size_t seat) { return !gathering.came[seat]; };
  while (true) {
    bool complete = true;
    for (std::size_t seat = 0; seat < members_.size(); ++seat) {
      if (is_absent(seat)) hear(seat, gathering);
      complete = complete && !is_absent(seat);
    }
    if (complete) return std::move(gathering.texts);
    if (deadline.passed()) {
      fail(Code::kTimeout,
           fmt::format("{} of {} did not come to collective {} before the deadline of rank {}",
                       rank_list_of(is_absent), members_.size(), call, ranks_[0]));
    }
    service(connections(), deadline.remaining_ms(kPollMs));
  }
}

void Hub::hear(std::size_t seat, Gathering& gathering) {
  Connection& connection = *members_[seat].connection;
  std::optional<Frame> frame = connection.take();
  if (!frame && !connection.closed()) return;
  if (!frame) fail(Code::kPeerLost, fmt::format("{} ended or left the group", name(seat)));
  if (frame->kind == Kind::kFailure) {
    const Error error = failure_in(frame->payload);
    fail(error.code(),
         fmt::format("{}; {} had not come", error.what(),
                     rank_list_of([&](std::size_t at) { return !gathering.came[at]; })));
  }
  if (frame->kind != Kind::kGather || frame->call != gathering.call) {
    fail(Code::kMismatch,
         fmt::format("rank {} is at collective {}, rank {} at {}: ranks make the same calls in the "
                     "same order",
                     ranks_[seat], frame->call, ranks_[0], gathering.call));
  }
  gathering.texts[seat] = std::move(frame->payload);
  gathering.came[seat] = true;
}

void Hub::answer(Kind kind, std::uint32_t call, std::string payload,
                 const std::vector<std::shared_ptr<const Descriptor>>& passed, Deadline deadline) {
  const auto shared = std::make_shared<const std::string>(std::move(payload));
  for (std::size_t seat = 1; seat < members_.size(); ++seat)
    members_[seat].connection->send(kind, call, shared, passed.empty() ? nullptr : passed[seat]);
  if (flush_all(connections(), deadline)) return;
  const auto is_stuck = [&](std::size_t seat) {
    return members_[seat].connection && members_[seat].connection->unsent();
  };
  fail(Code::kTimeout,
       fmt::format("{} did not take the answer of collective {} before the deadline of rank {}",
                   rank_list_of(is_stuck), call, ranks_[0]));
}

void Hub::fail(Code code, const std::string& text) {
  const Error error(code, text);
  tell_failure(connections(), error);
  throw error;
}

std::vector<Connection*> Hub::connections() const {
  std::vector<Connection*> all;
  for (const Member& member : members_) all.push_back(member.connection.get());
  return all;
}

std::string Hub::name(std::size_t seat) const {
  return fmt::format("rank {} ({})", ranks_[seat], members_[seat].who);
}

template <typename Which>
std::string Hub::rank_list_of(const Which& which) const {
  std::vector<int> ranks;
  for (std::size_t seat = 0; seat < members_.size(); ++seat) {
    if (which(seat)) ranks.push_back(ranks_[seat]);
  }
  return rank_list(ranks);
}

}  // namespace ferry::internal
