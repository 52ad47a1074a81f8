// Finding rank 0 and hearing its answers.
#include "transport/spoke.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace ferry::internal {
namespace {

constexpr int kPollMs = 1000;
constexpr useconds_t kFirstPauseUs = 1000, kLongestPauseUs = 20'000;
// After the own deadline: rank 0 answers at once when it waits too, and then it knows who is
// missing.
constexpr std::chrono::milliseconds kVerdict{500};

}  // namespace

Spoke::Spoke(const Hello& self, Deadline deadline) : rank_(self.rank) {
  const std::string name = socket_name(self.address, self.size);
  seen_ = "nobody listens there";
  useconds_t pause_us = kFirstPauseUs;
  while (!try_to_join(self, name, deadline)) {
    if (deadline.passed()) {
      throw Error(
          Code::kTimeout,
          fmt::format("rank 0 of {} did not come to @{} before the deadline of rank {} ({}); it "
                      "must run on this host ({}) as uid {} and be told the same address and "
                      "size",
                      self.size, name, rank_, seen_, self.host, geteuid()));
    }
    usleep(pause_us);
    pause_us = std::min(pause_us * 2, kLongestPauseUs);
  }
}

// False: try again. A listener of an earlier group hangs up or is about to go.
bool Spoke::try_to_join(const Hello& self, const std::string& name, Deadline deadline) {
  Descriptor socket = connect_to(name);
  if (!socket) return false;
  connection_ = std::make_unique<Connection>(std::move(socket));
  const Credentials& hub = connection_->credentials();
  if (hub.uid != geteuid()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("@{} is held by pid {} of uid {}, rank {} runs as uid {}: ranks of "
                            "one group share their user",
                            name, hub.pid, hub.uid, rank_, geteuid()));
  }
  connection_->trust();
  connection_->send(Kind::kHello, 0, encode(self));
  const std::optional<Frame> frame = frame_or_verdict(deadline, "the meeting");
  if (!frame || frame->kind != Kind::kWelcome) {
    seen_ = fmt::format("pid {} listened there and hung up", hub.pid);
    return false;
  }
  std::istringstream pids(frame->payload);
  for (pid_t pid; pids >> pid;) pids_.push_back(pid);
  if (pids_.size() == static_cast<std::size_t>(self.size)) return true;
  throw Error(Code::kMismatch,
              fmt::format("rank 0 named {} processes for {} ranks", pids_.size(), self.size));
}

void Spoke::say(std::uint32_t call, std::string_view text) {
  connection_->send(Kind::kGather, call, std::string(text));
}

Frame Spoke::await(Kind kind, std::uint32_t call, Deadline deadline) {
  std::optional<Frame> frame = frame_or_verdict(deadline, fmt::format("collective {}", call));
  if (!frame) {
    throw Error(Code::kPeerLost, fmt::format("rank 0 (pid {}) ended or left the group",
                                             connection_->credentials().pid));
  }
  if (frame->kind == kind && frame->call == call) return std::move(*frame);
  throw Error(
      Code::kMismatch,
      fmt::format("rank {} is at collective {}, rank 0 at {}: ranks make the same calls in the "
                  "same order",
                  rank_, call, frame->call));
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
                fmt::format("rank 0 (pid {}) did not come to {} before the deadline of rank {}",
                            connection_->credentials().pid, awaited, rank_));
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
