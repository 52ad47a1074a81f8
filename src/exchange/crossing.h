// Crossing: the side of an exchange that faces other nodes. It tells the mates this rank's words,
// and writes down those of the ranks that it serves (its clients); it stores their rows at the
// ranks of this node, sums rows of this node for them, and takes in the sums that come back for
// this rank. Made by config.cc when there are several nodes; called by operations, dispatch and
// combine, and by the group when messages come, maybe on a thread of its own: what both touch is
// guarded by the lock of Mail. docs/protocol.md, "Between nodes".
//   crossing.cc        words, waiting     stored_rows.cc  a client's rows, from here to their slots
//   incoming_sums.cc   asking for sums    served_sums.cc  a client's sums, from rows of this node
//   cross_rows.cc      (of ExchangeState) my rows, packed for each node
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "exchange/home_rows.h"
#include "exchange/message_stream.h"
#include "group/state.h"
#include "group/wait.h"
#include "memory/window_view.h"
#include "routing/route.h"

namespace ferry::internal {

// Messages of rows and of sums are units, each of which begins at a multiple of this.
constexpr std::size_t kUnitAlign = 16;

// A unit of a dispatch: a row and where it goes; the destinations, the row and its scales follow.
struct UnitHead {
  std::int32_t num_rows;
  std::int32_t streaming;  // 1: all rows of the dispatch together do not fit the caches
};
struct UnitRow {
  std::int32_t rank, row, section_rows;
  std::int32_t source[3];  // then weights and ids of the row
};

// Bytes of a UnitRow with its weights and ids, of the unit before the row, and of a whole unit.
std::size_t unit_row_bytes(const WindowLayout& layout) noexcept;
std::size_t unit_row_at(int num_rows, const WindowLayout& layout) noexcept;
std::size_t unit_size(int num_rows, const WindowLayout& layout) noexcept;

// What a source asks of the combine's rows in a node, before the terms.
struct Ask {
  std::int64_t hidden;
  std::int32_t row_type, num_positions, partials, weighted;
  std::int32_t scalars;  // floats of each row to send along, 0: none
  std::int32_t unused;
};
// A unit of a combine: rows that come home as one sum, or with kExact side by side. Their number as
// int64, then for each a TermHead and where it is at each position.
struct TermHead {
  std::int32_t owner;
  float weight;
};
struct TermPlace {
  std::int32_t rank, row;
};

class Crossing final : public Channel {
 public:
  Crossing(GroupState& group, const WindowView& view, const ExchangeConfig& config,
           const WireFormat& combine_wire);
  ~Crossing() override;

  // What peers of other nodes must know once progress says `number`: the first time the record, and
  // with it the counts where there are any.
  void tell(const Border& border, std::uint64_t number);
  // By the way of all words before.
  void tell_left(const Border& border);

  // Flags to wait for, [ranks].
  const std::atomic<std::uint64_t>* summed() const noexcept { return summed_.data(); }
  const std::atomic<std::uint64_t>* served() const noexcept { return served_.data(); }
  const std::atomic<std::uint64_t>* room() const noexcept { return room_.data(); }
  // The value of room()[peer] that says there is some.
  std::uint64_t want_room(int peer);

  Mail& mail() const noexcept { return group_->mail(); }
  std::uint32_t channel() const noexcept { return channel_; }
  DataType sum_type(DataType row_type) const noexcept {
    return config_.node_sums == NodeSums::kFp32 ? DataType::kFp32 : row_type;
  }
  bool exact() const noexcept { return config_.node_sums == NodeSums::kExact; }
  // Of the unit of `num_terms` rows on its way back: its rows, where the scalars begin, its end.
  std::size_t rows_bytes(int num_terms, const HomeFormat& format) const noexcept;
  std::size_t scalars_at(int num_terms, const HomeFormat& format) const noexcept;
  std::size_t unit_bytes(int num_terms, int scalars, const HomeFormat& format) const noexcept;

