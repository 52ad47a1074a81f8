// Bytes in and out of one non-blocking socket. No SIGPIPE, no blocking call but poll.
#include "bootstrap/connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/bytes.h"

namespace ferry::internal {
namespace {

// First bytes of every frame, in every version of ferry; kind, call (32 bits each) and the number
// of bytes of the payload (64 bits) follow.
constexpr std::string_view kMagic = "ferry/u\n";
constexpr std::size_t kHeaderBytes = kMagic.size() + 4 + 4 + 8;

// Strangers must not make us allocate.
constexpr std::uint64_t kMaxStrangerPayload = 64 << 10;
constexpr std::uint64_t kMaxPayload = std::uint64_t{1} << 32;
constexpr std::size_t kMaxStrangerFrames = 4;  // proof, acceptance and welcome, or a failure

// How long a rank that gives up goes on telling the others why, after its deadline has passed.
constexpr std::chrono::milliseconds kTelling{500};

constexpr std::size_t kReadBytes = 64 << 10;
constexpr int kReadsPerTurn = 16;  // then the other connections get a turn

union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr align;
};

void attach(msghdr& message, Control& control, int fd) noexcept {
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &fd, sizeof(fd));
}

Descriptor attached(msghdr& message) noexcept {
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    int fd;
    std::memcpy(&fd, CMSG_DATA(head), sizeof(fd));
    return Descriptor(fd);
  }
  return {};
}

}  // namespace

void Connection::send(FrameKind kind, std::uint32_t call,
                      std::shared_ptr<const std::string> payload,
                      std::shared_ptr<const Descriptor> passed) {
  std::string header(kMagic);
  append(header, kind);
  append(header, call);
  append(header, std::uint64_t{payload->size()});
  out_.push_back({std::move(header), std::move(payload), std::move(passed), 0});
  flush();
}

void Connection::send_failure(const Error& error) {
  send(FrameKind::kFailure, 0,
       fmt::format("{} {}\n{}", static_cast<int>(error.code()), error.culprit(), error.what()));
}

Error failure_in(const std::string& payload) {
  int code = 0, culprit = -1;
  std::sscanf(payload.c_str(), "%d %d", &code, &culprit);
  const bool known = code > 0 && code <= static_cast<int>(Code::kInterrupted);
  return {known ? static_cast<Code>(code) : Code::kSystem, payload.substr(payload.find('\n') + 1),
          culprit};
}

std::optional<Frame> Connection::take() {
  if (arrived_.empty()) return std::nullopt;
  std::optional<Frame> frame(std::move(arrived_.front()));
  arrived_.pop_front();
  return frame;
}

void Connection::advance() {
  if (!closed_) receive();
  if (!closed_) flush();
}

void Connection::receive() {
  for (int turn = 0; turn < kReadsPerTurn && !closed_; ++turn) {
    const std::size_t had = in_.size();
    in_.resize(had + kReadBytes);
    iovec piece{in_.data() + had, kReadBytes};
    Control control;
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    const ssize_t got = recvmsg(socket_.fd(), &message, MSG_CMSG_CLOEXEC);
    const int error = errno;
    in_.resize(had + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && error == EINTR) continue;
    if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK)) return;
    if (got <= 0) {
      closed_ = true;
      return;
    }
    if (Descriptor passed = attached(message)) passed_ = std::move(passed);
    parse();
  }
}

void Connection::parse() {
  std::size_t begin = 0;
  while (!closed_) {
    const std::string_view there = std::string_view(in_).substr(begin);
    // A wrong first byte is enough to know a stranger.
    if (!there.starts_with(kMagic.substr(0, there.size()))) closed_ = true;
    if (closed_ || there.size() < kHeaderBytes) break;
    ByteReader reader(there.substr(kMagic.size()));
    const auto kind = reader.get<FrameKind>();
    const auto call = reader.get<std::uint32_t>();
    const auto payload_bytes = reader.get<std::uint64_t>();
    if (payload_bytes > (trusted_ ? kMaxPayload : kMaxStrangerPayload)) closed_ = true;
    if (closed_ || reader.left() < payload_bytes) break;
    Frame frame{kind, call, std::string(as_text(reader.take(payload_bytes))), {}};
    if (kind == FrameKind::kSegment) frame.passed = std::move(passed_);
    arrived_.push_back(std::move(frame));
    if (!trusted_ && arrived_.size() > kMaxStrangerFrames) closed_ = true;
    begin += kHeaderBytes + payload_bytes;
  }
  in_.erase(0, begin);
}

void Connection::flush() noexcept {
  while (!closed_ && !out_.empty()) {
    Outgoing& frame = out_.front();
    const std::size_t header_left = frame.header.size() - std::min(frame.sent, frame.header.size());
    const std::size_t payload_sent = frame.sent - (frame.header.size() - header_left);
    iovec pieces[2] = {{frame.header.data() + frame.header.size() - header_left, header_left},
                       {const_cast<char*>(frame.payload->data()) + payload_sent,
                        frame.payload->size() - payload_sent}};
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = 2;
    Control control{};
    if (frame.passed && frame.sent == 0) attach(message, control, frame.passed->fd());
    const ssize_t sent = sendmsg(socket_.fd(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      // What the other end said before it went is still to be read; receive() finds the end.
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) out_.clear();
      return;
    }
    frame.sent += static_cast<std::size_t>(sent);
    if (frame.sent == frame.header.size() + frame.payload->size()) out_.pop_front();
  }
}

bool service(const std::vector<Connection*>& connections, int wait_ms, int extra_fd) {
  std::vector<pollfd> polled(connections.size() + 1);
  for (std::size_t i = 0; i < connections.size(); ++i) {
    const Connection* connection = connections[i];
    const bool unsent = connection != nullptr && connection->unsent();
    polled[i] = {connection == nullptr ? -1 : connection->poll_fd(),
                 static_cast<short>(unsent ? POLLIN | POLLOUT : POLLIN), 0};
  }
  polled.back() = {extra_fd, POLLIN, 0};
  if (poll(polled.data(), polled.size(), wait_ms) <= 0)
    return false;  // time, or EINTR: callers look again
  for (std::size_t i = 0; i < connections.size(); ++i) {
    if (polled[i].revents != 0) connections[i]->advance();
  }
  return polled.back().revents != 0;
}

bool flush_all(const std::vector<Connection*>& connections, Deadline deadline) {
  const auto unsent = [](const Connection* connection) {
    return connection != nullptr && connection->unsent();
  };
  while (std::any_of(connections.begin(), connections.end(), unsent)) {
    if (deadline.passed()) return false;
    service(connections, deadline.remaining_ms());
  }
  return true;
}

void tell_failure(const std::vector<Connection*>& connections, const Error& error) {
  for (Connection* connection : connections) {
    if (connection != nullptr && !connection->closed()) connection->send_failure(error);
  }
  flush_all(connections, Deadline::after(kTelling));
}

}  // namespace ferry::internal
