#include "exchange/internode/row_splitter.h"

#include <algorithm>

namespace ferry::internal {

RowSplitter::RowSplitter(MateLinks& links, const SubtreeRule& rule, int level, std::uint64_t number,
                         int source)
    : links_(links), rule_(rule) {
  const std::vector<ForwardingTable::Mate>& mates = rule.forwarding->mates;
  first_ = std::ranges::count_if(mates, [level](const auto& mate) { return mate.level <= level; });
  for (std::size_t i = first_; i < mates.size(); ++i)
    streams_.emplace_back(links.messages(), mates[i].rank,
                          links.head(kRows, number, mates[i].level, source));
}

int RowSplitter::send(const RowUnit& unit, Sending& sending, int run) {
  const WindowLayout& layout = links_.layout();
  const Subtrees subtrees(rule_, 0, unit.num_destinations, [&](std::int64_t i) {
    Destination first;
    const int index = static_cast<int>(i) / run * run;
    return read_destination(layout, links_.num_ranks(), unit, index, first) ? first.rank : -1;
  });
  split(unit, subtrees, sending.pieces);
  std::size_t piece = sending.sent;
  const int full = take_room(sending);
  for (; piece < sending.sent; ++piece) {
    const auto& [stream, destinations, bytes, place] = sending.pieces[piece];
    write_row_unit(layout, unit, destinations, {place.data, bytes});
    links_.count_rows(stream->peer(), unit.row.size() + unit.scales.size());
    stream->written(place);
  }
  if (full < 0) sending.sent = 0;
  return full;
}

// Takes room for the pieces of a row that have none yet, and only if all mates have room. With
// kFullmesh several pieces go to one mate, so room may end between them; the rest follows in the
// next call.
int RowSplitter::take_room(Sending& sending) {
  auto& [pieces, sent] = sending;
  const std::lock_guard lock(room_);
  for (std::size_t i = sent; i < pieces.size(); ++i) {
    if (!pieces[i].stream->open(pieces[i].bytes)) return pieces[i].stream->peer();
  }
  for (; sent < pieces.size(); ++sent) {
    Piece& piece = pieces[sent];
    piece.place = piece.stream->append(piece.bytes);
    if (!piece.place.data) return piece.stream->peer();  // several go to one mate (kFullmesh)
  }
  return -1;
}

// A row with kEverywhere is sent to mates without destinations, too.
void RowSplitter::split(const RowUnit& unit, const Subtrees& subtrees, std::vector<Piece>& pieces) {
  pieces.clear();
  const auto add = [&](MessageStream& stream, std::span<const std::int64_t> destinations) {
    const int count = static_cast<int>(destinations.size());
    pieces.push_back({&stream, destinations, row_unit_bytes(links_.layout(), count)});
  };
  for (int i = 0; i < subtrees.count(); ++i) {
    const auto& [next_hop, level, destinations] = subtrees[i];
    if (next_hop >= static_cast<int>(first_))  // else the subtree is this node
      add(streams_[next_hop - first_], destinations);
  }
  const auto has_piece = [&pieces](const MessageStream& stream) {
    return std::ranges::find(pieces, &stream, &Piece::stream) != pieces.end();
  };
  for (MessageStream& stream : streams_) {
    if ((unit.flags & RowUnit::kEverywhere) != 0 && !has_piece(stream)) add(stream, {});
  }
}

void RowSplitter::flush() {
  for (MessageStream& stream : streams_) {
    stream.flush();
    links_.count_all(stream.peer(), stream.bytes());
  }
}

bool RowSplitter::is_small() const noexcept {
  return std::ranges::all_of(streams_, &MessageStream::is_small);
}

}  // namespace ferry::internal
