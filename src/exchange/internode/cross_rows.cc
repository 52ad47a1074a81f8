// My rows on their way to other nodes: encoded once, and sent to each mate with the slots that it
// is to fill (RowSplitter); the mate stores them (stored_rows.cc) and passes them on. Part of
// RowSender, called before the rows of this node move, so that both go on at once.
#include <algorithm>

#include "exchange/internode/forwarder.h"
#include "exchange/send_rows.h"

namespace ferry::internal {

Status RowSender::cross_rows() {
  MessageChannel& messages = exchange_.group->messages();
  std::vector<RowSplitter> splitters;  // [ways]
  for (Forwarder* const way : exchange_.ways(*issued_.active))
    splitters.emplace_back(*way, exchange_.subtree_rule(*way), -1, issued_.number, setup_.rank);
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(setup_.scratch_bytes());
  const bool by_expert = args_.scales.num_rows > 1;  // another row for each expert
  const int step = by_expert ? 1 : route_.num_entries;
  const std::int64_t num_entries = route_.num_tokens * route_.num_entries;
  std::vector<std::byte> destinations;
  for (std::int64_t first = 0; first < num_entries; first += step) {
    if (by_expert && !route_.refs[first].sent()) continue;
    destinations.clear();
    RowUnit unit;
    for (std::int64_t entry = first; entry < first + step; ++entry)
      unit.num_destinations += add_destinations(entry, destinations);
    if (unit.num_destinations == 0 && !setup_.everywhere()) continue;
    unit.flags = (stores_ == Stores::kStreaming ? RowUnit::kStreaming : 0) |
                 (setup_.everywhere() ? RowUnit::kEverywhere : 0);
    unit.destinations = destinations;
    unit.row = {encode(first, scratch.get()), layout_.row_bytes()};
    if (layout_.scale_bytes() > 0)
      unit.scales = {scales_of_row(first, scratch.get()), layout_.scale_bytes()};
    const std::int64_t token = first / route_.num_entries;
    RowSplitter& splitter = splitters[exchange_.way_of(token, splitters.size())];
    if (Status status = cross(splitter, unit); !status.ok()) return status;
  }
  const auto lock = messages.lock();
  for (RowSplitter& splitter : splitters) splitter.flush();
  if (!std::ranges::all_of(splitters, &RowSplitter::is_small)) messages.progress();
  return {};
}

// Those of an entry at other nodes, one for each tensor-parallel position. Returns their number.
int RowSender::add_destinations(std::int64_t entry, std::vector<std::byte>& destinations) const {
  const RowRef ref = route_.refs[entry];
  const ActiveSet& active = *route_.active;
  if (!ref.sent() || exchange_.here(active.ranks[active.index(ref.member, 0)])) return 0;
  for (int position = 0; position < active.num_positions; ++position) {
    Destination to{.rank = active.ranks[active.index(ref.member, position)],
                   .row = static_cast<std::int32_t>(setup_.row_at(route_, entry, position)),
                   .section_rows = static_cast<std::int32_t>(route_.section_rows[ref.member])};
    fill_metadata(entry, {.source = to.source, .weights = to.weights.data(), .ids = to.ids.data()});
    append_destination(layout_, to, destinations);
  }
  return active.num_positions;
}

// Waits for room, as long as the operation may.
Status RowSender::cross(RowSplitter& splitter, const RowUnit& unit) {
  Forwarder& forwarder = splitter.forwarder();
  while (true) {
    int full = -1;
    {
      const auto lock = exchange_.group->messages().lock();
      full = splitter.send(unit, route_.active->num_positions);
    }
    if (full < 0) return {};
    std::vector<bool> only(exchange_.group->size());
    only[full] = true;
    Await room = exchange_.protocol.awaiting(issued_, "room", forwarder.want_room(full));
    room.flags = forwarder.room();
    room.only = &only;
    if (Status status = exchange_.group->wait(room); !status.ok()) return status;
  }
}

}  // namespace ferry::internal
