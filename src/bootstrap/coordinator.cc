#include "bootstrap/coordinator.h"

#include <fmt/format.h>

#include "base/check.h"
#include "bootstrap/agree.h"
#include "bootstrap/tcp.h"

namespace ferry::internal {

Coordinator::Coordinator(const Roster& roster, Deadline deadline)
    : ranks_(roster.ranks), members_(accept_members(roster, deadline)) {
  FERRY_CHECK(members_.size(), ==, ranks_.size());
  for (std::size_t place = 0; place < members_.size(); ++place)
    FERRY_CHECK(members_[place].connection != nullptr, ==, place > 0);
  welcome_ = roster.welcome;
  reply(FrameKind::kWelcome, 0, welcome_, {}, deadline);
  gather_next(1);
}

std::string Coordinator::local_address() const {
  for (const Peer& member : members_) {
    if (!member.connection) continue;
    if (std::string address = local_address_of(member.connection->socket()); !address.empty())
      return address;
  }
  return "";
}

void Coordinator::gather_next(std::uint32_t call) {
  gathering_ = {call, std::vector<std::string>(members_.size()),
                std::vector<bool>(members_.size())};
}

std::vector<std::string> Coordinator::gather(std::uint32_t call, std::string_view mine,
                                             Deadline deadline) {
  FERRY_CHECK(gathering_.call, ==, call);
  FERRY_CHECK(gathering_.came[0], ==, false);
  gathering_.texts[0] = mine;
  gathering_.came[0] = true;
  const auto is_absent = [&](std::size_t place) { return !gathering_.came[place]; };
  while (true) {
    for (std::size_t place = 1; place < members_.size(); ++place) take_from(place);
    const std::vector<int> absent = ranks_where(is_absent);
    if (absent.empty()) break;
    if (deadline.passed()) {
      fail(ended(
          deadline, ranks_[0],
          {Code::kTimeout,
           fmt::format("{} of {} did not come to collective {} before the deadline of rank {}",
                       rank_list(absent), members_.size(), call, ranks_[0]),
           absent[0]}));
    }
    deadline.look([&](const Error& why) { fail(why); });
    service(connections(), deadline.remaining_ms());
  }
  reply(FrameKind::kGathered, call, pack(gathering_.texts), {}, deadline);
  std::vector<std::string> texts = std::move(gathering_.texts);
  gather_next(call + 1);
  return texts;
}

void Coordinator::watch() {
  service(connections(), 0);
  for (std::size_t place = 1; place < members_.size(); ++place) take_from(place);
}

// Takes a frame of a member. After its text, a member sends only a failure in this gather.
void Coordinator::take_from(std::size_t place) {
  const Peer& member = members_[place];
  const int rank = ranks_[place];
  const bool came = gathering_.came[place];
  FERRY_CHECK(member.connection.get(), !=, nullptr);
  std::optional<Frame> frame = member.connection->take();
  // A failure in an earlier gather does not count: the reply of that gather was on its way when the
  // member reached its deadline, and the member took it.
  if (frame && frame->kind == FrameKind::kFailure && frame->call > 0 &&
      frame->call < gathering_.call)
    frame = member.connection->take();
  if (!frame && (came || !member.connection->closed())) return;
  if (!frame) fail(lost(*member.connection, rank, member.who, ranks_[0], "the group"));
  if (frame->kind == FrameKind::kFailure) {
    std::vector<int> absent =
        ranks_where([&](std::size_t at) { return at > 0 && !gathering_.came[at]; });
    // All members have come. If the coordinator has, too, the member takes the reply of this
    // gather.
    if (absent.empty() && gathering_.came[0] && frame->call == gathering_.call) return;
    if (absent.empty()) absent = {ranks_[0]};
    fail(given_up(failure_in(frame->payload), rank, absent, rank_list(absent) + " had not come"));
  }
  if (came || frame->kind != FrameKind::kGather || frame->call != gathering_.call) {
    fail({Code::kMismatch,
          fmt::format("rank {} is at collective {}, rank {} at {}: ranks make the same calls in "
                      "the same order",
                      rank, frame->call, ranks_[0], gathering_.call),
          rank});
  }
  gathering_.texts[place] = std::move(frame->payload);
  gathering_.came[place] = true;
}

std::optional<Descriptor> Coordinator::pass(std::uint32_t call, const Handouts& handouts,
                                            Deadline deadline) {
  if (!handouts.empty()) FERRY_CHECK(handouts.size(), ==, members_.size());
  reply(FrameKind::kSegment, call, handouts.empty() ? "" : "here", handouts, deadline);
  return std::nullopt;
}

void Coordinator::reply(FrameKind kind, std::uint32_t call, std::string payload,
                        const Handouts& handouts, Deadline deadline) {
  const auto shared = std::make_shared<const std::string>(std::move(payload));
  for (std::size_t place = 1; place < members_.size(); ++place) {
    members_[place].connection->send(kind, call, shared,
                                     handouts.empty() ? nullptr : handouts[place]);
  }
  try {
    if (flush_all(connections(), deadline)) return;
  } catch (const Error& why) {
    fail(why);
  }
  const std::vector<int> stuck = ranks_where([&](std::size_t place) {
    return members_[place].connection && members_[place].connection->unsent();
  });
  fail({Code::kTimeout,
        fmt::format("{} did not take the reply of collective {} before the deadline of rank {}",
                    rank_list(stuck), call, ranks_[0]),
        stuck[0]});
}

void Coordinator::fail(const Error& error) {
  send_failure_to(connections(), error);
  throw error;
}

std::vector<Connection*> Coordinator::connections() const {
  std::vector<Connection*> all;
  for (const Peer& member : members_) all.push_back(member.connection.get());
  return all;
}

template <typename Which>
std::vector<int> Coordinator::ranks_where(const Which& which) const {
  std::vector<int> ranks;
  for (std::size_t place = 0; place < members_.size(); ++place) {
    if (which(place)) ranks.push_back(ranks_[place]);
  }
  return ranks;
}

}  // namespace ferry::internal