  // Messages of an exchange.
  enum Message : std::uint32_t { kRecord, kFlags, kRows, kAsk, kSums };
  MessageHead head(Message kind, std::uint64_t number) const noexcept {
    return {.channel = channel_, .kind = kind, .number = number};
  }

  void ask(int mate, std::uint64_t number, const Ask& ask, std::span<const std::byte> terms);
  // Where the sums of combine `number` from `mate` go; and when it is over.
  std::byte* expect_sums(std::uint64_t number, int mate, std::size_t bytes);
  void forget_sums(std::uint64_t number);
  bool all_here(std::uint64_t number, int mate) const;

  // Bytes sent to other nodes: of rows and their scales, and of everything.
  std::uint64_t row_bytes() const noexcept { return row_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t all_bytes() const noexcept { return all_bytes_.load(std::memory_order_relaxed); }
  void count_bytes(std::size_t rows, std::size_t all) noexcept {
    row_bytes_.fetch_add(rows, std::memory_order_relaxed);
    all_bytes_.fetch_add(all, std::memory_order_relaxed);
  }

 private:
  // A client's question, while it is answered.
  struct Duty {
    std::uint64_t number;
    Ask ask;
    std::vector<std::byte> terms;
    std::size_t at = 0;  // terms served
    std::vector<int> ranks = {};
    std::unique_ptr<HomeRows> rows = {};
    std::unique_ptr<Summands> sum = {};
    std::unique_ptr<MessageStream> out = {};
  };
  // Sums on their way here.
  struct Incoming {
    std::uint64_t number;
    int mate;
    std::unique_ptr<std::byte[]> memory;
    std::size_t size, filled;
    std::size_t capacity = 0;

    std::byte* data() const noexcept { return memory.get(); }
  };

  void read(int from, const MessageHead& head, std::span<const std::byte> body) override;
  bool go_on() override;
  bool done() const override;

  void read_record(int from, std::uint64_t number, std::span<const std::byte> body);
  void read_flags(int from, std::uint64_t number, std::span<const std::byte> body);
  void send(int peer, const MessageHead& head, std::span<const std::byte> body);

  // stored_rows.cc
  void store_rows(std::uint64_t number, std::span<const std::byte> body) const;
  std::size_t store_unit(std::uint64_t number, std::span<const std::byte> unit) const;
  void store_metadata(std::byte* buffer, const UnitRow& to, const std::byte* rest) const;

  // served_sums.cc
  void read_ask(int from, std::uint64_t number, std::span<const std::byte> body);
  bool serve(int client, Duty& duty);
  enum class Ready { kNo, kYes, kNever };
  Ready ready(const Duty& duty) const;
  void find_ranks(Duty& duty) const;
  bool serve_unit(Duty& duty);
  bool find_unit(Duty& duty, int num_terms, std::size_t at) const;
  void put_scalars(const Duty& duty, std::size_t at, float* out) const;

  void read_sums(int from, std::uint64_t number, std::span<const std::byte> body);

  GroupState* group_;
  // Its own: it may outlive its exchange.
  ExchangeConfig config_;
  WindowLayout layout_;
  WindowView view_;
  const WireFormat* combine_wire_;
  int rank_;
  std::uint32_t channel_;

  std::uint64_t told_ = 0;                  // last record that was told
  std::map<int, std::deque<Duty>> duties_;  // of each client that has asked
  std::vector<Incoming> incoming_;
  std::vector<std::pair<std::size_t, std::unique_ptr<std::byte[]>>> spare_;  // used before
  std::vector<int> wanted_;                                                  // peers: room for them
  // Raised here, awaited by this rank's caller.
  std::vector<std::atomic<std::uint64_t>> summed_, served_, room_;
  std::atomic<std::uint64_t> row_bytes_{0}, all_bytes_{0};
};

}  // namespace ferry::internal
