// RowSender: sends the rows of one dispatch. It encodes each row, once for this node and once for
// all other nodes, and writes it to its final slots, with its scales. A RowSender is made in the
// send half when all slots are known.
//   send_rows.cc             rows of this node, gaps
//   cross_rows.cc            rows for other nodes, packed for each mate
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "exchange/internode/row_splitter.h"
#include "exchange/parts/parts.h"
#include "exchange/protocol/protocol.h"
#include "ferry/exchange.h"
#include "kernels/kernels.h"
#include "kernels/wire_formats.h"
#include "routing/route.h"

namespace ferry::internal {

class RowRelay;

class RowSender {
 public:
  RowSender(ExchangeParts& exchange, const Issued& issued, const Route& route,
            const DispatchArgs& args, std::int64_t now_ns);

  // `buffer`: this rank's receive buffer. The metadata of the rows that this rank gets from its
  // node is written there, and the gaps are cleared.
  Status send(int buffer);

  // The kind of stores for the rows, also at other nodes (RowUnit::kStreaming).
  Stores stores() const noexcept { return stores_; }
  bool tries_stores() const noexcept { return exchange_.stores.trying(bytes_of_all()); }

 private:
  struct Slot {
    int index;  // the receiver's, among the active ranks
    std::int64_t row;
  };
  std::uint64_t bytes_of_all() const noexcept { return route_.total_rows * layout_.row_bytes(); }
  void send_tokens() const;
  void send_token(std::int64_t token, std::byte* scratch) const;
  void send_entries(std::int64_t first, int count, std::byte* scratch) const;
  RowFactors factors(std::int64_t entry) const noexcept;
  const std::byte* encode(std::int64_t entry, std::byte* scratch) const;
  const std::byte* scales_of_row(std::int64_t entry, const std::byte* scratch) const noexcept;
  void clear_gaps(int buffer) const;

  // cross_rows.cc
  // The rows that one worker packs for other nodes.
  struct RowShare {
    std::int64_t at = 0, end = 0;       // rows that are not packed yet
    RowSplitter::Sending sending = {};  // pieces of row `at`
    std::size_t way = 0;                // the way of row `at`
    int full = -1;                      // the peer without room for row `at`; -1: all rows packed
    bool stopped() const noexcept { return full >= 0; }
  };
  Status cross_rows();
  int entries_per_row() const noexcept;
  void cross(RowShare& share, std::deque<RowSplitter>& splitters) const;
  bool make_unit(std::int64_t first, std::byte* scratch, std::vector<std::byte>& destinations,
                 RowUnit& unit) const;
  int add_destinations(std::int64_t entry, std::vector<std::byte>& destinations) const;
  Status await_room(const RowShare& share, RowRelay& relay, std::int64_t num_shares) const;

  ExchangeParts& exchange_;
  const Setup& setup_;
  const WindowLayout& layout_;
  const Issued& issued_;
  const Route& route_;
  const DispatchArgs& args_;
  Stores stores_;
  std::vector<std::byte*> posted_;     // [active ranks] receive buffers of this node; null: none
  std::vector<Scales> scale_strides_;  // [members] where scales lie in a receive buffer
};

}  // namespace ferry::internal
