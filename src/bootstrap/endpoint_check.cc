#include "bootstrap/endpoint_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <exception>
#include <system_error>

#include "bootstrap/connection.h"
#include "bootstrap/handshake.h"

namespace ferry::internal {
namespace {

constexpr std::chrono::seconds kReplyWait{5};  // longer than an attempt to connect
constexpr useconds_t kTurnUs = 100'000;
constexpr useconds_t kListenPauseUs = 2000;

// The result of a connection to the endpoint.
struct Look {
  bool leads_nowhere = false;  // no address, or no listener at any address
  bool is_self = false;
  std::string why;               // the reason of leads_nowhere
  std::optional<Error> problem;  // set if another rank 0 refuses this one
};

std::optional<Frame> next_frame(Connection& connection, Deadline deadline) {
  while (!deadline.passed()) {
    if (std::optional<Frame> frame = connection.take()) return frame;
    if (connection.closed()) return std::nullopt;
    service({&connection}, deadline.remaining_ms());
  }
  return std::nullopt;
}

// Sends the hello, and between hosts a proof of the secret. Returns the hello of the process that
// listens, which is known between hosts only.
std::optional<Hello> greet(Connection& connection, const Roster& roster, Deadline deadline) {
  if (roster.endpoint.local()) {
    connection.send(FrameKind::kHello, 0, encode(roster.self));
    return std::nullopt;
  }
  Handshake handshake(*roster.endpoint.secret, Handshake::Side::kMember);
  std::optional<Frame> frame = next_frame(connection, deadline);
  if (!frame || frame->kind != FrameKind::kChallenge || !handshake.take_share(frame->payload))
    return std::nullopt;
  connection.send(FrameKind::kHello, 0, handshake.share() + handshake.seal(encode(roster.self)));
  frame = next_frame(connection, deadline);
  const auto text =
      frame && frame->kind == FrameKind::kProof ? handshake.open(frame->payload) : std::nullopt;
  auto hello = text ? decode_hello(*text) : std::nullopt;
  if (hello && hello->protocol == roster.self.protocol) connection.protect(handshake.record_keys());
  return hello;
}

Look look_at(const Roster& roster, Deadline deadline) {
  Look look;
  Attempt attempt = connect_to(roster.endpoint, deadline);
  if (!attempt.socket) {
    look.leads_nowhere = !attempt.cut && !attempt.silent;
    look.why = attempt.why;
    return look;
  }
  Connection connection(std::move(attempt.socket));
  const std::optional<Hello> hello = greet(connection, roster, deadline);
  look.is_self = hello && is_same_process(*hello, roster.self);
  if (look.is_self) return look;
  const std::optional<Frame> reply = next_frame(connection, deadline);
  if (!reply || reply->kind != FrameKind::kFailure) return look;
  // If the other group has another problem, it ends by itself.
  const Error failure = failure_in(reply->payload);
  if (failure.code() == Code::kInvalidArgument && failure.culprit() == roster.self.rank)
    look.problem = failure;
  return look;
}

// Looks at the endpoint. Errors here are ignored, because the acceptor finds the same lack of
// resources and reports it.
Look try_to_look(const Roster& roster, Deadline deadline) noexcept try {
  return look_at(roster, deadline);
} catch (const std::exception&) {
  return {};
}

}  // namespace

bool is_same_process(const Hello& a, const Hello& b) {
  return a.pid == b.pid && a.rank == b.rank && identity(a) == identity(b);
}

Descriptor listen_patiently(const Roster& roster, Deadline deadline) {
  Deadline check = deadline.earlier(EndpointCheck::kAfter);
  while (true) {
    if (Descriptor listener = listen_at(roster.endpoint)) return listener;
    if (check.passed() && !deadline.passed()) {
      const auto problem = look_at(roster, deadline.earlier(kReplyWait)).problem;
      if (problem) throw *problem;
      check = deadline.earlier(EndpointCheck::kAfter);
    }
    if (deadline.passed()) {
      throw Error(
          Code::kTimeout,
          fmt::format("rank {} cannot listen at {}: {} has held it until the deadline{}",
                      roster.coordinator(), roster.endpoint.name, holder_of(roster.endpoint),
                      roster.endpoint.local() ? "" : "; give each job a port (FERRY_PORT)"),
          roster.coordinator());
    }
    usleep(kListenPauseUs);
  }
}

EndpointCheck::EndpointCheck(const Roster& roster)
    : roster_(roster),
      addresses_(roster.endpoint.local()
                     ? ""
                     : fmt::format(
                           "{}", fmt::join(own_addresses(roster.endpoint.tcp.interfaces), ", "))) {}

EndpointCheck::~EndpointCheck() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

std::optional<Error> EndpointCheck::problem() {
  if (roster_.endpoint.local() || !begin_.passed()) return std::nullopt;
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { look_until_stopped(); });
  } catch (const std::system_error&) {  // without a thread now, the next call tries again
  }
  const std::lock_guard lock(mutex_);
  return problem_;
}

void EndpointCheck::look_until_stopped() noexcept {
  Deadline patience = Deadline::after(kPatience, &stopped_);
  while (!stopped_()) {
    Look look = try_to_look(roster_, Deadline::after(kReplyWait, &stopped_));
    if (look.is_self || stopped_()) return;
    if (!look.leads_nowhere) patience = Deadline::after(kPatience, &stopped_);
    if (look.leads_nowhere && patience.passed()) {
      look.problem =
          Error(Code::kInvalidArgument,
                fmt::format("rank {} listens on host {} (addresses {}), and its address {} "
                            "does not lead there ({}): name rank 0's host in FERRY_ADDR or "
                            "MASTER_ADDR",
                            roster_.self.rank, roster_.self.host, addresses_, roster_.endpoint.name,
                            look.why),
                roster_.self.rank);
    }
    if (look.problem) {
      const std::lock_guard lock(mutex_);
      problem_ = look.problem;
      return;
    }
    usleep(kTurnUs);
  }
}

}  // namespace ferry::internal
