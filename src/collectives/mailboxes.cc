#include "collectives/mailboxes.h"

#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "group/wait.h"
#include "kernels/kernels.h"

namespace ferry::internal {

Mailboxes::Mailboxes(GroupState& group, std::shared_ptr<Segment> segment,
                     const CollectivesLayout& layout, const MailboxShape& shape,
                     std::shared_ptr<Mirror> mirror)
    : group_(group),
      segment_(std::move(segment)),
      layout_(layout),
      shape_(shape),
      mirror_(std::move(mirror)),
      rank_(group.rank()),
      senders_(group.size()),
      sent_(group.size()) {}

// Partner: Messages::await_event(). Sequentially consistent, as raise().
void Mailboxes::count_event(int rank) noexcept {
  events(rank).fetch_add(1, std::memory_order_seq_cst);
  group_.ring(rank);
}

std::uint64_t Mailboxes::needed(int receiver, std::size_t bytes) const noexcept {
  const std::uint64_t to_end = shape_.ring_bytes - sent_[receiver] % shape_.ring_bytes;
  const std::uint64_t end = sent_[receiver] + (to_end < bytes ? to_end : bytes);
  return end <= shape_.ring_bytes ? 0 : end - shape_.ring_bytes;
}

bool Mailboxes::has_room(int receiver, std::size_t bytes) {
  const auto fits = [&] {
    // Acquire: what is overwritten was read before. Partner: take().
    return flags(rank_, receiver).taken.load(std::memory_order_acquire) >= needed(receiver, bytes);
  };
  const std::uint64_t to_end = shape_.ring_bytes - sent_[receiver] % shape_.ring_bytes;
  if (to_end < bytes) {  // at least a head fits, as all sizes are multiples of it
    if (!fits()) return false;
    write({.bytes = PieceHead::kGap, .total = to_end, .tag = 0, .dtype = DataType::kBytes}, nullptr,
          receiver);
  }
  return fits();
}

void Mailboxes::write(const PieceHead& head, const std::byte* data, int receiver) {
  const bool gap = head.bytes == PieceHead::kGap;
  const std::uint64_t position = sent_[receiver];
  sent_[receiver] += gap ? head.total : MailboxShape::piece_bytes(head.bytes);
  if (!group_.here(receiver)) {
    return mirror_->send_piece(receiver, position, bytes_of(head),
                               {data, gap ? 0 : static_cast<std::size_t>(head.bytes)});
  }
  std::byte* const place = ring(rank_, receiver, position);
  std::memcpy(place, &head, sizeof head);
  if (!gap && head.bytes > 0) copy_row(place + sizeof head, data, head.bytes, Stores::kCached);
  raise(flags(rank_, receiver).sent, sent_[receiver]);  // partner: next()
  if (!gap) count_event(receiver);
}

const PieceHead* Mailboxes::next(int sender) noexcept {
  Sender& from = senders_[sender];
  for (;;) {
    // Acquire: the piece was written before. Partner: write().
    if (flags(sender, rank_).sent.load(std::memory_order_acquire) == from.taken) return nullptr;
    const auto* head = reinterpret_cast<const PieceHead*>(ring(sender, rank_, from.taken));
    if (head->bytes != PieceHead::kGap) return head;
    from.taken += head->total;
  }
}

void Mailboxes::take(int sender, const PieceHead& piece) {
  senders_[sender].taken += MailboxShape::piece_bytes(piece.bytes);
  raise(flags(sender, rank_).taken, senders_[sender].taken);  // partner: has_room()
  if (group_.here(sender)) return count_event(sender);
  mirror_->meet(sender);
  mirror_->send_taken(sender, senders_[sender].taken);
}

bool Mailboxes::keep(int sender) {
  const PieceHead* piece = next(sender);
  if (piece == nullptr || !fits(sender, *piece)) return false;
  const std::size_t held = kept_bytes(sender, *piece);
  Sender& from = senders_[sender];
  if (begins(sender)) from.last = &from.kept[piece->tag].emplace_back(KeptMessage{.head = *piece});
  KeptMessage& message = *from.last;
  FERRY_CHECK(piece->bytes, <=, message.head.total - message.received);
  const auto* const data = reinterpret_cast<const std::byte*>(piece + 1);
  message.pieces.emplace_back(data, data + piece->bytes);
  message.received += piece->bytes;
  message.held += held;
  from.held += held;
  take(sender, *piece);
  return true;
}

KeptMessage* Mailboxes::find_kept(int sender, std::int64_t tag) noexcept {
  std::map<std::int64_t, std::list<KeptMessage>>& kept = senders_[sender].kept;
  const auto found = kept.find(tag);
  return found == kept.end() ? nullptr : &found->second.front();
}

void Mailboxes::drop_kept(int sender, std::int64_t tag) {
  Sender& from = senders_[sender];
  const auto found = from.kept.find(tag);
  FERRY_CHECK(found == from.kept.end(), ==, false);
  const KeptMessage& message = found->second.front();
  from.held -= message.held;
  if (from.last == &message) from.last = nullptr;
  found->second.pop_front();
  if (found->second.empty()) from.kept.erase(found);
}

}  // namespace ferry::internal
