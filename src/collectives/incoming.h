// Incoming: writes the messages that ranks of other nodes send to a Collectives (mirror.h) to the
// segment of this node. The bytes come over the network, so it checks them and drops a message that
// no rank of ferry sends: offsets and lengths in the segment then always lie inside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/layout.h"
#include "collectives/mailbox.h"

namespace ferry::internal {

// One message between nodes. `number` is the number of a kCall, the step of a kStep, the offset in
// the segment of a kData, and a position in the ring of a kPiece or kTaken.
struct MirrorMessage {
  enum Kind : std::uint8_t { kCall, kStep, kData, kPiece, kTaken };
  int from;
  std::uint8_t kind;
  std::uint64_t number;
  std::span<const std::byte> body;
};

class Incoming {
 public:
  // `segment`: segment_bytes() of the layout.
  Incoming(std::byte* segment, const CollectivesLayout& layout, const MailboxShape& shape, int rank,
           int num_ranks);

  // `serves`: whether this rank copies, for its node, what the sender writes to its own window and
  // flag. Returns true if a flag was raised that sleeping ranks of this node may wait for.
  bool read(const MirrorMessage& message, bool serves) noexcept;

  // The body of a kCall: the record up to its reason, then the counts of its kind, or the reason if
  // the rank refuses. `counts`: CollectivesLayout::sent_counts(), with the expected counts behind
  // them.
  static void write_call(const CallRecord& record, const std::byte* counts, int num_ranks,
                         std::vector<std::byte>& body);
  // The most bytes of such a body.
  static std::size_t most_bytes_of_call(int num_ranks) noexcept;

 private:
  bool read_call(const MirrorMessage& message) noexcept;
  void raise_step(int rank, std::uint64_t step) noexcept;
  void read_data(const MirrorMessage& message) noexcept;
  bool read_piece(const MirrorMessage& message) noexcept;
  // An incomplete message: the bytes of all of it, and the bytes that are missing.
  struct ToCome {
    std::uint64_t total = 0, bytes = 0;
  };
  static bool is_next(const PieceHead& head, ToCome& to_come) noexcept;
  // Partner: Messages::await_event().
  void count_event() const noexcept {
    mailbox(rank_, rank_).events.fetch_add(1, std::memory_order_seq_cst);
  }
  std::byte* at(std::size_t offset) const noexcept { return segment_ + offset; }
  CallFlag& flag(int rank, std::uint64_t number) const noexcept {
    return *reinterpret_cast<CallFlag*>(at(layout_.flag(rank, number)));
  }
  MailboxFlags& mailbox(int sender, int receiver) const noexcept {
    return *reinterpret_cast<MailboxFlags*>(at(layout_.mailboxes(sender)) +
                                            static_cast<std::size_t>(receiver) * shape_.stride);
  }

  std::byte* segment_;
  const CollectivesLayout layout_;
  const MailboxShape shape_;
  int rank_, num_ranks_;
  std::vector<ToCome> to_come_;  // [ranks] by sender
};

}  // namespace ferry::internal
