// RowSplitter: rows of one rank on their way to the mates. Each row leaves once for each subtree in
// which it has destinations. The source of the rows sends them so (cross_rows.cc), and so does each
// mate that passes them on to nodes further in (row_relay.cc). Calls MessageStream.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "exchange/internode/mate_links.h"
#include "exchange/internode/message_layout.h"
#include "exchange/internode/message_stream.h"
#include "topology/subtrees.h"

namespace ferry::internal {

class RowSplitter {
  // What a mate gets of a row.
  struct Piece {
    MessageStream* stream;
    std::span<const std::int64_t> destinations;  // valid during send()
    std::size_t bytes;
    MessageStream::Place place = {};
  };

 public:
  // To mates further in than `level`; -1: to all.
  RowSplitter(MateLinks& links, const SubtreeRule& rule, int level, std::uint64_t number,
              int source);

  // A row on its way, on one thread.
  struct Sending {
    std::vector<Piece> pieces = {};  // one for each subtree that gets the row
    std::size_t sent = 0;            // of these
  };

  // The peer for which there is no room now, so that the same call must come again with what
  // `sending` is then; -1: the row has left. Destinations come in runs of `run` that are of one
  // node. Threads may send rows at the same time, each with a `sending` of its own.
  int send(const RowUnit& unit, Sending& sending, int run = 1);
  // When all rows were sent.
  void flush();
  // Every mate gets little, which leaves with the next message to it (MessageStream::flush).
  bool is_small() const noexcept;

 private:
  void split(const RowUnit& unit, const Subtrees& subtrees, std::vector<Piece>& pieces);
  int take_room(Sending& sending);

  MateLinks& links_;
  SubtreeRule rule_;
  std::size_t first_;                   // mate
  std::mutex room_;                     // held while room is taken
  std::vector<MessageStream> streams_;  // [mates from first_]
};

}  // namespace ferry::internal
