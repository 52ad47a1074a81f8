// Mailbox: a ring of bytes from one rank to one other, in shared memory. The sender writes pieces
// of messages, the receiver takes them in order. Positions only grow; a position modulo the size of
// the ring is an offset in it. CollectivesLayout::mailboxes_bytes() is the size of all mailboxes of
// one sender.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/round_up.h"
#include "ferry/types.h"

namespace ferry::internal {

// What lies before the bytes of a piece. A message of 0 bytes is one piece.
struct alignas(64) PieceHead {
  static constexpr std::uint64_t kGap =
      ~std::uint64_t{0};  // the ring ends here: go on at its start
  std::uint64_t bytes;    // of this piece, or kGap
  std::uint64_t total;    // of the message
  std::int64_t tag;
  DataType dtype;
};
static_assert(sizeof(PieceHead) == 64);

struct MailboxFlags {
  // The sender is the only writer of `sent`, the receiver that of `taken`; between nodes, Incoming
  // writes the flag of the other end.
  alignas(64) std::atomic<std::uint64_t> sent;
  alignas(64) std::atomic<std::uint64_t> taken;
  // Used in the mailbox of a rank to itself only: counts the events of the messages of that rank
  // (Mailboxes::events). Many writers.
  alignas(64) std::atomic<std::uint64_t> events;
};
static_assert(sizeof(MailboxFlags) == 192);

struct MailboxShape {
  static constexpr std::size_t kLeastRing = 4096, kMostRing = std::size_t{1} << 20;
  static constexpr std::size_t kMostPiece = std::size_t{256} << 10;

  // `bytes`: for the rings of one sender, one for each receiver. Their flags come on top, and a
  // ring has kLeastRing bytes even where `bytes` is too small for that.
  MailboxShape(int num_ranks, std::size_t bytes) noexcept
      : ring_bytes(std::clamp(bytes / static_cast<std::size_t>(num_ranks) / 128 * 128, kLeastRing,
                              kMostRing)),
        stride(sizeof(MailboxFlags) + ring_bytes),
        all_bytes(stride * static_cast<std::size_t>(num_ranks)) {}

  // Half of the ring at most, so that one piece is written while another is taken.
  std::size_t most_in_piece() const noexcept {
    return std::min(ring_bytes / 2, kMostPiece) - sizeof(PieceHead);
  }
  static std::size_t piece_bytes(std::size_t bytes) noexcept {
    return sizeof(PieceHead) + round_up(bytes, sizeof(PieceHead));
  }

  std::size_t ring_bytes, stride, all_bytes;
};

}  // namespace ferry::internal
