// Finding rank 0 and hearing its answers.
#include "bootstrap/spoke.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace ferry::internal {
namespace {

constexpr int kPollMs = 1000;
constexpr std::chrono::milliseconds kFirstPause{1};
// After the own deadline: rank 0 answers at once when it waits too, and then it knows who is
// missing.
constexpr std::chrono::milliseconds kVerdict{500};
// Rank 0 answers a stranger at once; who does not is something else, or has many to answer.
constexpr std::chrono::seconds kProofPatience{10};

}  // namespace

Spoke::Spoke(const Party& party, Deadline deadline) : rank_(party.self.rank), hub_(party.hub()) {
  std::chrono::milliseconds pause = kFirstPause;
  while (!try_to_join(party, deadline)) {
    if (deadline.passed()) {
      throw Error(Code::kTimeout,
                  fmt::format("rank {} of {} did not come to {} before the deadline of rank {} "
                              "({}); it must run {}",
                              hub_, party.self.size, party.door.name, rank_,
                              seen_.empty() ? unreached_ : seen_, party.door.advice));
    }
    usleep(static_cast<useconds_t>(std::chrono::microseconds(pause).count()));
    pause = std::min(pause * 2, party.door.longest_pause);
  }
}

// False: try again. A listener of an earlier group hangs up or is about to go.
bool Spoke::try_to_join(const Party& party, Deadline deadline) {
  Attempt attempt = party.door.connect(deadline);
  if (!attempt.socket) {
    if (!attempt.why.empty()) unreached_ = attempt.why;  // empty: no time was left to try
    return false;
  }
  connection_ = std::make_unique<Connection>(std::move(attempt.socket));
  if (!(party.door.secret ? greet_with_proof(party, deadline) : greet_on_host(party))) return false;
  connection_->trust();
  const std::optional<Frame> frame = frame_or_verdict(deadline, "the meeting");
  if (frame && frame->kind == Kind::kWelcome) return true;
  seen_ = frame && frame->kind == Kind::kElsewhere
              ? fmt::format("another group of this job met there: {}", frame->payload)
              : fmt::format("{} listened there and hung up", who_);
  return false;
}

bool Spoke::greet_on_host(const Party& party) {
  const Credentials& hub = connection_->credentials();
  if (hub.uid != geteuid()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} is held by pid {} of uid {}, rank {} runs as uid {}: ranks of one "
                            "group share their user",
                            party.door.name, hub.pid, hub.uid, rank_, geteuid()));
  }
  who_ = fmt::format("pid {}", hub.pid);
  connection_->send(Kind::kHello, 0, encode(party.self));
  return true;
}

bool Spoke::greet_with_proof(const Party& party, Deadline deadline) {
  const Secret& secret = *party.door.secret;
  seen_ = "who listened there is not rank 0 of this job";
  Handshake handshake;
  std::optional<Frame> frame = next_frame(deadline.sooner(kProofPatience));
  const auto job = frame && frame->kind == Kind::kChallenge ? handshake.challenged(frame->payload)
                                                            : std::nullopt;
  if (!job) return false;
  if (*job != secret.digest()) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("wrong FERRY_SECRET: rank {}'s has the digest {}, that of rank {} at {} "
                    "has {} (another job at the same port has another one too)",
                    rank_, secret.digest(), hub_, party.door.name, *job));
  }
  connection_->send(Kind::kHello, 0,
                    handshake.prove(Handshake::Side::kSpoke, secret, encode(party.self)));
  frame = next_frame(deadline.sooner(kProofPatience));
  const auto text = frame && frame->kind == Kind::kProof
                        ? handshake.proven(Handshake::Side::kHub, secret, frame->payload)
                        : std::nullopt;
  const auto hub = text ? decode_hello(*text) : std::nullopt;
  if (!hub) return false;
  who_ = fmt::format("pid {}, host {}", hub->pid, hub->host);
  return true;
}

void Spoke::say(std::uint32_t call, std::string_view text) {
  connection_->send(Kind::kGather, call, std::string(text));
}

Frame Spoke::await(Kind kind, std::uint32_t call, Deadline deadline) {
  std::optional<Frame> frame = frame_or_verdict(deadline, fmt::format("collective {}", call));
  if (!frame) {
    throw Error(Code::kPeerLost, fmt::format("rank {} ({}) ended or left the group", hub_, who_));
  }
  if (frame->kind == kind && frame->call == call) return std::move(*frame);
  throw Error(
      Code::kMismatch,
      fmt::format("rank {} is at collective {}, rank {} at {}: ranks make the same calls in the "
                  "same order",
                  rank_, call, hub_, frame->call));
}

std::optional<Frame> Spoke::frame_or_verdict(Deadline deadline, const std::string& awaited) {
  std::optional<Frame> frame = next_frame(deadline);
  if (!frame && !connection_->closed()) {
    connection_->send_failure(
        Error(Code::kTimeout, fmt::format("rank {} reached its deadline in {}", rank_, awaited)));
    frame = next_frame(Deadline::after(kVerdict));
  }
  if (!frame && connection_->closed()) return std::nullopt;
  if (!frame) {
    throw Error(Code::kTimeout,
                fmt::format("rank {} ({}) did not come to {} before the deadline of rank {}", hub_,
                            who_, awaited, rank_));
  }
  if (frame->kind == Kind::kFailure) throw failure_in(frame->payload);
  return frame;
}

std::optional<Frame> Spoke::next_frame(Deadline deadline) {
  while (true) {
    if (std::optional<Frame> frame = connection_->take()) return frame;
    if (connection_->closed() || deadline.passed()) return std::nullopt;
    service({connection_.get()}, deadline.remaining_ms(kPollMs));
  }
}

}  // namespace ferry::internal
