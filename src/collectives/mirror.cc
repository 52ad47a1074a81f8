#include "collectives/mirror.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "group/wait.h"

namespace ferry::internal {

namespace {

// Data of one message: the send buffers of a channel have so many bytes (MessageChannel).
constexpr std::size_t kMostData = MessageChannel::kSendBufferBytes - 128;
// Data that are sent in one packet with the record that follows.
constexpr std::size_t kSoon = 4096;

}  // namespace

Mirror::Mirror(GroupState& group, std::shared_ptr<Segment> segment, const CollectivesLayout& layout,
               const MailboxShape& shape)
    : group_(group),
      segment_(std::move(segment)),
      layout_(layout),
      shape_(shape),
      met_(group.size()),
      channel_{.read = [this](const InMessage& message) { read(message); },
               .go_on = [this] { return go_on(); },
               .awaited = [] { return Channel::Awaited{}; }},
      number_(group.open_channel(&channel_)) {}

Mirror::~Mirror() { group_.close_channel(number_); }

void Mirror::keep_open(const std::shared_ptr<Mirror>& mirror) {
  mirror->group_.keep_open(mirror->number_, mirror);
}

// Until all ranks that this one serves have departed too, or are gone.
bool Mirror::go_on() {
  channel_.done = channel_.kept_open != nullptr;
  for (int peer = 0; peer < group_.size() && channel_.done; ++peer) {
    // Acquire: as everywhere (Await::up).
    const bool ends = !serves(peer) || group_.ended(peer, /*sends_here=*/true) ||
                      flag(peer).step.load(std::memory_order_acquire) == Step::kDeparted;
    channel_.done = ends;
  }
  return false;
}

void Mirror::send(int peer, Kind kind, std::uint64_t number, std::span<const std::byte> body,
                  bool soon) const {
  const MessageHead head{.channel = number_, .kind = kind, .number = number};
  if (soon) {
    group_.messages().send_soon(peer, bytes_of(head), body);
  } else {
    group_.messages().send_now(peer, bytes_of(head), body);
  }
}

void Mirror::send_call(std::uint64_t number) const {
  const int rank = group_.rank();
  std::vector<std::byte> body(record_bytes());
  const std::size_t counts = body.size() - sizeof(CallRecord);
  std::memcpy(body.data(), at(layout_.record(rank, number)), sizeof(CallRecord));
  std::memcpy(body.data() + sizeof(CallRecord), at(layout_.sent_counts(rank, number)), counts);
  for (const ForwardingTable::Mate& mate : table().mates) send(mate.rank, kCall, number, body);
}

void Mirror::send_step(std::uint64_t step) const noexcept {
  for (const ForwardingTable::Mate& mate : table().mates) send(mate.rank, kStep, step);
}

void Mirror::send_data(std::size_t offset, std::span<const std::byte> data, int reader) const {
  const int node = reader == kAll ? -1 : group_.topology().node_of(reader);
  for (const ForwardingTable::Mate& mate : table().mates) {
    if (node >= 0 && group_.topology().node_of(mate.rank) != node) continue;
    for (std::size_t sent = 0; sent < data.size(); sent += kMostData) {
      const auto part = data.subspan(sent, std::min(kMostData, data.size() - sent));
      send(mate.rank, kData, offset + sent, part, /*soon=*/part.size() <= kSoon);
    }
  }
}

void Mirror::meet(int peer) {
  if (met_[peer] || group_.here(peer)) return;
  met_[peer] = true;
  const auto ranks = static_cast<std::size_t>(group_.size());
  ForwardingTable pair;
  pair.is_mate.assign(ranks, false);
  pair.is_served.assign(ranks, false);
  pair.last_hop.assign(ranks, group_.rank());
  pair.is_mate[peer] = pair.is_served[peer] = true;
  group_.reach(pair, /*together=*/false);
}

void Mirror::send_piece(int receiver, std::uint64_t position, std::span<const std::byte> head,
                        std::span<const std::byte> data) const {
  std::vector<std::byte> piece(head.size() + data.size());
  std::copy(head.begin(), head.end(), piece.begin());
  std::copy(data.begin(), data.end(), piece.begin() + static_cast<std::ptrdiff_t>(head.size()));
  send(receiver, kPiece, position, piece);
}

void Mirror::send_taken(int sender, std::uint64_t taken) const noexcept {
  send(sender, kTaken, taken);
}

void Mirror::read(const InMessage& message) {
  const int from = message.from;
  const std::uint64_t number = message.head.number;
  if (group_.here(from)) return;
  switch (message.head.kind) {
    case kPiece: return read_piece(from, number, message.body);
    case kTaken:
      // Partner: Messages::make_room(). This rank is the only writer.
      raise_to(mailbox(group_.rank(), from).taken, number);
      return group_.ring();
    default: break;
  }
  if (!serves(from)) return;
  switch (message.head.kind) {
    case kCall: return read_call(from, number, message.body);
    case kData: return read_data(from, number, message.body);
    case kStep:
      // Partner: Calls::await(). This rank is the only writer.
      raise_to(flag(from).step, number);
      return group_.ring();
    default: return;
  }
}

void Mirror::read_call(int from, std::uint64_t number, std::span<const std::byte> body) {
  if (body.size() != record_bytes() || number == 0) return;
  std::byte* const record = at(layout_.record(from, number));
  std::memcpy(record, body.data(), sizeof(CallRecord));
  auto& said = *reinterpret_cast<CallRecord*>(record);
  said.number = number;
  said.reason[sizeof said.reason - 1] = 0;
  std::memcpy(at(layout_.sent_counts(from, number)), body.data() + sizeof(CallRecord),
              body.size() - sizeof(CallRecord));
  raise_to(flag(from).step, Step::written(number, 0));
  group_.ring();
}

void Mirror::read_data(int from, std::uint64_t offset, std::span<const std::byte> data) {
  const std::size_t begin = layout_.window(from), size = layout_.window_bytes();
  if (offset < begin || data.size() > size || offset - begin > size - data.size()) return;
  std::memcpy(at(offset), data.data(), data.size());
}

// A piece of a message to this rank, at its position in the ring.
void Mirror::read_piece(int from, std::uint64_t position, std::span<const std::byte> piece) {
  PieceHead head;
  if (piece.size() < sizeof head) return;
  std::memcpy(&head, piece.data(), sizeof head);
  const bool gap = head.bytes == PieceHead::kGap;
  const std::size_t offset = position % shape_.ring_bytes, room = shape_.ring_bytes - offset;
  const bool fits = gap ? head.total == room && piece.size() == sizeof head
                        : piece.size() - sizeof head == head.bytes &&
                              MailboxShape::piece_bytes(head.bytes) <= room;
  if (offset % sizeof head != 0 || !fits) return;
  MailboxFlags& flags = mailbox(from, group_.rank());
  std::memcpy(reinterpret_cast<std::byte*>(&flags) + sizeof flags + offset, piece.data(),
              piece.size());
  // Partners: Messages::next_piece() and await_any(). This rank is the only writer of `sent`.
  raise_to(flags.sent, position + (gap ? room : MailboxShape::piece_bytes(head.bytes)));
  if (!gap) mailbox(group_.rank(), group_.rank()).arrivals.fetch_add(1, std::memory_order_seq_cst);
  group_.ring();
}

}  // namespace ferry::internal
