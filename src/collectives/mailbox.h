// Mailbox: a ring of bytes from one rank to one other, in shared memory. The sender writes pieces
// of messages, the receiver takes them in order. Positions only grow; a position modulo the size of
// the ring is an offset in it. mailboxes_bytes() of CollectivesLayout is that of one sender.
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
  // The sender is the only writer of `sent`, the receiver that of `taken`.
  alignas(64) std::atomic<std::uint64_t> sent;
  alignas(64) std::atomic<std::uint64_t> taken;
  // In the mailbox of a rank to itself, a count of what concerns its messages (Mailboxes::events);
  // many writers.
  alignas(64) std::atomic<std::uint64_t> events;
};
static_assert(sizeof(MailboxFlags) == 192);

struct MailboxShape {
  static constexpr std::size_t kLeastRing = 4096, kMostRing = std::size_t{1} << 20;
  static constexpr std::size_t kMostPiece = std::size_t{256} << 10;

  // The mailboxes of a sender that has `bytes` for all of them, or more where rings would be too
  // short.
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
