// Part of RowSender: sends this rank's rows to other nodes. The workers encode each row and pack it
// for each mate, with the slots that it fills there (RowSplitter). The mate stores the row
// (stored_rows.cc) and passes it on. This runs before the rows of this node are written, so that
// the network works meanwhile.
#include <algorithm>
#include <deque>
#include <tuple>

#include "exchange/dispatch/row_metadata.h"
#include "exchange/dispatch/send_rows.h"
#include "exchange/ways/way.h"

namespace ferry::internal {

// Every worker packs a share of the rows; all pack into the same messages. A worker that finds no
// room in the messages to a peer stops. This thread then waits for room, and all workers go on.
Status RowSender::cross_rows() {
  WorkerPool& workers = *exchange_.workers;
  const std::vector<Way*> ways = exchange_.ways.of(*issued_.active);
  std::deque<RowSplitter> splitters;  // [ways]
  for (Way* const way : ways)
    splitters.emplace_back(way->links(), exchange_.subtree_rule(way->table()), -1, issued_.number,
                           setup_.rank);
  const std::int64_t num_rows = route_.num_tokens * route_.num_entries / entries_per_row();
  std::vector<RowShare> shares(workers.num_shares(num_rows));
  for (std::size_t i = 0; i < shares.size(); ++i)
    std::tie(shares[i].at, shares[i].end) = workers.share(num_rows, static_cast<int>(i));
  while (true) {
    workers.run(std::ssize(shares), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) cross(shares[i], splitters);
    });
    const auto stopped = std::ranges::find_if(shares, &RowShare::stopped);
    if (stopped == shares.end()) break;
    Status status = await_room(*stopped, ways[stopped->way]->relay(), std::ssize(shares));
    if (!status.ok()) return status;
  }
  for (RowSplitter& splitter : splitters) splitter.flush();
  if (!std::ranges::all_of(splitters, &RowSplitter::is_small)) exchange_.group->move_messages();
  return {};
}

// The number of entries that send the same row: with factors by expert each entry has its own row,
// otherwise all entries of a token share one.
int RowSender::entries_per_row() const noexcept {
  return args_.scales.num_rows > 1 ? 1 : route_.num_entries;
}

// Runs on a worker: packs the rows of its share, until one finds no room.
void RowSender::cross(RowShare& share, std::deque<RowSplitter>& splitters) const {
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(setup_.scratch_bytes());
  std::vector<std::byte> destinations;
  share.full = -1;
  for (; share.at < share.end; ++share.at) {
    const std::int64_t first = share.at * entries_per_row();
    destinations.clear();
    RowUnit unit;
    if (!make_unit(first, scratch.get(), destinations, unit)) continue;
    const std::int64_t token = first / route_.num_entries;
    share.way = exchange_.ways.of_token(token, splitters.size());
    RowSplitter& splitter = splitters[share.way];
    share.full = splitter.send(unit, share.sending, route_.active->tp_size);
    if (share.stopped()) return;
  }
}

// Fills `unit` with the row whose entries begin at `first`. False: no other node gets this row.
bool RowSender::make_unit(std::int64_t first, std::byte* scratch,
                          std::vector<std::byte>& destinations, RowUnit& unit) const {
  const int count = entries_per_row();
  if (count == 1 && !route_.refs[first].sent()) return false;
  for (std::int64_t entry = first; entry < first + count; ++entry)
    unit.num_destinations += add_destinations(entry, destinations);
  if (unit.num_destinations == 0 && !setup_.everywhere()) return false;
  unit.flags = (stores_ == Stores::kStreaming ? RowUnit::kStreaming : 0) |
               (setup_.everywhere() ? RowUnit::kEverywhere : 0);
  unit.destinations = destinations;
  unit.row = {encode(first, scratch), layout_.row_bytes()};
  if (layout_.scale_bytes() > 0)
    unit.scales = {scales_of_row(first, scratch), layout_.scale_bytes()};
  return true;
}

// Appends the destinations of an entry at another node, one for each tensor-parallel rank. Returns
// their number; 0: the entry is not sent, or stays in this node.
int RowSender::add_destinations(std::int64_t entry, std::vector<std::byte>& destinations) const {
  const RowRef ref = route_.refs[entry];
  const ActiveSet& active = *route_.active;
  if (!ref.sent() || exchange_.here(active.ranks[active.index(ref.member, 0)])) return 0;
  for (int tp_rank = 0; tp_rank < active.tp_size; ++tp_rank) {
    Destination to{.rank = active.ranks[active.index(ref.member, tp_rank)],
                   .row = static_cast<std::int32_t>(setup_.row_at(route_, entry, tp_rank)),
                   .section_rows = static_cast<std::int32_t>(route_.section_rows[ref.member])};
    fill_metadata(setup_, route_, args_, entry,
                  {.source = to.source, .weights = to.weights.data(), .ids = to.ids.data()});
    append_destination(layout_, to, destinations);
  }
  return active.tp_size;
}

// Waits for room, at most until the deadline of the operation. With several workers it waits for
// room for half of all unsent messages, so that they are not woken for each message.
Status RowSender::await_room(const RowShare& share, RowRelay& relay,
                             std::int64_t num_shares) const {
  const int messages = num_shares > 1 ? MessageChannel::kUnsent / 2 : 1;
  std::vector<bool> only(exchange_.group->size());
  only[share.full] = true;
  Await room = exchange_.protocol.awaiting(issued_, "room", relay.want_room(share.full, messages));
  room.flags = relay.room();
  room.only = &only;
  return exchange_.group->wait(room);
}

}  // namespace ferry::internal
