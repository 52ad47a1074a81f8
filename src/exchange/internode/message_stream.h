// MessageStream: pieces for one peer, one after the other, in as few messages as they fit. One
// thread at a time takes room for a piece, in order; any thread writes the piece, and a message
// leaves when all its pieces are written.
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
  // The size of a full message: a part that has come is stored while more comes
  // (docs/decisions/between_nodes.md).
  static constexpr std::size_t kMessageBytes = MessageChannel::kSendBufferBytes / 4;

  // Where a piece is to be written.
  struct Place {
    std::byte* data = nullptr;  // null: there is no room now
    Message* message = nullptr;
  };

  MessageStream(MessageChannel& channel, int peer, const MessageHead& head)
      : channel_(&channel), peer_(peer), head_(head) {}

  int peer() const noexcept { return peer_; }
  // True when a piece of `bytes` has room, which append() then gives it.
  bool open(std::size_t bytes);
  // Room for a piece of `bytes`, not split; none while too much is under way to this peer.
  Place append(std::size_t bytes);
  // The piece is there. On any thread, once for each place.
  void written(const Place& place);
  // Sends what there is, all of it written; a small message leaves with the next one to this peer
  // (send_soon).
  void flush() { close(); }
  // Bytes of messages, sent and not.
  std::size_t bytes() const noexcept { return bytes_; }
  bool is_small() const noexcept { return bytes_ <= kSmall; }

 private:
  // To copy what is smaller takes less time than a packet of its own.
  static constexpr std::size_t kSmall = 4096;

  struct Message {
    std::optional<MessageChannel::SendBuffer> buffer;  // none: a piece that no buffer holds
    std::vector<std::byte> large;                      // that piece
    std::size_t used = 0;                              // of the buffer
    // Pieces that are not written yet, and one more while pieces are added. Whoever lowers it to 0
    // (acq_rel: after all who wrote a piece) sends the message.
    std::atomic<int> unwritten{1};
  };

  void close();
  void lower(Message& message);
  void send(Message& message);

  MessageChannel* channel_;
  int peer_;
  MessageHead head_;
  std::list<Message> messages_;  // all that there were; they do not move
  Message* filling_ = nullptr;   // the one to which pieces are added
  std::size_t bytes_ = 0;
};

}  // namespace ferry::internal
