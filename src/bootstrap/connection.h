// Connection: sends and receives framed messages over one socket, some with a descriptor, without
// blocking. Descriptors go over Unix sockets only: there the kernel identifies the process at the
// other end, and no other process can change the bytes. Between hosts, frames are sealed once both
// sides have proved that they know the secret. Callers wait in service().
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

// The kinds of frames. A hello and a failure have the same form in all versions of ferry, so that
// an error can name the versions.
enum class FrameKind : std::uint32_t {
  kHello = 1,    // from a member: its hello (hello.h); between hosts its share and the sealed hello
  kFailure = 2,  // from either side: code, culprit and message; it is the last frame
  kWelcome = 3,  // from the coordinator: all ranks have connected
  kGather = 4,   // from a member: its text
  kGathered = 5,   // from the coordinator: all texts
  kSegment = 6,    // from the coordinator: a segment's descriptor, or none if the payload is empty
  kChallenge = 7,  // from the coordinator, between hosts: its share (handshake.h)
  kProof = 8,      // from the coordinator, between hosts: its sealed hello
  // From the coordinator: why the receiver has to try again later. Other ranks meet there now.
  kElsewhere = 9,
  kAccepted = 10,  // from the coordinator: the receiver is a member, but other ranks are missing
};

struct Frame {
  FrameKind kind;
  std::uint32_t call;  // the number of the collective, equal on all ranks
  std::string payload;
  Descriptor passed;  // used by kSegment
};

class Connection {
 public:
  explicit Connection(Descriptor socket)
      : credentials_(credentials_of(socket)), socket_(std::move(socket)) {}

  const Credentials& credentials() const noexcept { return credentials_; }
  const Descriptor& socket() const noexcept { return socket_.descriptor(); }

  // Queues a frame, and sends as much of it as is possible without waiting; service() sends the
  // rest. Many connections may share a payload.
  void send(FrameKind kind, std::uint32_t call, std::shared_ptr<const std::string> payload,
            std::shared_ptr<const Descriptor> passed = nullptr);
  void send(FrameKind kind, std::uint32_t call, std::string payload) {
    send(kind, call, std::make_shared<const std::string>(std::move(payload)));
  }
  // `call`: the number of the collective in which this rank failed: the coordinator ignores the
  // error in a later one. 0: the error always counts.
  void send_failure(const Error& error, std::uint32_t call = 0);

  // Takes the oldest frame that has arrived whole.
  std::optional<Frame> take();

  // True if no more frames arrive: the other end has closed or sent bytes that are not a frame, or
  // its bytes were changed on the way. Frames that arrived before can still be taken.
  bool closed() const noexcept { return closed_ || tampered_; }
  bool unsent() const noexcept { return !closed_ && !(out_.empty() && record_.empty()); }

  // Between hosts: after seal() this side seals all frames that it sends, and after open() it
  // accepts only sealed frames. A header is one record, and so is each piece of a payload. A member
  // calls seal() right after it has sent its hello, which the handshake has sealed. open() is
  // called once the other side has proved that it knows the secret. protect() does both.
  void seal(const std::string& key);
  void open(const std::string& key);
  void protect(const RecordKeys& keys) {
    seal(keys.seal);
    open(keys.open);
  }
  // The other side seals all that it sends after its first frame of this kind. The default is
  // kProof.
  void await_keys_behind(FrameKind kind) noexcept { keys_behind_ = kind; }
  // Whether bytes arrived that the other side did not send, or sent at another place.
  bool tampered() const noexcept { return tampered_; }

  // Called once the kernel or a proof has shown that the other end is a rank. Before that, frames
  // must be small and few, so that strangers cannot make this process allocate much memory.
  void trust() noexcept { trusted_ = true; }

  // The descriptor for service(). -1 if nothing more can be sent or received.
  int poll_fd() const noexcept { return closed() && !unsent() ? -1 : socket_.fd(); }
  // Receives and sends as much as is possible without waiting.
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
  // A frame that has not arrived whole.
  struct Incoming {
    Frame frame;
    std::uint64_t remaining;  // bytes of the payload that have not arrived
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
  std::string record_;  // sealed bytes that are not sent yet
  std::string in_;
  std::optional<Incoming> coming_;
  std::deque<Frame> arrived_;
  std::optional<RecordCipher> seal_, open_;
  Descriptor passed_;  // a descriptor that arrived with bytes of an incomplete frame
  bool trusted_ = false;
  // The next bytes are sealed, so they are not read before open().
  bool waits_for_keys_ = false;
  FrameKind keys_behind_ = FrameKind::kProof;
  bool tampered_ = false;
  bool closed_ = false;
};

// The error of rank `here` after the connection to `rank` has closed. It says "ended or left" and
// `when`, or that the bytes were changed on the way. `who` is the process of `rank`.
Error lost(const Connection& connection, int rank, const std::string& who, int here,
           const std::string& when);

// Reads a kFailure frame: "<code> <culprit>\n<message>". Earlier versions of ferry name no culprit.
Error failure_in(const std::string& payload);

// Waits for at most `wait_ms` until one of the connections or `extra_fd` can be read or written,
// and advances the connections. Null connections are skipped. Then the caller takes the frames.
// Returns true if extra_fd is readable.
bool service(const std::vector<Connection*>& connections, int wait_ms, int extra_fd = -1);

// Sends all queued frames. Returns false if the deadline passes before all of them are sent. Throws
// what Deadline::look() finds meanwhile.
bool flush_all(const std::vector<Connection*>& connections, Deadline deadline);

// Sends the failure to all connections that accept it within half a second.
void send_failure_to(const std::vector<Connection*>& connections, const Error& error);

}  // namespace ferry::internal
