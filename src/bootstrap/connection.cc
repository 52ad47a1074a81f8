// Sends and receives the bytes of one non-blocking socket. It raises no SIGPIPE, and only poll
// blocks.
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
#include "base/check.h"

namespace ferry::internal {
namespace {

// The first bytes of every frame in every version of ferry. Behind them are kind and call (32 bits
// each), and the number of bytes of the payload (64 bits).
constexpr std::string_view kMagic = "ferry/u\n";
constexpr std::size_t kHeaderBytes = kMagic.size() + 4 + 4 + 8;

// Limits for frames. A stranger must not make this process allocate much memory.
constexpr std::uint64_t kMaxStrangerPayload = 64 << 10;
constexpr std::uint64_t kMaxPayload = std::uint64_t{1} << 32;
constexpr std::size_t kMaxStrangerFrames = 4;  // a proof, an acceptance and a welcome, or a failure

// How long a rank that gives up sends its error to the others after its deadline has passed.
constexpr std::chrono::milliseconds kFailureTime{500};

// The bytes of a payload that one record seals.
constexpr std::uint64_t kPieceBytes = 64 << 10;
constexpr std::size_t kReadBytes = 64 << 10;
constexpr int kReadsPerTurn = 16;  // after these, other connections are read

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
  FERRY_CHECK(header.size(), ==, kHeaderBytes);
  out_.push_back({std::move(header), std::move(payload), std::move(passed), seal_.has_value(), 0});
  flush();
}

void Connection::send_failure(const Error& error, std::uint32_t call) {
  send(FrameKind::kFailure, call,
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

Error lost(const Connection& connection, int rank, const std::string& who, int here,
           const std::string& when) {
  const std::string what =
      connection.tampered()
          ? fmt::format(
                "what rank {} ({}) sent to rank {} was changed on the way, or repeated, "
                "omitted or put in another order",
                rank, who, here)
          : fmt::format("rank {} ({}) ended or left {}", rank, who, when);
  return {Code::kPeerLost, what, rank};
}

void Connection::seal(const std::string& key) {
  FERRY_CHECK(seal_.has_value(), ==, false);
  seal_.emplace(key, RecordCipher::Use::kSeal);
}

// A frame that was read before this call, and was not taken, was not sealed, so the other side did
// not send it.
void Connection::open(const std::string& key) {
  FERRY_CHECK(open_.has_value(), ==, false);
  open_.emplace(key, RecordCipher::Use::kOpen);
  tampered_ = !arrived_.empty() || coming_.has_value();
  waits_for_keys_ = false;
  parse();
}

void Connection::advance() {
  if (!closed()) receive();
  if (!closed_) flush();
}

void Connection::receive() {
  for (int turn = 0; turn < kReadsPerTurn && !closed() && !waits_for_keys_; ++turn) {
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
  while (!closed() && !waits_for_keys_) {
    const std::string_view there = std::string_view(in_).substr(begin);
    const std::size_t used = coming_ ? parse_payload(there) : parse_header(there);
    if (used == 0) break;
    begin += used;
    if (coming_ && coming_->remaining == 0) deliver();
  }
  FERRY_CHECK(begin, <=, in_.size());
  in_.erase(0, begin);
}

// Returns the number of bytes of the header; 0 if it has not arrived whole, or is refused.
std::size_t Connection::parse_header(std::string_view there) {
  // A wrong first byte suffices to recognise a stranger.
  if (!open_ && !there.starts_with(kMagic.substr(0, there.size()))) closed_ = true;
  const std::size_t bytes = kHeaderBytes + (open_ ? RecordCipher::kTagBytes : 0);
  std::string header;
  if (closed_ || there.size() < bytes || !append_opened(header, there.substr(0, bytes))) return 0;
  FERRY_CHECK(header.size(), ==, kHeaderBytes);
  ByteReader reader(std::string_view(header).substr(kMagic.size()));
  const auto kind = reader.get<FrameKind>();
  const auto call = reader.get<std::uint32_t>();
  const auto payload_bytes = reader.get<std::uint64_t>();
  FERRY_CHECK(reader.done(), ==, true);
  if (payload_bytes > (trusted_ ? kMaxPayload : kMaxStrangerPayload)) closed_ = true;
  if (closed_) return 0;
  coming_ = {{kind, call, {}, {}}, payload_bytes};
  return bytes;
}

// Returns the number of bytes of a piece of the payload, or 0 if it has not arrived whole.
std::size_t Connection::parse_payload(std::string_view there) {
  std::size_t bytes = std::min(coming_->remaining, kPieceBytes);
  const std::size_t tag_bytes = open_ ? RecordCipher::kTagBytes : 0;
  if (!open_) bytes = std::min(bytes, there.size());
  if (bytes == 0 || there.size() < bytes + tag_bytes) return 0;
  if (!append_opened(coming_->frame.payload, there.substr(0, bytes + tag_bytes))) return 0;
  coming_->remaining -= bytes;
  return bytes + tag_bytes;
}

bool Connection::append_opened(std::string& out, std::string_view piece) {
  if (open_) tampered_ = !open_->open(piece, out);
  if (!open_) out += piece;
  return !tampered_;
}

void Connection::deliver() {
  Frame& frame = coming_->frame;
  FERRY_CHECK(coming_->remaining, ==, 0U);
  if (frame.kind == FrameKind::kSegment) frame.passed = std::move(passed_);
  waits_for_keys_ = frame.kind == keys_behind_ && !open_;
  arrived_.push_back(std::move(frame));
  coming_.reset();
  if (!trusted_ && arrived_.size() > kMaxStrangerFrames) closed_ = true;
}

void Connection::flush() {
  while (unsent()) {
    if (record_.empty() && out_.front().sealed) seal_next();
    const ssize_t sent = record_.empty() ? send_clear(out_.front()) : send_record();
    if (sent >= 0 || errno == EINTR) continue;
    // The other end has closed. Frames that it sent before are still unread, and receive() finds
    // the end.
    const bool full = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS;
    if (!full) out_.clear();
    if (!full) record_.clear();
    return;
  }
}

// Seals the next piece of the frame. The header is sealed with the first piece, so that a small
// frame is one packet.
void Connection::seal_next() {
  Outgoing& frame = out_.front();
  if (frame.sent == 0) {
    seal_->seal(frame.header, record_);
    frame.sent = frame.header.size();
  }
  const std::string_view piece =
      std::string_view(*frame.payload).substr(frame.sent - frame.header.size(), kPieceBytes);
  if (!piece.empty()) seal_->seal(piece, record_);
  frame.sent += piece.size();
  FERRY_CHECK(frame.sent, <=, frame.header.size() + frame.payload->size());
  if (frame.remaining() == 0) out_.pop_front();
}

ssize_t Connection::send_record() noexcept {
  iovec piece{record_.data(), record_.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  const ssize_t sent = sendmsg(socket_.fd(), &message, MSG_NOSIGNAL);
  if (sent > 0) record_.erase(0, static_cast<std::size_t>(sent));
  return sent;
}

ssize_t Connection::send_clear(Outgoing& frame) noexcept {
  const std::size_t header_remaining =
      frame.header.size() - std::min(frame.sent, frame.header.size());
  const std::size_t payload_sent = frame.sent - (frame.header.size() - header_remaining);
  iovec pieces[2] = {
      {frame.header.data() + frame.header.size() - header_remaining, header_remaining},
      {const_cast<char*>(frame.payload->data()) + payload_sent,
       frame.payload->size() - payload_sent}};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  Control control{};
  if (frame.passed && frame.sent == 0) attach(message, control, frame.passed->fd());
  const ssize_t sent = sendmsg(socket_.fd(), &message, MSG_NOSIGNAL);
  frame.sent += static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
  if (frame.remaining() == 0) out_.pop_front();
  return sent;
}

bool service(const std::vector<Connection*>& connections, int wait_ms, int extra_fd) {
  std::vector<pollfd> polled(connections.size() + 1);
  for (std::size_t i = 0; i < connections.size(); ++i) {
    const Connection* connection = connections[i];
    if (connection == nullptr) {
      polled[i].fd = -1;
      continue;
    }
    const int events = (connection->closed() ? 0 : POLLIN) | (connection->unsent() ? POLLOUT : 0);
    polled[i] = {connection->poll_fd(), static_cast<short>(events), 0};
  }
  polled.back() = {extra_fd, POLLIN, 0};
  if (poll(polled.data(), polled.size(), wait_ms) <= 0)
    return false;  // the time is over, or EINTR; callers test their conditions again
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
    deadline.look([](const Error& why) { throw why; });
    service(connections, deadline.remaining_ms());
  }
  return true;
}

void send_failure_to(const std::vector<Connection*>& connections, const Error& error) {
  for (Connection* connection : connections) {
    if (connection != nullptr) connection->send_failure(error);
  }
  flush_all(connections, Deadline::after(kFailureTime));
}

}  // namespace ferry::internal
