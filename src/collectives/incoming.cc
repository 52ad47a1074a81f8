#include "collectives/incoming.h"

#include <algorithm>
#include <cstring>

#include "group/wait.h"

namespace ferry::internal {

namespace {

constexpr std::size_t kHead = offsetof(CallRecord, reason);

std::size_t counts_bytes(CallKind kind, int num_ranks) noexcept {
  return static_cast<std::size_t>(num_count_lists(kind) * num_ranks) * sizeof(std::int64_t);
}

}  // namespace

std::size_t Incoming::most_bytes_of_call(int num_ranks) noexcept {
  return kHead + std::max(sizeof(CallRecord::reason), counts_bytes(CallKind::kAllToAll, num_ranks));
}

void Incoming::write_call(const CallRecord& record, const std::byte* counts, int num_ranks,
                          std::vector<std::byte>& body) {
  const bool refuses = record.status != Code::kOk;
  const std::size_t rest =
      refuses ? std::strlen(record.reason) : counts_bytes(record.terms.kind, num_ranks);
  body.resize(kHead + rest);
  std::memcpy(body.data(), &record, kHead);
  std::memcpy(body.data() + kHead, refuses ? static_cast<const void*>(record.reason) : counts,
              rest);
}

Incoming::Incoming(std::byte* segment, const CollectivesLayout& layout, const MailboxShape& shape,
                   int rank, int num_ranks)
    : segment_(segment),
      layout_(layout),
      shape_(shape),
      rank_(rank),
      num_ranks_(num_ranks),
      to_come_(static_cast<std::size_t>(num_ranks)) {}

bool Incoming::read(const MirrorMessage& message, bool serves) noexcept {
  switch (message.kind) {
    case MirrorMessage::kPiece: return read_piece(message);
    case MirrorMessage::kTaken:
      // Partner: Mailboxes::has_room(). This rank is the only writer.
      raise_to(mailbox(rank_, message.from).taken, message.number);
      count_event();
      return true;
    case MirrorMessage::kCall: return serves && read_call(message);
    case MirrorMessage::kData:
      if (serves) read_data(message);
      return false;
    case MirrorMessage::kStep:
      if (serves) raise_step(message.from, message.number);
      return serves;
    default: return false;
  }
}

// In both flags, as Calls::raise_step(). This rank is the only writer. Partner: Calls::await().
void Incoming::raise_step(int rank, std::uint64_t step) noexcept {
  for (const std::uint64_t number : {0, 1}) raise_to(flag(rank, number).step, step);
}

bool Incoming::read_call(const MirrorMessage& message) noexcept {
  const std::uint64_t number = message.number;
  // Relaxed: this rank is the only writer. The limit keeps the steps of the call below kDeparted.
  const std::uint64_t last = flag(message.from, number).step.load(std::memory_order_relaxed);
  if (number <= last / Step::kPerCall || number > Step::kMostCalls) return false;
  CallRecord said;
  if (message.body.size() < kHead) return false;
  std::memcpy(static_cast<void*>(&said), message.body.data(), kHead);
  said.number = number;
  const std::span<const std::byte> rest = message.body.subspan(kHead);
  if (said.status == Code::kOk) {
    if (rest.size() != counts_bytes(said.terms.kind, num_ranks_)) return false;
    std::memcpy(at(layout_.sent_counts(message.from, number)), rest.data(), rest.size());
  } else {
    if (rest.size() >= sizeof said.reason) return false;
    std::memcpy(said.reason, rest.data(), rest.size());
  }
  std::memcpy(at(layout_.record(message.from, number)), &said, sizeof said);
  flag(message.from, number).say(said);
  raise_step(message.from, Step::written(number, 0));
  return true;
}

void Incoming::read_data(const MirrorMessage& message) noexcept {
  const std::span<const std::byte> data = message.body;
  const std::size_t begin = layout_.window(message.from), size = layout_.window_bytes();
  const std::uint64_t offset = message.number;
  if (offset < begin || data.size() > size || offset - begin > size - data.size()) return;
  if (!data.empty()) std::memcpy(at(offset), data.data(), data.size());
}

// Reads a piece of a message to this rank. It must be the next one: it begins at the end of the
// data in the ring, there is room for it, and its message still lacks this many bytes. So the ring
// holds only checked heads.
bool Incoming::read_piece(const MirrorMessage& message) noexcept {
  const std::span<const std::byte> piece = message.body;
  PieceHead head;
  if (piece.size() < sizeof head) return false;
  std::memcpy(&head, piece.data(), sizeof head);
  MailboxFlags& flags = mailbox(message.from, rank_);
  const std::uint64_t position = flags.sent.load(std::memory_order_relaxed);  // written here only
  const std::size_t offset = position % shape_.ring_bytes, to_end = shape_.ring_bytes - offset;
  const bool gap = head.bytes == PieceHead::kGap;
  const bool whole = piece.size() - sizeof head == (gap ? 0 : head.bytes);
  if (message.number != position || !whole || (gap && head.total != to_end)) return false;
  const std::uint64_t end = position + (gap ? to_end : MailboxShape::piece_bytes(head.bytes));
  // Acquire: what is overwritten was read before. Partner: Mailboxes::take().
  const std::uint64_t taken = flags.taken.load(std::memory_order_acquire);
  if (end - position > to_end || end - taken > shape_.ring_bytes) return false;
  if (!gap && !is_next(head, to_come_[static_cast<std::size_t>(message.from)])) return false;
  std::memcpy(reinterpret_cast<std::byte*>(&flags) + sizeof flags + offset, piece.data(),
              piece.size());
  raise(flags.sent, end);  // partner: Mailboxes::next()
  if (!gap) count_event();
  return true;
}

// Counts the piece if it is the next one of the message that is incomplete by `to_come`.
bool Incoming::is_next(const PieceHead& head, ToCome& to_come) noexcept {
  const bool first = to_come.bytes == 0;
  const std::uint64_t missing = first ? head.total : to_come.bytes;
  if (head.bytes > missing || (head.bytes == 0) != (missing == 0)) return false;
  if (!first && head.total != to_come.total) return false;
  to_come = {.total = head.total, .bytes = missing - head.bytes};
  return true;
}

}  // namespace ferry::internal
