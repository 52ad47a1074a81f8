// My rows on their way to other nodes: a unit for each token and branch, with the slots it goes to;
// the mate there stores it (stored_rows.cc) and passes it on (passed_on.cc). Encoded once, at the
// source.
// Called by send_rows.cc before the rows of this node move, so that both go on at once.
#include <cstring>

#include "exchange/internode/forwarder.h"
#include "exchange/send_rows.h"

namespace ferry::internal {

Status RowSender::cross_rows() {
  const auto& forwarder = exchange_.forwarder;
  MessageChannel& messages = exchange_.group->messages();
  std::vector<MessageStream> streams;  // [mates]
  for (const auto& [level, mate] : exchange_.forwarder->table().mates)
    streams.emplace_back(messages, mate,
                         forwarder->head(Forwarder::kRows, issued_.number, level, setup_.rank));
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(setup_.scratch_bytes());
  const bool by_expert = args_.scales.num_rows > 1;  // another row for each expert
  const int step = by_expert ? 1 : route_.num_entries;
  const std::int64_t num_entries = route_.num_tokens * route_.num_entries;
  for (std::int64_t first = 0; first < num_entries; first += step) {
    const Subtrees subtrees = exchange_.subtrees_of(route_, first, step);
    const bool all = setup_.everywhere() && (!by_expert || route_.refs[first].sent());
    std::vector<bool> crossed(streams.size(), !all);
    const auto cross = [&](int next_hop, std::span<const std::int64_t> entries) {
      crossed[next_hop] = true;
      return cross_unit({streams[next_hop], scratch.get()}, first, entries);
    };
    for (int i = 0; i < subtrees.count(); ++i) {
      if (subtrees[i].next_hop < 0) continue;
      if (Status status = cross(subtrees[i].next_hop, subtrees[i].items); !status.ok())
        return status;
    }
    for (std::size_t next_hop = 0; next_hop < streams.size(); ++next_hop) {
      if (crossed[next_hop]) continue;
      if (Status status = cross(static_cast<int>(next_hop), {}); !status.ok()) return status;
    }
  }
  const auto lock = messages.lock();
  for (MessageStream& stream : streams) {
    stream.flush();
    forwarder->count_all(stream.peer(), stream.bytes());
  }
  messages.progress();
  return {};
}

// Entries of one token that send the same row to one branch.
Status RowSender::cross_unit(const CrossJob& cross, std::int64_t first,
                             std::span<const std::int64_t> entries) {
  const int num_positions = route_.active->num_positions;
  const int num_rows = static_cast<int>(entries.size()) * num_positions;
  std::byte* unit = nullptr;
  if (Status status = append(cross.stream, unit_size(num_rows, layout_), unit); !status.ok())
    return status;
  const UnitHead head{num_rows, (stores_ == Stores::kStreaming ? UnitHead::kStreaming : 0) |
                                    (setup_.everywhere() ? UnitHead::kEverywhere : 0)};
  std::memcpy(unit, &head, sizeof head);
  std::byte* at = unit + sizeof head;
  for (const std::int64_t entry : entries) {
    const int member = route_.refs[entry].member;
    for (int position = 0; position < num_positions; ++position) {
      UnitRow to{.rank = route_.active->ranks[route_.active->index(member, position)],
                 .row = static_cast<std::int32_t>(setup_.row_at(route_, entry, position)),
                 .section_rows = static_cast<std::int32_t>(route_.section_rows[member]),
                 .source = {}};
      std::memset(at + sizeof to, 0, unit_row_bytes(layout_) - sizeof to);
      auto* weights = reinterpret_cast<float*>(at + sizeof to);
      fill_metadata(entry,
                    {.source = to.source,
                     .weights = weights,
                     .ids = reinterpret_cast<std::int32_t*>(weights + layout_.weights_per_row())});
      std::memcpy(at, &to, sizeof to);
      at += unit_row_bytes(layout_);
    }
  }
  void* row = unit + unit_row_at(num_rows, layout_);
  copy_encoded(first, {&row, 1}, cross.scratch);
  if (layout_.scale_bytes() > 0)
    std::memcpy(static_cast<std::byte*>(row) + layout_.row_bytes(),
                scales_of_row(first, cross.scratch), layout_.scale_bytes());
  exchange_.forwarder->count_rows(cross.stream.peer(), layout_.row_bytes() + layout_.scale_bytes());
  return {};
}

// Waits for room, as long as the operation may.
Status RowSender::append(MessageStream& stream, std::size_t bytes, std::byte*& piece) {
  Forwarder& forwarder = *exchange_.forwarder;
  while (true) {
    {
      const auto lock = exchange_.group->messages().lock();
      piece = stream.append(bytes);
    }
    if (piece != nullptr) return {};
    std::vector<bool> only(exchange_.group->size());
    only[stream.peer()] = true;
    Await room = exchange_.protocol.awaiting(issued_, "room", forwarder.want_room(stream.peer()));
    room.flags = forwarder.room();
    room.only = &only;
    if (Status status = exchange_.group->wait(room); !status.ok()) return status;
  }
}

}  // namespace ferry::internal
