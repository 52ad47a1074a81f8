#include "exchange/internode/control_mirror.h"

#include <algorithm>

#include "base/check.h"
#include "exchange/internode/count_row.h"
#include "group/wait.h"

namespace ferry::internal {

namespace {

bool has_counts(const Terms& terms) {
  return terms.kind == OperationKind::kDispatch ? !terms.cached : terms.route == 0;
}

}  // namespace

ControlMirror::ControlMirror(MateLinks& links)
    : links_(links),
      progress_(links.is_second_way() ? &ControlFlags::second_way : &ControlFlags::progress),
      served_(links.num_ranks()),
      sends_here_(links.num_ranks()) {
  add_served(links.table());
}

std::span<std::int32_t> ControlMirror::count_row(int rank, std::uint64_t number) const noexcept {
  return {links_.view().count_row(rank, number),
          links_.layout().count_row_bytes() / sizeof(std::int32_t)};
}

void ControlMirror::send(std::uint64_t number) {
  const int rank = links_.rank();
  const WindowView& view = links_.view();
  const ControlFlags& mine = view.control(rank);
  const Record& record = view.record(rank, number);
  const bool dispatch = record.terms.kind == OperationKind::kDispatch;
  // Relaxed: this rank is the only writer of its flags.
  const RankFlags flags{.progress = mine.progress.load(std::memory_order_relaxed),
                        .read_through = mine.read_through.load(std::memory_order_relaxed),
                        .set_since = mine.set_since.load(std::memory_order_relaxed),
                        .growth = dispatch ? record.posted.growth : Code::kOk};
  const bool first = sent_.load(std::memory_order_relaxed) < number && record.number == number;
  std::vector<std::byte> body;
  if (first) {
    FERRY_CHECK(record.number, ==, number);
    std::vector<std::byte> counts;
    if (has_counts(record.terms) && view.places->sends(rank))
      append_counts(count_row(rank, number), counts);
    body = write_record({flags, record, counts});
    sent_.store(number, std::memory_order_relaxed);
  } else {
    body = write_flags(flags);
  }
  // In a combine a request follows, and the record shares its packet. A refused combine has no
  // request: its record is sent in the next progress().
  const bool request_follows = first && !dispatch;
  for (const ForwardingTable::Mate& mate : links_.table().mates) {
    const MessageHead head = links_.head(first ? kRecord : kFlags, number, mate.level, rank);
    request_follows ? links_.send_soon(mate.rank, head, body) : links_.send(mate.rank, head, body);
  }
}

// Rows take the second way only if all ranks take part (Ways::both). As in send(), the request of a
// combine follows.
void ControlMirror::send_delivered(std::uint64_t number) {
  const Terms& terms = links_.view().record(links_.rank(), number).terms;
  if (static_cast<int>(terms.num_active) < links_.num_ranks()) return;
  const std::vector<std::byte> body =
      write_flags({.progress = progress_of(number, Stage::kDelivered)});
  sent_.store(number, std::memory_order_relaxed);
  for (const ForwardingTable::Mate& mate : links_.table().mates) {
    const MessageHead head = links_.head(kFlags, 0, mate.level, links_.rank());
    terms.kind == OperationKind::kCombine ? links_.send_soon(mate.rank, head, body)
                                          : links_.send(mate.rank, head, body);
  }
}

ForwardingTable ControlMirror::table_of(const std::vector<bool>& taking_part, bool all) {
  ForwardingTable table = links_.everybody();
  if (!all) table = ForwardingTable(links_.topology(), links_.rank(), taking_part, /*flat=*/true);
  links_.group().reach(table, /*together=*/false);
  const auto held = links_.group().lock();
  add_served(table);
  return table;
}

ForwardingTable ControlMirror::send_read(const std::vector<bool>& taking_part, bool all) {
  ForwardingTable next = table_of(taking_part, all);
  // Relaxed: this rank is the only writer.
  const std::uint64_t read =
      links_.view().control(links_.rank()).read_through.load(std::memory_order_relaxed);
  const RankFlags flags{.progress = 0, .read_through = read, .set_since = 0};
  // Ranks that are left out from now on get read_through only by the table in use. They may wait
  // for it when they come back.
  send_flags(links_.table().mates, flags);
  send_flags(next.mates, flags);
  return next;
}

// A rank to which this rank sends sums gets them directly. But where groups are uneven, it gets
// this rank's flags through other ranks, maybe before the last sums, or not at all. So an empty
// message of sums, sent after the last sums, says that no more come.
//
// Nodes of which no rank took part in the last operation may keep the exchange open, because they
// passed messages of this rank on in earlier operations. So they get the flags as well.
void ControlMirror::send_departure() {
  const ForwardingTable& table = links_.table();
  for (int peer = 0; peer < links_.num_ranks(); ++peer) {
    if (table.is_served[peer] && table.last_hop[peer] == links_.rank())
      links_.send_soon(peer, links_.head(kSumReply, kDeparted, 0, peer), {});
  }
  const std::uint64_t read_through = links_.is_second_way() ? 0 : kDeparted;
  const RankFlags flags{.progress = kDeparted, .read_through = read_through, .set_since = 0};
  send_flags(table.mates, flags);
  if (table.mates != links_.everybody().mates) send_flags(mates_elsewhere(table), flags);
  links_.group().move_messages();
}

// One rank in each node that `table`, which may be that of fewer ranks, does not reach.
std::vector<ForwardingTable::Mate> ControlMirror::mates_elsewhere(
    const ForwardingTable& table) const {
  const Topology& topology = links_.topology();
  std::vector<bool> reached(topology.num_nodes());
  for (const ForwardingTable::Mate& mate : table.mates) reached[topology.node_of(mate.rank)] = true;
  std::vector<ForwardingTable::Mate> mates = links_.group().forwarding().mates;
  std::erase_if(mates, [&](const auto& mate) { return reached[topology.node_of(mate.rank)]; });
  return mates;
}

void ControlMirror::send_flags(const std::vector<ForwardingTable::Mate>& mates,
                               const RankFlags& flags) {
  for (const ForwardingTable::Mate& mate : mates)
    links_.send(mate.rank, links_.head(kFlags, 0, mate.level, links_.rank()), write_flags(flags));
}

void ControlMirror::write(int source, std::uint64_t number, const RecordMessage& message) {
  const WindowView& view = links_.view();
  view.record(source, number) = message.record;
  if (has_counts(message.record.terms)) read_counts(message.counts, count_row(source, number));
  write(source, 0, message.flags);
}

// Right after a change of the active ranks, the flags of a rank may arrive by the old table and by
// the new one.
void ControlMirror::write(int source, std::uint64_t number, const RankFlags& flags) {
  const WindowView& view = links_.view();
  if (flags.progress == progress_of(number, Stage::kGrown))
    view.record(source, number).posted.growth = flags.growth;
  raise_to(view.control(source).set_since, flags.set_since);  // before progress
  raise_to(view.control(source).read_through, flags.read_through);
  raise_to(view.control(source).*progress_, flags.progress);
  links_.group().ring();
}

// Flags of the first way do not cover rows on the second. After an operation that this rank has
// delivered on the second way, rows of a mate may still arrive there, whatever this rank waits for
// now.
std::vector<int> ControlMirror::expected() const {
  std::vector<int> peers;
  const std::uint64_t sent = sent_.load(std::memory_order_relaxed);
  if (!links_.is_second_way() || sent == 0) return peers;
  for (const ForwardingTable::Mate& mate : links_.everybody().mates) {
    if (seen_progress(mate.rank) < progress_of(sent, Stage::kDelivered)) peers.push_back(mate.rank);
  }
  return peers;
}

// The progress of a rank as seen on this node; for a rank of another node, by the flags of this
// way.
std::uint64_t ControlMirror::seen_progress(int peer) const noexcept {
  const ControlFlags& flags = links_.view().control(peer);
  return (links_.view().here(peer) ? flags.progress : flags.*progress_)
      .load(std::memory_order_relaxed);
}

void ControlMirror::add_served(const ForwardingTable& table) {
  for (int peer = 0; peer < links_.num_ranks(); ++peer) {
    if (!table.is_served[peer]) continue;
    FERRY_CHECK(links_.view().here(peer), ==, false);
    served_[peer] = true;
    if (table.last_hop[peer] == links_.rank()) sends_here_[peer] = true;
  }
}

bool ControlMirror::ended() const {
  const int me = links_.rank();
  const Topology& topology = links_.topology();
  const auto sends = [&](int peer) {
    return served_[peer] && seen_progress(peer) != kDeparted &&
           !links_.group().ended(peer, sends_here_[peer]);
  };
  const auto reads = [&](int peer) {
    return seen_progress(peer) != kDeparted && !links_.group().ended(peer, false);
  };
  std::vector<bool> inside(links_.num_ranks(),
                           true);  // [ranks] in this rank's group of the level before
  for (int level = 0; level <= topology.find_level(Topology::kHost); ++level) {
    bool sender = false, reader = false;
    for (int peer = 0; peer < links_.num_ranks(); ++peer) {
      if (!inside[peer] || peer == me) continue;
      inside[peer] = topology.group_of(peer, level) == topology.group_of(me, level);
      if (inside[peer]) reader = reader || reads(peer);
      if (!inside[peer]) sender = sender || sends(peer);
    }
    if (sender && reader) return false;
  }
  return true;
}

}  // namespace ferry::internal
