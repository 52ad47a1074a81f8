// Messages between the nodes of a Collectives: calls, steps, data of windows, pieces of messages
// and the pieces that were taken, as any network may bring them. Each is written to a segment that
// ends where its layout ends. Then the rings are walked as a receiver does. Input: {kind, from,
// flags}, the number as a distance from where the ring of the sender ends or in 8 bytes, the bytes
// of the body, body.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "collectives/incoming.h"

namespace {

using namespace ferry::internal;

constexpr int kRanks = 4, kRank = 0;

struct Receiver {
  Receiver() : shape(kRanks, 16384), layout(kRanks, 4096, shape.all_bytes) {
    segment = static_cast<std::byte*>(std::aligned_alloc(4096, layout.segment_bytes()));
    std::memset(segment, 0, layout.segment_bytes());
  }
  ~Receiver() { std::free(segment); }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  MailboxFlags& flags(int sender) const {
    return *reinterpret_cast<MailboxFlags*>(segment + layout.mailboxes(sender) +
                                            kRank * shape.stride);
  }

  // What next_piece(), receive_pieces() and take_piece() of Messages rely on.
  void take_all(int sender) {
    MailboxFlags& ring = flags(sender);
    std::uint64_t& at = taken[static_cast<std::size_t>(sender)];
    const std::uint64_t sent = ring.sent.load(std::memory_order_relaxed);
    if (sent - at > shape.ring_bytes) std::abort();
    std::uint64_t& remaining = to_come[static_cast<std::size_t>(sender)];
    while (at != sent) {
      PieceHead head;
      const std::uint64_t offset = at % shape.ring_bytes;
      std::memcpy(&head, reinterpret_cast<std::byte*>(&ring) + sizeof ring + offset, sizeof head);
      const bool gap = head.bytes == PieceHead::kGap;
      const std::uint64_t bytes = gap ? head.total : MailboxShape::piece_bytes(head.bytes);
      if (bytes == 0 || bytes > shape.ring_bytes - offset || bytes > sent - at) std::abort();
      at += bytes;
      if (gap) continue;
      if (remaining == 0) remaining = head.total;
      if (head.bytes > remaining || (head.bytes == 0 && remaining > 0)) std::abort();
      remaining -= head.bytes;
      ring.taken.store(at, std::memory_order_relaxed);
    }
  }

  MailboxShape shape;
  CollectivesLayout layout;
  std::byte* segment;
  std::array<std::uint64_t, kRanks> taken{}, to_come{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Receiver receiver;
  Incoming incoming(receiver.segment, receiver.layout, receiver.shape, kRank, kRanks);
  ByteReader reader(std::as_bytes(std::span(data, size)));
  while (reader.ok() && reader.remaining() > 0) {
    const auto kind = reader.get<std::uint8_t>();
    const int from = 1 + reader.get<std::uint8_t>() % (kRanks - 1);
    const auto flags = reader.get<std::uint8_t>();
    const std::uint64_t end = receiver.flags(from).sent.load(std::memory_order_relaxed);
    const std::uint64_t number = (flags & 1) != 0
                                     ? reader.get<std::uint64_t>()
                                     : end + static_cast<std::uint64_t>(reader.get<std::int8_t>());
    std::vector<std::byte> body;
    if ((flags & 2) != 0) {  // a piece
      PieceHead head{};
      head.bytes = reader.get<std::uint16_t>() % 4096;
      head.total = (flags & 4) != 0 ? head.bytes : reader.get<std::uint64_t>();
      append(body, head);
      body.resize(sizeof head + head.bytes);
    } else if ((flags & 8) != 0) {
      const CallRecord record{
          .terms = {.kind = static_cast<CallKind>(flags >> 4)},
          .status = (flags & 4) != 0 ? ferry::Code::kInvalidArgument : ferry::Code::kOk};
      const std::array<std::byte, 2 * kRanks * sizeof(std::int64_t)> counts{};
      Incoming::write_call(record, counts.data(), kRanks, body);
    }
    const auto more = reader.get<std::uint8_t>();
    append(body, reader.take(std::min<std::size_t>(more, reader.remaining())));
    incoming.read({from, kind, number, body}, (flags & 16) != 0);
    if ((flags & 32) != 0) receiver.take_all(from);
  }
  for (int peer = 1; peer < kRanks; ++peer) receiver.take_all(peer);
  return 0;
}
