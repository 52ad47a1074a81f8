#include "exchange/internode/message_stream.h"

#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace ferry::internal {

bool MessageStream::open(std::size_t bytes) {
  const bool full = filling_ && (!filling_->buffer || (filling_->used > sizeof head_ &&
                                                       filling_->used + bytes > kMessageBytes));
  if (full) close();
  if (!filling_) {
    std::optional<MessageChannel::SendBuffer> buffer = channel_->send_buffer(peer_);
    if (!buffer) return false;
    ByteWriter({buffer->data(), sizeof head_}).put(head_);
    filling_ = &messages_.emplace_back();
    filling_->buffer = std::move(buffer);
    filling_->used = sizeof head_;
  }
  return true;
}

MessageStream::Place MessageStream::append(std::size_t bytes) {
  if (!open(bytes)) return {};
  Message& message = *filling_;
  bytes_ += bytes + (message.used == sizeof head_ ? sizeof head_ : 0);
  // Relaxed: it is not 0 while pieces are added, and close() comes after.
  message.unwritten.fetch_add(1, std::memory_order_relaxed);
  if (message.used + bytes > MessageChannel::kSendBufferBytes) {
    message.buffer.reset();
    message.large.resize(bytes);
    return {message.large.data(), &message};
  }
  std::byte* piece = message.buffer->data() + message.used;
  message.used += bytes;
  FERRY_CHECK(message.used, <=, MessageChannel::kSendBufferBytes);
  return {piece, &message};
}

void MessageStream::written(const Place& place) { lower(*place.message); }

void MessageStream::close() {
  if (filling_) lower(*std::exchange(filling_, nullptr));
}

void MessageStream::lower(Message& message) {
  if (message.unwritten.fetch_sub(1, std::memory_order_acq_rel) == 1) send(message);
}

void MessageStream::send(Message& message) {
  if (!message.buffer) {
    channel_->send_now(peer_, bytes_of(head_), std::exchange(message.large, {}));
    return;
  }
  MessageChannel::SendBuffer buffer = std::move(*message.buffer);
  if (message.used == sizeof head_) return;  // the message has a head and no piece
  const std::span<const std::byte> all(buffer.data(), message.used);
  message.used <= kSmall ? channel_->send_soon(peer_, all)
                         : channel_->send(std::move(buffer), message.used);
}

}  // namespace ferry::internal
