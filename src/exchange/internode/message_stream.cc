#include "exchange/internode/message_stream.h"

#include <span>

#include "base/bytes.h"

namespace ferry::internal {

namespace {

// So that what has come is stored while more comes (docs/decisions/between_nodes.md).
constexpr std::size_t kMessageBytes = MessageChannel::kSendBufferBytes / 4;

}  // namespace

bool MessageStream::open(std::size_t bytes) {
  const bool full = buffer_ && used_ > sizeof head_ && used_ + bytes > kMessageBytes;
  if (!large_.empty() || full) flush();
  if (!buffer_) {
    buffer_ = messages_->send_buffer(peer_);
    if (!buffer_) return false;
    ByteWriter({buffer_->data(), sizeof head_}).put(head_);
    used_ = sizeof head_;
  }
  return true;
}

std::byte* MessageStream::append(std::size_t bytes) {
  if (!open(bytes)) return nullptr;
  bytes_ += bytes + (used_ == sizeof head_ ? sizeof head_ : 0);
  if (used_ + bytes > MessageChannel::kSendBufferBytes) {
    buffer_.reset();
    large_.resize(bytes);
    return large_.data();
  }
  std::byte* piece = buffer_->data() + used_;
  used_ += bytes;
  return piece;
}

void MessageStream::flush() {
  if (!large_.empty()) messages_->send_now(peer_, bytes_of(head_), large_);
  if (buffer_ && used_ > sizeof head_) {
    const std::span<const std::byte> message(buffer_->data(), used_);
    is_small() ? messages_->send_soon(peer_, message) : messages_->send(std::move(*buffer_), used_);
  }
  large_.clear();
  buffer_.reset();
}

}  // namespace ferry::internal
