// Finds the coordinator and receives its replies.
#include "bootstrap/member.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "bootstrap/agree.h"

namespace ferry::internal {
namespace {

constexpr std::chrono::milliseconds kFirstPause{1};
// How long this rank waits after its own deadline for the verdict of a coordinator: that of its
// host, and then that of all hosts. A coordinator that also waits replies at once with the missing
// ranks.
constexpr std::chrono::milliseconds kVerdict{500};
// How long this rank waits for a challenge and a proof. The coordinator sends them at once, unless
// it has many connections.
constexpr std::chrono::seconds kProofWait{10};
constexpr std::chrono::milliseconds kTurn{100};
// How long this rank looks for another coordinator after one has closed the connection.
constexpr std::chrono::milliseconds kReplacementWait{500};

}  // namespace

Member::Member(const Roster& roster, Deadline deadline)
    : rank_(roster.self.rank),
      coordinator_(roster.coordinator()),
      size_(roster.size()),
      local_ranks_(roster.launch, rank_) {
  FERRY_CHECK(rank_, !=, coordinator_);
  FERRY_CHECK(size_, >=, 2U);
  std::chrono::milliseconds pause = kFirstPause;
  while (!try_to_join(roster, deadline)) {
    throw_if_lost(roster);
    deadline.look([](const Error& why) { throw why; });
    if (deadline.passed()) {
      throw ended(deadline, rank_,
                  {Code::kTimeout,
                   fmt::format("{} of {} did not come to {} before the deadline of rank {} "
                               "({}); it must run {}",
                               coordinator_name(), roster.self.size, roster.endpoint.name, rank_,
                               seen_.empty() ? unreached_ : seen_, roster.endpoint.advice),
                   coordinator_});
    }
    usleep(static_cast<useconds_t>(std::chrono::microseconds(pause).count()));
    pause = std::min(pause * 2, roster.endpoint.longest_pause());
  }
}

// Throws if the coordinator or a local rank has ended. A coordinator that accepted this rank and
// closed the connection has ended, unless another one replaces it within kReplacementWait, as when
// the job was started again. A rank of this host may have ended before it connected.
void Member::throw_if_lost(const Roster& roster) {
  if (roster.outer != nullptr) roster.outer->look();
  if (hung_up_ && hung_up_->passed()) {
    throw lost(*connection_, coordinator_, who_, rank_,
               "while others had not come to " + roster.endpoint.name);
  }
  if (const auto ended = local_ranks_.ended(roster.ranks)) {
    throw Error(Code::kPeerLost,
                fmt::format("rank {} ended before it joined: {}", *ended, local_ranks_.reason()),
                *ended);
  }
}

// Returns false if this rank must try again. The listener may be that of an earlier group that is
// closing.
bool Member::try_to_join(const Roster& roster, Deadline deadline) {
  Attempt attempt = connect_to(roster.endpoint, deadline);
  if (!attempt.socket) {
    if (!attempt.cut || unreached_.empty()) unreached_ = attempt.why;
    return false;
  }
  connection_ = std::make_unique<Connection>(std::move(attempt.socket));
  if (!(roster.endpoint.local() ? greet_on_host(roster) : greet_with_proof(roster, deadline)))
    return false;
  connection_->trust();
  std::optional<Frame> frame = await_welcome(roster, deadline);
  if (frame && frame->kind == FrameKind::kAccepted) {
    hung_up_.reset();
    frame = await_welcome(roster, deadline);
    if (!frame && coordinator_ != Roster::kUnknown) hung_up_ = deadline.earlier(kReplacementWait);
  }
  if (frame && frame->kind == FrameKind::kWelcome) {
    welcome_ = std::move(frame->payload);
    return true;
  }
  if (!frame && connection_->tampered()) fail(coordinator_lost());
  seen_ = frame && frame->kind == FrameKind::kElsewhere
              ? frame->payload
              : fmt::format("{} listened there and closed the connection", who_);
  return false;
}

// Waits in short turns. Between them it checks whether a rank of this host has ended, which no
// other rank may know.
std::optional<Frame> Member::await_welcome(const Roster& roster, Deadline deadline) {
  while (!deadline.passed()) {
    if (std::optional<Frame> frame = next_frame(deadline.earlier(kTurn))) {
      if (frame->kind == FrameKind::kFailure) throw failure_in(frame->payload);
      return frame;
    }
    if (connection_->closed()) return std::nullopt;
    try {
      throw_if_lost(roster);
    } catch (const Error& error) {
      fail(error);
    }
  }
  return frame_or_verdict(deadline, "the join");
}

bool Member::greet_on_host(const Roster& roster) {
  who_ = fmt::format("pid {}", connection_->credentials().pid);
  connection_->send(FrameKind::kHello, 0, encode(roster.self));
  return true;
}

bool Member::greet_with_proof(const Roster& roster, Deadline deadline) {
  seen_ = "who listened there is not rank 0 of this job, or has another FERRY_SECRET";
  std::optional<Frame> frame = next_frame(deadline.earlier(kProofWait));
  Handshake handshake(*roster.endpoint.secret, Handshake::Side::kMember);
  if (!frame || frame->kind != FrameKind::kChallenge || frame->call != 0 ||
      !handshake.take_share(frame->payload))
    return false;
  connection_->send(FrameKind::kHello, 0, handshake.share() + handshake.seal(encode(roster.self)));
  connection_->seal(handshake.record_keys().seal);
  frame = next_frame(deadline.earlier(kProofWait));
  // The coordinator may have given this rank its place. If this rank closed the connection without
  // a message, the coordinator would take it for lost.
  if (!frame && deadline.passed()) frame = frame_or_verdict(deadline, "the join");
  if (!frame || frame->kind != FrameKind::kProof || frame->call != 0) return false;
  const auto text = handshake.open(frame->payload);
  const auto hello = text ? decode_hello(*text) : std::nullopt;
  if (!hello) return false;
  who_ = fmt::format("pid {}, host {}", hello->pid, hello->host);
  if (hello->protocol != roster.self.protocol)  // this rank cannot read frames of another protocol
    throw Error(Code::kMismatch, disagreement(*hello, roster.self), coordinator_);
  connection_->open(handshake.record_keys().open);
  return true;
}

std::vector<std::string> Member::gather(std::uint32_t call, std::string_view mine,
                                        Deadline deadline) {
  connection_->send(FrameKind::kGather, call, std::string(mine));
  std::vector<std::string> texts =
      unpack(await(FrameKind::kGathered, call, deadline).payload, size_);
  FERRY_CHECK(texts.size(), ==, size_);
  return texts;
}

std::optional<Descriptor> Member::pass(std::uint32_t call, const Handouts&, Deadline deadline) {
  Frame frame = await(FrameKind::kSegment, call, deadline);
  if (frame.payload.empty()) return std::nullopt;
  return std::move(frame.passed);
}

Frame Member::await(FrameKind kind, std::uint32_t call, Deadline deadline) {
  std::optional<Frame> frame = frame_or_verdict(deadline, fmt::format("collective {}", call),
                                                kind == FrameKind::kGathered ? call : 0);
  if (!frame) fail(coordinator_lost());
  if (frame->kind == kind && frame->call == call) return std::move(*frame);
  throw Error(
      Code::kMismatch,
      fmt::format("rank {} is at collective {}, rank {} at {}: ranks make the same calls in the "
                  "same order",
                  rank_, call, coordinator_, frame->call),
      coordinator_);
}

// Reads a failure. Between two calls the coordinator sends nothing else.
void Member::watch() {
  service({connection_.get()}, 0);
  const std::optional<Frame> frame = connection_->take();
  if (frame && frame->kind == FrameKind::kFailure) throw failure_in(frame->payload);
  if (connection_->closed()) fail(coordinator_lost());
}

void Member::fail(const Error& error) {
  send_failure_to({connection_.get()}, error);
  throw error;
}

Error Member::coordinator_lost() const {
  return lost(*connection_, coordinator_, who_, rank_, "the group");
}

std::string Member::coordinator_name() const {
  return coordinator_ == Roster::kUnknown ? "a member that admits others"
                                          : fmt::format("rank {}", coordinator_);
}

// `gather`: the number of the gather that is awaited, if it is one.
std::optional<Frame> Member::frame_or_verdict(Deadline deadline, const std::string& awaited,
                                              std::uint32_t gather) {
  std::optional<Frame> frame = next_frame(deadline);
  if (!frame && !connection_->closed()) {
    connection_->send_failure(
        ended(deadline, rank_,
              {Code::kTimeout, fmt::format("rank {} reached its deadline in {}", rank_, awaited)}),
        gather);
    frame = next_frame(deadline.extended(kVerdict));
  }
  if (!frame && connection_->closed()) return std::nullopt;
  if (!frame) {
    throw ended(deadline, rank_,
                {Code::kTimeout,
                 fmt::format("{} ({}) did not come to {} before the deadline of rank {}",
                             coordinator_name(), who_, awaited, rank_),
                 coordinator_});
  }
  if (frame->kind == FrameKind::kFailure) throw failure_in(frame->payload);
  return frame;
}

std::optional<Frame> Member::next_frame(Deadline deadline) {
  while (true) {
    if (std::optional<Frame> frame = connection_->take()) return frame;
    if (connection_->closed()) return std::nullopt;
    const bool last = deadline.passed();  // what has come by then is read
    if (!last) deadline.look([&](const Error& why) { fail(why); });
    service({connection_.get()}, last ? 0 : deadline.remaining_ms());
    if (last) return connection_->take();
  }
}

}  // namespace ferry::internal
