#include "exchange/internode/row_splitter.h"

#include <algorithm>

#include "exchange/internode/forwarder.h"

namespace ferry::internal {

RowSplitter::RowSplitter(Forwarder& forwarder, const SubtreeRule& rule, int level,
                         std::uint64_t number, int origin)
    : forwarder_(&forwarder), rule_(rule) {
  const std::vector<ForwardingTable::Mate>& mates = rule.forwarding->mates;
  first_ = std::ranges::count_if(mates, [level](const auto& mate) { return mate.level <= level; });
  for (std::size_t i = first_; i < mates.size(); ++i)
    streams_.emplace_back(forwarder.messages(), mates[i].rank,
                          forwarder.head(Forwarder::kRows, number, mates[i].level, origin));
}

int RowSplitter::send(const RowUnit& unit, int run) {
  const WindowLayout& layout = forwarder_->layout();
  const Subtrees subtrees(rule_, 0, unit.num_destinations, [&](std::int64_t i) {
    Destination first;
    const int index = static_cast<int>(i) / run * run;
    return read_destination(layout, forwarder_->num_ranks(), unit, index, first) ? first.rank : -1;
  });
  split(unit, subtrees);
  const auto bytes = [&](const Piece& piece) {
    return row_unit_bytes(layout, static_cast<int>(piece.destinations.size()));
  };
  // All mates have room or none gets the row: whoever passes on keeps what has not left.
  for (std::size_t i = sent_; i < pieces_.size(); ++i) {
    if (!pieces_[i].stream->open(bytes(pieces_[i]))) return pieces_[i].stream->peer();
  }
  for (; sent_ < pieces_.size(); ++sent_) {
    const Piece& piece = pieces_[sent_];
    std::byte* out = piece.stream->append(bytes(piece));
    if (out == nullptr) return piece.stream->peer();  // several pieces go to one mate (kFullmesh)
    write_row_unit(layout, unit, piece.destinations, {out, bytes(piece)});
    forwarder_->count_rows(piece.stream->peer(), unit.row.size() + unit.scales.size());
  }
  sent_ = 0;
  return -1;
}

// A row that goes everywhere reaches mates that have no destinations, too.
void RowSplitter::split(const RowUnit& unit, const Subtrees& subtrees) {
  pieces_.clear();
  for (int i = 0; i < subtrees.count(); ++i) {
    const auto& [next_hop, level, destinations] = subtrees[i];
    if (next_hop >= static_cast<int>(first_))  // else of my node
      pieces_.push_back({&streams_[next_hop - first_], destinations});
  }
  const auto has_piece = [this](const MessageStream& stream) {
    return std::ranges::find(pieces_, &stream, &Piece::stream) != pieces_.end();
  };
  for (MessageStream& stream : streams_) {
    if ((unit.flags & RowUnit::kEverywhere) != 0 && !has_piece(stream))
      pieces_.push_back({&stream, {}});
  }
}

void RowSplitter::flush() {
  for (MessageStream& stream : streams_) {
    stream.flush();
    forwarder_->count_all(stream.peer(), stream.bytes());
  }
}

bool RowSplitter::is_small() const noexcept {
  return std::ranges::all_of(streams_, &MessageStream::is_small);
}

}  // namespace ferry::internal
