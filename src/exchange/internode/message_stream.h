// MessageStream: pieces for one peer, one after the other, in as few messages as they fit. Called
// by RowSplitter and SumRequest with the lock of the MessageChannel held; calls MessageChannel.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "group/state.h"
#include "network/message_channel.h"

namespace ferry::internal {

class MessageStream {
 public:
  MessageStream(MessageChannel& messages, int peer, const MessageHead& head)
      : messages_(&messages), peer_(peer), head_(head) {}

  int peer() const noexcept { return peer_; }
  // True when a piece of `bytes` has room, which append() then gives it.
  bool open(std::size_t bytes);
  // Room for a piece of `bytes`, not split; null while too much is under way to this peer.
  std::byte* append(std::size_t bytes);
  // Sends what there is; a small message leaves with the next one to this peer (send_soon).
  void flush();
  // Of messages, sent and not.
  std::size_t bytes() const noexcept { return bytes_; }
  // To copy what is smaller takes less time than a packet of its own.
  bool is_small() const noexcept { return bytes_ <= 4096; }

 private:
  MessageChannel* messages_;
  int peer_;
  MessageHead head_;
  std::optional<MessageChannel::SendBuffer> buffer_;
  std::size_t used_ = 0;          // of buffer_
  std::vector<std::byte> large_;  // a piece that no buffer holds
  std::size_t bytes_ = 0;
};

}  // namespace ferry::internal
