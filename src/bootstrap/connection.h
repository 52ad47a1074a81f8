// Connection: framed messages, and sometimes a descriptor, over one socket, without ever blocking.
// Descriptors go over Unix sockets only: there the kernel identifies the process at the other end,
// and no other process is in between. Between hosts, frames are sealed once both sides have proved
// that they know the secret. Callers wait in service().
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bootstrap/parent_socket.h"
#include "bootstrap/record_cipher.h"
#include "bootstrap/socket.h"
#include "ferry/status.h"

namespace ferry::internal {

// Kinds of frames. Hello and failure keep their form in all versions of ferry, so that an error can
// name the versions.
enum class FrameKind : std::uint32_t {
  kHello = 1,      // member: its hello (hello.h); between hosts its share and the sealed hello
  kFailure = 2,    // either: code, culprit and message; nothing follows
  kWelcome = 3,    // coordinator: all have come
  kGather = 4,     // member: its text
  kGathered = 5,   // coordinator: all texts
  kSegment = 6,    // coordinator: a segment's descriptor, or none when the payload is empty
  kChallenge = 7,  // coordinator, between hosts: its share (handshake.h)
  kProof = 8,      // coordinator, between hosts: its hello, sealed
  kElsewhere = 9,  // coordinator: another group of the job meets here now; its name
  kAccepted = 10,  // coordinator: the receiver is a member; others have not come yet
};

struct Frame {
  FrameKind kind;
  std::uint32_t call;  // number of the collective, equal on all ranks
  std::string payload;
  Descriptor passed;  // kSegment
};

class Connection {
 public:
  explicit Connection(Descriptor socket)
      : credentials_(credentials_of(socket)), socket_(std::move(socket)) {}

  const Credentials& credentials() const noexcept { return credentials_; }

  // Queues a frame; many connections may share a payload. service() sends it.
  void send(FrameKind kind, std::uint32_t call, std::shared_ptr<const std::string> payload,
            std::shared_ptr<const Descriptor> passed = nullptr);
  void send(FrameKind kind, std::uint32_t call, std::string payload) {
    send(kind, call, std::make_shared<const std::string>(std::move(payload)));
  }
  void send_failure(const Error& error);

  // The oldest frame that has arrived whole.
  std::optional<Frame> take();

  // Nothing more comes: the other end has closed, sent bytes that are not a frame, or its bytes
  // were changed on the way. Frames that came before can still be taken.
  bool closed() const noexcept { return closed_ || tampered_; }
  bool unsent() const noexcept { return !closed_ && !(out_.empty() && record_.empty()); }

  // Between hosts, once the other side has proved that it knows the secret: all frames after this,
  // both ways, are sealed. A header is one record; pieces of the payload are one record each.
  void protect(const RecordKeys& keys);
  // Bytes came that the other side did not send, or sent in another place.
  bool tampered() const noexcept { return tampered_; }

  // Called when the kernel or a proof has shown that the other end is a rank. Before it, frames
  // must be small and few, so that strangers cannot make this process allocate.
  void trust() noexcept { trusted_ = true; }

  // For service(): -1 when nothing can come or go any more.
  int poll_fd() const noexcept { return closed() && !unsent() ? -1 : socket_.fd(); }
  // Receives and sends what is possible without waiting.
  void advance();

 private:
  struct Outgoing {
    std::string header;
    std::shared_ptr<const std::string> payload;
    std::shared_ptr<const Descriptor> passed;
    bool sealed;
    std::size_t sent;  // bytes of header and payload that are sent, or sealed to be sent
    std::size_t remaining() const noexcept { return header.size() + payload->size() - sent; }
  };
  // A frame that has not come whole.
  struct Incoming {
    Frame frame;
    std::uint64_t remaining;  // bytes of the payload
  };

  void receive();
  void parse();
  std::size_t parse_header(std::string_view there);
  std::size_t parse_payload(std::string_view there);
  bool append_opened(std::string& out, std::string_view piece);
  void deliver();
  void flush();
  void seal_next();
  ssize_t send_record() noexcept;
  ssize_t send_clear(Outgoing& frame) noexcept;

  Credentials credentials_;
  ParentSocket socket_;
  std::deque<Outgoing> out_;
  std::string record_;  // sealed, not sent yet
  std::string in_;
  std::optional<Incoming> coming_;
  std::deque<Frame> arrived_;
  std::optional<RecordCipher> seal_, open_;
  Descriptor passed_;  // came with bytes of a frame that is not whole yet
  bool trusted_ = false;
  bool waits_for_keys_ = false;  // what comes next is sealed: it is not read before protect()
  bool tampered_ = false;
  bool closed_ = false;
};

// The error of rank `here` when the connection to `rank` (`who`: its process) has closed: "ended or
// left" and `when`, or that the bytes were changed on the way.
Error lost(const Connection& connection, int rank, const std::string& who, int here,
           const std::string& when);

// A kFailure frame: "<code> <culprit>\n<message>"; an earlier ferry names no culprit.
Error failure_in(const std::string& payload);

// Waits until one of the connections (null ones are skipped) or `extra_fd` has something to do, at
// most `wait_ms`, and advances the connections. Frames are then to be taken. True when extra_fd is
// readable.
bool service(const std::vector<Connection*>& connections, int wait_ms, int extra_fd = -1);

// Sends what is queued. False when the deadline passes before all of it is sent.
bool flush_all(const std::vector<Connection*>& connections, Deadline deadline);

// Sends the failure to all connections that take it within half a second.
void send_failure_to(const std::vector<Connection*>& connections, const Error& error);

}  // namespace ferry::internal
