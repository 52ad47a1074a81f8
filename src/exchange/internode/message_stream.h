// MessageStream: packs pieces for one peer into as few messages as possible. One thread at a time
// takes room for a piece, in order; any thread writes the piece. A message is sent when all its
// pieces are written.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <optional>
#include <vector>

#include "group/state.h"
#include "network/message_channel.h"

namespace ferry::internal {

class MessageStream {
  struct Message;

 public:
  // The size of a full message. It is limited so that the receiver stores one message while the
  // next arrives (docs/decisions/between_nodes.md).
  static constexpr std::size_t kMessageBytes = MessageChannel::kSendBufferBytes / 4;

  // The room for a piece.
  struct Place {
    std::byte* data = nullptr;  // null: there is no room
    Message* message = nullptr;
  };

  MessageStream(MessageChannel& channel, int peer, const MessageHead& head)
      : channel_(&channel), peer_(peer), head_(head) {}

  int peer() const noexcept { return peer_; }
  // True when a piece of `bytes` has room, which append() then gives it.
  bool open(std::size_t bytes);
  // Takes room for a piece of `bytes` in one message; there is none while too many messages to this
  // peer are in flight.
  Place append(std::size_t bytes);
  // Call when the piece is written, on any thread, once for each place.
  void written(const Place& place);
  // Sends the last message, of which all pieces must be written. A small message is sent with the
  // next one to this peer (send_soon).
  void flush() { close(); }
  // Bytes of all messages, sent or not.
  std::size_t bytes() const noexcept { return bytes_; }
  bool is_small() const noexcept { return bytes_ <= kSmall; }

 private:
  // Copying a smaller message into another packet takes less time than sending a packet for it.
  static constexpr std::size_t kSmall = 4096;

  struct Message {
    std::optional<MessageChannel::SendBuffer> buffer;  // none: the piece is larger than a buffer
    std::vector<std::byte> large;                      // such a piece
    std::size_t used = 0;                              // bytes of the buffer
    // Pieces that are not written yet, and one more while pieces are added. The thread that lowers
    // it to 0 (acq_rel: after all writes of pieces) sends the message.
    std::atomic<int> unwritten{1};
  };

  void close();
  void lower(Message& message);
  void send(Message& message);

  MessageChannel* channel_;
  int peer_;
  MessageHead head_;
  std::list<Message> messages_;  // all messages so far; they do not move
  Message* filling_ = nullptr;   // pieces are added to this one
  std::size_t bytes_ = 0;
};

}  // namespace ferry::internal
