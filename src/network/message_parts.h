// The parts of MessageChannel: the head of a packet, an outgoing message, a packet that arrived out
// of order, and a peer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <vector>

#include "base/check.h"
#include "network/message_channel.h"

namespace ferry::internal {

constexpr std::align_val_t kPage{4096};

struct FreePages {
  void operator()(std::byte* pages) const noexcept { ::operator delete[](pages, kPage); }
};
using Pages = std::unique_ptr<std::byte[], FreePages>;

// Allocates pages and writes to each of them once, so that they exist.
inline Pages make_pages(std::size_t bytes) {
  Pages pages(static_cast<std::byte*>(::operator new[](bytes, kPage)));
  std::memset(pages.get(), 0, bytes);
  return pages;
}

// The head of every packet. `sequence` counts the packets from `from` to their receiver, and wraps.
// A bundle is several messages that are sent together; each follows its length (64 bits).
struct MessageChannel::Head {
  std::uint64_t job;
  std::uint64_t remaining;  // bytes of the message from the begin of this packet's body
  std::uint32_t sequence;
  std::uint32_t from;
  std::uint32_t body_bytes;
  std::uint32_t is_bundle;
};

struct MessageChannel::Outgoing {
  int peer = 0;
  std::uint64_t number = 0;     // among the messages to this peer
  Pages buffer;                 // null if this is a bundle
  std::vector<std::byte> copy;  // the contents of a bundle
  std::deque<Head> heads;       // one for each packet; they do not move
  std::size_t packets_remaining = 0;

  // For more bytes of a bundle.
  void reserve(std::size_t more) {
    const std::size_t least = copy.size() + more;
    if (least > copy.capacity()) copy.reserve(std::max(least, 2 * copy.capacity()));
  }
  // Empties a bundle. Its memory is kept unless it is larger than a send buffer.
  void empty() noexcept {
    copy.clear();
    if (copy.capacity() > kSendBufferBytes) copy = std::vector<std::byte>();
  }
  const std::byte* data() const noexcept { return buffer ? buffer.get() : copy.data(); }
};

struct MessageChannel::Early {
  Head head;
  std::vector<std::byte> body;
};

struct MessageChannel::Peer {
  std::uint64_t job = 0;  // of its packets
  std::uint32_t next_out = 0;
  std::uint32_t next_in = 0;
  bool is_connected = false, is_lost = false, is_disregarded = false;
  int num_buffers = 0;
  Traffic traffic;
  std::deque<bool> is_sent;        // by message, from number traffic.sent + 1 on
  std::vector<Outgoing*> buffers;  // free buffers
  Outgoing* bundle = nullptr;      // the bundle that is not sent yet
  std::map<std::uint32_t, Early> early;
  std::size_t early_bytes = 0;
  std::vector<std::byte> joined;  // the bytes of a message that has not arrived whole
  std::uint64_t to_join = 0;      // the bytes of that message that are missing

  std::uint64_t queue_one() {
    is_sent.push_back(false);
    return ++traffic.queued;
  }
  bool all_sent() const { return traffic.sent == traffic.queued; }
  // Messages may be sent in any order.
  void mark_sent(std::uint64_t number) {
    FERRY_CHECK(number, >, traffic.sent);
    FERRY_CHECK(number, <=, traffic.queued);
    is_sent[number - traffic.sent - 1] = true;
    for (; !is_sent.empty() && is_sent.front(); is_sent.pop_front()) ++traffic.sent;
  }

  void forget() {
    early.clear();
    early_bytes = 0;
    joined = std::vector<std::byte>();
  }

  // Messages that are under way are still counted.
  void begin_anew(std::uint64_t its_job) {
    forget();
    job = its_job;
    next_out = next_in = 0;
    to_join = 0;
    is_connected = is_lost = is_disregarded = false;
  }
};

}  // namespace ferry::internal
