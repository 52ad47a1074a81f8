// Mailboxes: the rings between this rank and the others (mailbox.h). Writes pieces of the messages
// that this rank sends, and takes those of messages to it. A piece that is taken before a receive
// wants it lies in memory of this process until then: pieces of messages with other tags, and all
// that come while a send waits for room, so that two ranks can send to each other. This memory is
// bounded: from then on pieces stay in the mailbox, and the sender waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "collectives/layout.h"
#include "collectives/mailbox.h"
#include "collectives/mirror.h"
#include "group/state.h"
#include "memory/segment.h"

namespace ferry::internal {

// A message that was taken from its mailbox, whole or in part. It has memory for the bytes that
// have come, and not for the size in its head, which may come from another host.
struct KeptMessage {
  PieceHead head;
  std::vector<std::vector<std::byte>> pieces = {};
  std::size_t received = 0;
  std::size_t held = 0;  // bytes of memory that it takes
  bool whole() const noexcept { return received == head.total; }
};

class Mailboxes {
 public:
  Mailboxes(GroupState& group, std::shared_ptr<Segment> segment, const CollectivesLayout& layout,
            const MailboxShape& shape, std::shared_ptr<Mirror> mirror);  // null on one node

  const MailboxShape& shape() const noexcept { return shape_; }
  // Call before the first piece to or from a rank.
  void meet(int peer) {
    if (mirror_) mirror_->meet(peer);
  }
  MailboxFlags& flags(int sender, int receiver) const noexcept {
    return *reinterpret_cast<MailboxFlags*>(segment_->data() + layout_.mailboxes(sender) +
                                            static_cast<std::size_t>(receiver) * shape_.stride);
  }
  // Between the flags of two senders to one receiver.
  std::size_t sender_stride() const noexcept { return layout_.mailboxes(1) - layout_.mailboxes(0); }
  // Grows with every piece that comes to this rank, every piece that a receiver takes from this
  // rank, and every message that this rank begins.
  std::atomic<std::uint64_t>& events() const noexcept { return events(rank_); }

  // Whether a piece of so many bytes, its head included, fits behind what is in the ring. Fills the
  // end of the ring with a gap first where the piece is too long for it.
  bool has_room(int receiver, std::size_t bytes);
  // The value of `taken` from which on that piece fits, or the gap that must come before it.
  std::uint64_t needed(int receiver, std::size_t bytes) const noexcept;
  void write(const PieceHead& head, const std::byte* data, int receiver);
  // The next piece from `sender`; null: none has come.
  const PieceHead* next(int sender) noexcept;
  void take(int sender, const PieceHead& piece);
  std::uint64_t taken(int sender) const noexcept { return senders_[sender].taken; }

  // The most bytes of one sender in memory of this process, with what keeping them takes.
  static constexpr std::size_t kMostKept = std::size_t{64} << 20;
  // Takes the next piece into memory of this process. False: none has come, or there is no room.
  bool keep(int sender);
  // A piece has come for which there is no room.
  bool is_full(int sender) noexcept {
    const PieceHead* piece = next(sender);
    return piece != nullptr && !fits(sender, *piece);
  }
  // The next piece is the first one of its message.
  bool begins(int sender) const noexcept {
    const KeptMessage* last = senders_[sender].last;
    return last == nullptr || last->whole();
  }
  // The first message with this tag; null: there is none.
  KeptMessage* find_kept(int sender, std::int64_t tag) noexcept;
  // Drops what find_kept() returned for this tag.
  void drop_kept(int sender, std::int64_t tag);

 private:
  struct Sender {
    std::uint64_t taken = 0;                              // position in its mailbox to this rank
    std::map<std::int64_t, std::list<KeptMessage>> kept;  // by tag, those of each tag in order
    // The latest kept message, the only one that may be incomplete; null: there is none, or it was
    // dropped.
    KeptMessage* last = nullptr;
    std::size_t held = 0;  // by all of `kept`
  };

  std::atomic<std::uint64_t>& events(int rank) const noexcept { return flags(rank, rank).events; }
  std::byte* ring(int sender, int receiver, std::uint64_t position) const noexcept {
    return reinterpret_cast<std::byte*>(&flags(sender, receiver)) + sizeof(MailboxFlags) +
           position % shape_.ring_bytes;
  }
  // The memory for a piece. Its size in the mailbox is enough for its bytes, its vector and what
  // the allocator adds. A message also takes a place in a list, and its tag one in the map.
  std::size_t kept_bytes(int sender, const PieceHead& piece) const noexcept {
    constexpr std::size_t kTag = 128;
    constexpr std::size_t kMessage = sizeof(KeptMessage) + sizeof(PieceHead) + kTag;
    return MailboxShape::piece_bytes(piece.bytes) + (begins(sender) ? kMessage : 0);
  }
  bool fits(int sender, const PieceHead& piece) const noexcept {
    return senders_[sender].held + kept_bytes(sender, piece) <= kMostKept;
  }
  void count_event(int rank) noexcept;

  GroupState& group_;
  std::shared_ptr<Segment> segment_;
  const CollectivesLayout layout_;
  const MailboxShape shape_;
  std::shared_ptr<Mirror> mirror_;
  int rank_;
  std::vector<Sender> senders_;      // [ranks]
  std::vector<std::uint64_t> sent_;  // [ranks] bytes written for each so far, with the gaps
};

}  // namespace ferry::internal
