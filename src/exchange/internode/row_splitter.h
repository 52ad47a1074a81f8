// RowSplitter: sends rows of one rank to the mates. Each row is sent once to each subtree in which
// it has destinations. The source of the rows uses it (cross_rows.cc), and so does each mate that
// passes them on to nodes further in (row_relay.cc).
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
  // The part of a row that one mate gets.
  struct Piece {
    MessageStream* stream;
    std::span<const std::int64_t> destinations;  // valid during send()
    std::size_t bytes;
    MessageStream::Place place = {};
  };

 public:
  // Sends to mates further in than `level`; -1: to all.
  RowSplitter(MateLinks& links, const SubtreeRule& rule, int level, std::uint64_t number,
              int source);

  // The state of a row that one thread sends.
  struct Sending {
    std::vector<Piece> pieces = {};  // one for each subtree that gets the row
    std::size_t sent = 0;            // the number of sent pieces
  };

  // Returns -1 if the row was sent. Otherwise returns the peer to which there is no room, and the
  // call must be repeated with the same `sending`. Each `run` consecutive destinations are on one
  // node. Threads may send rows at the same time, each with its own `sending`.
  int send(const RowUnit& unit, Sending& sending, int run = 1);
  // Call when all rows were sent.
  void flush();
  // True if every mate gets only a small message, which is sent with the next one to it
  // (MessageStream::flush).
  bool is_small() const noexcept;

 private:
  void split(const RowUnit& unit, const Subtrees& subtrees, std::vector<Piece>& pieces);
  int take_room(Sending& sending);

  MateLinks& links_;
  SubtreeRule rule_;
  std::size_t first_;                   // mate
  std::mutex room_;                     // protects the streams while room is taken
  std::vector<MessageStream> streams_;  // [mates from first_]
};

}  // namespace ferry::internal
