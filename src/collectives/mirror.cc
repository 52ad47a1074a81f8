#include "collectives/mirror.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "group/wait.h"

namespace ferry::internal {

namespace {

// The most data of one message: those that fit a send buffer of the channel (MessageChannel).
constexpr std::size_t kMostData = MessageChannel::kSendBufferBytes - 128;
// Up to this size data are sent in one packet with the record that follows.
constexpr std::size_t kSoon = 65536;

}  // namespace

Mirror::Mirror(GroupState& group, std::shared_ptr<Segment> segment, const CollectivesLayout& layout,
               const MailboxShape& shape)
    : group_(group),
      segment_(std::move(segment)),
      layout_(layout),
      incoming_(segment_->data(), layout, shape, group.rank(), group.size()),
      met_(group.size()),
      call_(Incoming::most_bytes_of_call(group.size())),
      channel_{.read = [this](const InMessage& message) { read(message); },
               .go_on = [this] { return go_on(); },
               .awaited = [] { return Channel::Awaited{}; }},
      number_(group.open_channel(&channel_)) {}

Mirror::~Mirror() { group_.close_channel(number_); }

void Mirror::keep_open(const std::shared_ptr<Mirror>& mirror) {
  mirror->group_.keep_open(mirror->number_, mirror);
}

// Stays open until all ranks that this rank serves have departed too, or are lost.
bool Mirror::go_on() {
  channel_.done = channel_.kept_open != nullptr;
  for (int peer = 0; peer < group_.size() && channel_.done; ++peer) {
    const auto& flag = *reinterpret_cast<const CallFlag*>(at(layout_.flag(peer, 0)));
    // Acquire: as in Await::up.
    const bool ends = !serves(peer) || group_.ended(peer, /*sends_here=*/true) ||
                      flag.step.load(std::memory_order_acquire) == Step::kDeparted;
    channel_.done = ends;
  }
  return false;
}

void Mirror::send(int peer, MirrorMessage::Kind kind, std::uint64_t number,
                  std::span<const std::byte> body, bool soon) const {
  const MessageHead head{.channel = number_, .kind = kind, .number = number};
  if (soon) {
    group_.messages().send_soon(peer, bytes_of(head), body);
  } else {
    group_.messages().send_now(peer, bytes_of(head), body);
  }
}

void Mirror::send_call(std::uint64_t number) {
  const int rank = group_.rank();
  const auto& record = *reinterpret_cast<const CallRecord*>(at(layout_.record(rank, number)));
  Incoming::write_call(record, at(layout_.sent_counts(rank, number)), group_.size(), call_);
  for (const ForwardingTable::Mate& mate : table().mates)
    send(mate.rank, MirrorMessage::kCall, number, call_);
}

void Mirror::send_step(std::uint64_t step) const {
  for (const ForwardingTable::Mate& mate : table().mates)
    send(mate.rank, MirrorMessage::kStep, step);
}

void Mirror::send_data(std::size_t offset, std::span<const std::byte> data, int reader) const {
  const int node = reader == kAll ? -1 : group_.topology().node_of(reader);
  for (const ForwardingTable::Mate& mate : table().mates) {
    if (node >= 0 && group_.topology().node_of(mate.rank) != node) continue;
    for (std::size_t sent = 0; sent < data.size(); sent += kMostData) {
      const auto part = data.subspan(sent, std::min(kMostData, data.size() - sent));
      send(mate.rank, MirrorMessage::kData, offset + sent, part, /*soon=*/part.size() <= kSoon);
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
  send(receiver, MirrorMessage::kPiece, position, piece);
}

void Mirror::send_taken(int sender, std::uint64_t taken) const {
  send(sender, MirrorMessage::kTaken, taken);
}

void Mirror::read(const InMessage& message) {
  const int from = message.from;
  if (group_.here(from)) return;
  if (incoming_.read({from, message.head.kind, message.head.number, message.body}, serves(from)))
    group_.ring();
}

}  // namespace ferry::internal
