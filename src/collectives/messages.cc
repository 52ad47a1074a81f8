#include "collectives/messages.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/kernels.h"

namespace ferry::internal {

namespace {

// The interval at which a receive from any rank checks whether a rank has died.
constexpr std::chrono::milliseconds kLook{50};

}  // namespace

Messages::Messages(GroupState& group, std::shared_ptr<Segment> segment,
                   const CollectivesLayout& layout, const MailboxShape& shape,
                   std::shared_ptr<Mirror> mirror)
    : group_(group),
      segment_(std::move(segment)),
      layout_(layout),
      shape_(shape),
      mirror_(std::move(mirror)),
      rank_(group.rank()),
      crowded_(group.crowded(1)),
      only_(group.size()),
      senders_(group.size()),
      sent_(group.size()) {}

Await Messages::awaiting(const char* phase, const std::atomic<std::uint64_t>& first,
                         std::size_t stride_bytes, std::uint64_t value, CallTime& time) noexcept {
  return {.operation = operation_,
          .number = number_,
          .phase = phase,
          .flags = &first,
          .stride_bytes = stride_bytes,
          .value = value,
          .time = &time,
          .crowded = crowded_,
          .only = &only_};
}

Status Messages::send(const std::byte* data, const MessageSpec& spec,
                      std::chrono::nanoseconds limit) {
  CallTime time(limit);
  if (Status verdict = group_.verdict(); !verdict.ok()) return verdict;
  operation_ = "send";
  ++number_;
  if (mirror_) mirror_->meet(spec.peer);
  std::size_t sent = 0;
  do {
    const std::size_t bytes = std::min(shape_.most_in_piece(), spec.bytes - sent);
    if (Status status = make_room(spec.peer, MailboxShape::piece_bytes(bytes), time); !status.ok())
      return status;
    write_piece({.bytes = bytes, .total = spec.bytes, .tag = spec.tag, .dtype = spec.dtype},
                data + sent, spec.peer);
    sent += bytes;
  } while (sent < spec.bytes);
  if (group_.here(spec.peer)) return {};
  return group_.await_sent(awaiting("room", flags(rank_, 0).taken, shape_.stride, 0, time), only_);
}

// Waits until a piece of this size fits into the ring. Meanwhile it keeps pieces of other ranks,
// which may be waiting for room too.
Status Messages::make_room(int receiver, std::size_t bytes, CallTime& time) {
  const std::uint64_t to_end = shape_.ring_bytes - sent_[receiver] % shape_.ring_bytes;
  if (to_end < bytes) {  // at least a head fits, as all sizes are multiples of it
    if (Status status = make_room(receiver, to_end, time); !status.ok()) return status;
    write_piece({.bytes = PieceHead::kGap, .total = to_end, .tag = 0, .dtype = DataType::kBytes},
                nullptr, receiver);
  }
  const std::uint64_t end = sent_[receiver] + bytes;
  const std::uint64_t taken = end <= shape_.ring_bytes ? 0 : end - shape_.ring_bytes;
  const std::function<std::int64_t()> keep = [this] { return keep_all() ? 1 : 0; };
  only_.assign(only_.size(), false);
  only_[receiver] = true;
  Await room = awaiting("room", flags(rank_, 0).taken, shape_.stride, taken, time);
  room.meanwhile = &keep;
  while (!room.up(receiver) && !time.passed() && keep_all()) {
  }
  return group_.wait(room);
}

void Messages::write_piece(const PieceHead& head, const std::byte* data, int receiver) {
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
  raise(flags(rank_, receiver).sent, sent_[receiver]);  // partner: next_piece()
  if (gap) return;
  // Partner: await_any(). Sequentially consistent, as raise().
  flags(receiver, receiver).arrivals.fetch_add(1, std::memory_order_seq_cst);
  group_.ring();
}

const PieceHead* Messages::next_piece(int sender) noexcept {
  Sender& from = senders_[sender];
  for (;;) {
    // Acquire: the piece was written before. Partner: write_piece().
    if (flags(sender, rank_).sent.load(std::memory_order_acquire) == from.taken) return nullptr;
    const auto* head = reinterpret_cast<const PieceHead*>(ring(sender, rank_, from.taken));
    if (head->bytes != PieceHead::kGap) return head;
    from.taken += head->total;
  }
}

void Messages::take_piece(int sender, const PieceHead& piece) {
  senders_[sender].taken += MailboxShape::piece_bytes(piece.bytes);
  raise(flags(sender, rank_).taken, senders_[sender].taken);  // partner: make_room()
  group_.ring();
  if (group_.here(sender)) return;
  mirror_->meet(sender);
  mirror_->send_taken(sender, senders_[sender].taken);
}

// Takes the next piece of `sender` into memory of this process.
bool Messages::keep_piece(int sender) {
  const PieceHead* piece = next_piece(sender);
  if (piece == nullptr) return false;
  std::list<Kept>& kept = senders_[sender].kept;
  if (kept.empty() || kept.back().whole()) kept.push_back({.head = *piece});
  Kept& message = kept.back();
  FERRY_CHECK(piece->bytes, <=, message.head.total - message.received);
  const auto* const data = reinterpret_cast<const std::byte*>(piece + 1);
  message.pieces.emplace_back(data, data + piece->bytes);
  message.received += piece->bytes;
  take_piece(sender, *piece);
  return true;
}

bool Messages::keep_all() {
  bool any = false;
  for (int sender = 0; sender < group_.size(); ++sender) any = keep_piece(sender) || any;
  return any;
}

Messages::Kept* Messages::find_kept(int sender, std::int64_t tag) noexcept {
  for (Kept& message : senders_[sender].kept)
    if (message.head.tag == tag) return &message;
  return nullptr;
}

Status Messages::check(int sender, const PieceHead& head, const MessageSpec& spec) const {
  if (head.total == spec.bytes && head.dtype == spec.dtype) return {};
  return {Code::kMismatch,
          fmt::format("recv {}: rank {} sent {} bytes of {} with tag {}, rank {} expects {} bytes "
                      "of {}",
                      number_, sender, head.total, data_type_name(head.dtype), head.tag, rank_,
                      spec.bytes, data_type_name(spec.dtype)),
          sender};
}

Status Messages::recv(std::byte* data, const MessageSpec& spec, int& source,
                      std::chrono::nanoseconds limit) {
  CallTime time(limit);
  if (Status verdict = group_.verdict(); !verdict.ok()) return verdict;
  operation_ = "recv";
  ++number_;
  const bool any = spec.peer == MessageSpec::kAny;
  for (int peer = 0; mirror_ && peer < group_.size(); ++peer)
    if (any || peer == spec.peer) mirror_->meet(peer);
  for (;;) {
    // Acquire: pieces that are counted are seen below. Partner: write_piece().
    const std::uint64_t arrivals = flags(rank_, rank_).arrivals.load(std::memory_order_acquire);
    for (int sender = any ? 0 : spec.peer; sender < (any ? group_.size() : spec.peer + 1);
         ++sender) {
      Status status;
      if (!receive_from(sender, data, spec, time, status)) continue;
      source = sender;
      return status;
    }
    Status status = any ? await_any(arrivals, time) : await_piece(spec.peer, time);
    if (!status.ok()) return status;
  }
}

bool Messages::receive_from(int sender, std::byte* data, const MessageSpec& spec, CallTime& time,
                            Status& status) {
  for (;;) {
    if (Kept* message = find_kept(sender, spec.tag)) {
      status = receive_kept(sender, *message, data, spec, time);
      return true;
    }
    const PieceHead* piece = next_piece(sender);
    if (piece == nullptr) return false;
    std::list<Kept>& kept = senders_[sender].kept;
    const bool begins = kept.empty() || kept.back().whole();
    if (!begins || piece->tag != spec.tag) {
      keep_piece(sender);
      continue;
    }
    status = check(sender, *piece, spec);
    if (status.ok()) status = receive_pieces(sender, data, spec.bytes, time);
    return true;
  }
}

Status Messages::receive_kept(int sender, Kept& message, std::byte* data, const MessageSpec& spec,
                              CallTime& time) {
  if (Status status = check(sender, message.head, spec); !status.ok()) return status;
  while (!message.whole()) {
    if (keep_piece(sender)) continue;
    if (Status status = await_piece(sender, time); !status.ok()) return status;
  }
  for (const std::vector<std::byte>& piece : message.pieces) {
    if (!piece.empty()) std::memcpy(data, piece.data(), piece.size());
    data += piece.size();
  }
  senders_[sender].kept.remove_if([&](const Kept& kept) { return &kept == &message; });
  return {};
}

// Receives a message directly into the caller's memory. Its first piece has arrived.
Status Messages::receive_pieces(int sender, std::byte* data, std::size_t bytes, CallTime& time) {
  std::size_t received = 0;
  for (;;) {
    if (const PieceHead* piece = next_piece(sender)) {
      FERRY_CHECK(piece->bytes, <=, bytes - received);
      if (piece->bytes > 0) copy_row(data + received, piece + 1, piece->bytes, Stores::kCached);
      received += piece->bytes;
      take_piece(sender, *piece);
      if (received == bytes) return {};
    } else if (Status status = await_piece(sender, time); !status.ok()) {
      return status;
    }
  }
}

Status Messages::await_piece(int sender, CallTime& time) {
  only_.assign(only_.size(), false);
  only_[sender] = true;
  const std::size_t stride = layout_.mailboxes(1) - layout_.mailboxes(0);
  return group_.wait(
      awaiting("a message", flags(0, rank_).sent, stride, senders_[sender].taken + 1, time));
}

// A rank that leaves the group does not end this wait, since the message may come from another
// rank. A rank that died ends it, and so does the end of all others.
Status Messages::await_any(std::uint64_t arrivals, CallTime& time) {
  const std::vector<bool> nobody(only_.size());
  only_.assign(only_.size(), true);
  only_[rank_] = group_.size() == 1;
  for (;;) {
    Await any = awaiting("a message", flags(rank_, rank_).arrivals, 0, arrivals + 1, time);
    if (time.passed() || all_ended()) return group_.wait(any);
    CallTime look(kLook);
    any.time = &look;
    any.needed = &nobody;
    Status status = group_.wait(any);
    if (status.code() != Code::kTimeout) return status;
    if (Status verdict = group_.verdict(); !verdict.ok()) return verdict;
    const Status death = group_.death_here();
    if (death.ok()) continue;
    only_.assign(only_.size(), false);
    only_[death.culprit()] = true;
    any.time = &time;
    any.needed = nullptr;
    return group_.wait(any);
  }
}

bool Messages::all_ended() const noexcept {
  for (int peer = 0; peer < group_.size(); ++peer)
    if (only_[peer] && !group_.ended(peer, /*sends_here=*/true)) return false;
  return true;
}

}  // namespace ferry::internal
