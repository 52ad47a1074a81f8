// RowSplitter: rows of one rank on their way to the mates. Each row leaves once for each subtree in
// which it has destinations. The source of the rows sends them so (cross_rows.cc), and so does each
// mate that passes them on to nodes further in (forwarder.cc). Calls MessageStream, with the lock
// of the MessageChannel held.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exchange/internode/message_layout.h"
#include "exchange/internode/message_stream.h"
#include "exchange/internode/subtrees.h"

namespace ferry::internal {

class Forwarder;

class RowSplitter {
 public:
  // To mates further in than `level`; -1: to all.
  RowSplitter(Forwarder& forwarder, const SubtreeRule& rule, int level, std::uint64_t number,
              int origin);

  // The peer for which there is no room now, so that the same call must come again; -1: the row has
  // left. Destinations come in runs of `run` that are of one node.
  int send(const RowUnit& unit, int run = 1);
  void flush();
  Forwarder& forwarder() const noexcept { return *forwarder_; }
  // Every mate gets little, which leaves with the next message to it (MessageStream::flush).
  bool is_small() const noexcept;

 private:
  // What a mate gets of a row.
  struct Piece {
    MessageStream* stream;
    std::span<const std::int64_t> destinations;
  };

  void split(const RowUnit& unit, const Subtrees& subtrees);

  Forwarder* forwarder_;
  SubtreeRule rule_;
  std::size_t first_;                   // mate
  std::vector<MessageStream> streams_;  // [mates from first_]
  std::vector<Piece> pieces_;           // of the row at hand
  std::size_t sent_ = 0;                // of pieces_
};

}  // namespace ferry::internal
