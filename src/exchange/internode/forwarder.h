// Crossing: the side of an exchange that faces other nodes. It tells the mates this rank's words,
// and writes down those of the ranks that it serves (its clients); it stores their rows at the
// ranks of this node, sums rows of this node for them, and takes in the sums that come back for
// this rank. What is for nodes further in it passes on to its own mates there, whose sums it adds.
// Made by state.cc when there are several nodes; called by protocol, dispatch and
// combine, and by the group when messages come, maybe on a thread of its own: what both touch is
// guarded by the lock of Mail. docs/protocol.md, "Between nodes".
//   crossing.cc        words, waiting     stored_rows.cc  a client's rows, from here to their slots
//   incoming_sums.cc   asking for sums    served_sums.cc  a client's sums, from rows of this node
//   asked_sums.cc      a client's question, as it comes
//   passed_on.cc       a client's words and rows, on to the mates further in
//   cross_rows.cc      (of ExchangeState) my rows, packed for each mate
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "exchange/home_rows.h"
#include "exchange/internode/message_stream.h"
#include "exchange/internode/subtree_sums.h"
#include "exchange/internode/subtrees.h"
#include "exchange/window_view.h"
#include "group/state.h"
#include "group/wait.h"
#include "routing/route.h"

namespace ferry::internal {

// Messages of rows and of sums are units, each of which begins at a multiple of this.
constexpr std::size_t kUnitAlign = 16;

// A unit of a dispatch: a row and where it goes; the destinations, the row and its scales follow.
struct UnitHead {
  enum : std::int32_t {
    kStreaming = 1,   // all rows of the dispatch together do not fit the caches
    kEverywhere = 2,  // to every node, wanted or not (kAllgather)
  };
  std::int32_t num_rows;
  std::int32_t flags;
};
struct UnitRow {
  std::int32_t rank, row, section_rows;
  std::int32_t source[3];  // then weights and ids of the row
};

// Bytes of a UnitRow with its weights and ids, of the unit before the row, and of a whole unit.
std::size_t unit_row_bytes(const WindowLayout& layout) noexcept;
std::size_t unit_row_at(int num_rows, const WindowLayout& layout) noexcept;
std::size_t unit_size(int num_rows, const WindowLayout& layout) noexcept;
// Bytes of the unit that `bytes` begin with, and its head; 0: there is none.
std::size_t whole_unit(std::span<const std::byte> bytes, const WindowLayout& layout,
                       UnitHead& head) noexcept;

// What a source asks of the combine's rows in the group of a mate, before the terms.
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
std::size_t term_bytes(int num_positions) noexcept;

class Forwarder final : public Channel {
 public:
  // With Algorithm::kFullmesh no rank forwards from one node to another.
  Forwarder(GroupState& group, const WindowView& view, const ExchangeConfig& config,
            Algorithm algorithm);
  ~Forwarder() override;

  // Of the ranks of the last operation in which this rank took part.
  const ForwardingTable& table() const noexcept { return table_; }
  // What peers of other nodes must know once progress says `number`: the first time the record, and
  // with it the counts where there are any.
  void tell(std::uint64_t number);
  // Tells other ranks that will take part how far this rank has read, and nothing of what may still
  // be under way by the table in use; returns their table. `all`: everybody takes part.
  ForwardingTable tell_read(const std::vector<bool>& taking_part, bool all);
  void use(ForwardingTable table) { table_ = std::move(table); }
  // By the table of all messages before.
  void tell_left();

  // Flags to wait for, [ranks].
  const std::atomic<std::uint64_t>* summed() const noexcept { return summed_.data(); }
  const std::atomic<std::uint64_t>* served() const noexcept { return served_.data(); }
  const std::atomic<std::uint64_t>* room() const noexcept { return room_.data(); }
  // The value of room()[peer] that says there is some.
  std::uint64_t want_room(int peer);

  MessageChannel& messages() const noexcept { return group_->messages(); }
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
  enum Message : std::uint8_t { kRecord, kFlags, kRows, kAsk, kSums };
  // `origin`: whose words or rows they are, and who asks.
  MessageHead head(Message kind, std::uint64_t number, int level, int origin) const noexcept {
    return {.channel = channel_,
            .kind = kind,
            .level = static_cast<std::uint8_t>(level),
            .origin = static_cast<std::uint16_t>(origin),
            .number = number};
  }

  // Of combine `number` and rank `origin`.
  void ask(const ForwardingTable::Mate& mate, std::uint64_t number, int origin, const Ask& ask,
           std::span<const std::byte> terms);
  // Where the sums of my own combine `number` from `mate` go; and when that of `origin` is over.
  std::byte* expect_sums(std::uint64_t number, int mate, std::size_t bytes) {
    return expect(number, rank_, mate, bytes).data();
  }
  void forget_sums(std::uint64_t number, int origin);
  bool all_here(std::uint64_t number, int mate) const;

  // Sent to other groups of a level.
  CrossedBytes crossed(int level) const noexcept;
  void count_rows(int peer, std::size_t bytes) noexcept {
    crossed_[peer].rows.fetch_add(bytes, std::memory_order_relaxed);
  }
  void count_all(int peer, std::size_t bytes) noexcept {
    crossed_[peer].all.fetch_add(bytes, std::memory_order_relaxed);
  }

 private:
  struct Crossed {
    std::atomic<std::uint64_t> rows{0}, all{0};
  };
  // Sums on their way here.
  struct Incoming {
    std::uint64_t number;
    int origin, mate;  // for whom, from whom
    std::unique_ptr<std::byte[]> memory;
    std::size_t size, filled, capacity;

    std::byte* data() const noexcept { return memory.get(); }
  };
  // What a mate further in has to say to a question.
  struct Part {
    const Incoming* sums = nullptr;  // null: nothing
    std::size_t at = 0;              // bytes used
  };
  // A client's question, while it is answered.
  struct SumRequest {
    std::uint64_t number;
    int origin, asker, level;  // who asks, by whom, over which tier
    Ask ask;
    std::vector<std::byte> terms;
    std::size_t at = 0;            // terms served
    std::vector<int> ranks = {};   // whose rows are asked for
    std::vector<Part> parts = {};  // [mates]
    std::unique_ptr<HomeRows> rows = {};
    std::unique_ptr<Summands> sum = {};
    std::unique_ptr<SubtreeSums> sums = {};
    std::unique_ptr<MessageStream> out = {};
  };
  // What a mate further in is asked.
  struct Question {
    std::vector<std::byte> terms;
    std::size_t answer_bytes = 0;
  };
  // Rows on their way to a mate further in: which of a unit's, if it wants the unit.
  struct Onward {
    MessageStream stream;
    std::span<const std::int64_t> rows = {};
    bool wanted = false;
  };
  // What is left of a message that waits for room on its way on.
  struct Passing {
    MessageHead head;
    std::vector<std::byte> body;
    std::size_t at = 0;
  };

  void read(int from, const MessageHead& head, std::span<const std::byte> body) override;
  bool go_on() override;
  bool holds() const override { return !passing_.empty(); }
  bool waits_for(int peer) const override;
  bool done() const override;

  void read_record(int origin, std::uint64_t number, std::span<const std::byte> body);
  void read_flags(int origin, std::uint64_t number, std::span<const std::byte> body);
  void send(int peer, const MessageHead& head, std::span<const std::byte> body);
  void send_flags(const ForwardingTable& table, std::uint64_t progress, std::uint64_t read_through);
  Incoming& expect(std::uint64_t number, int origin, int mate, std::size_t bytes);
  void read_sums(int from, const MessageHead& head, std::span<const std::byte> body);

  // passed_on.cc
  // Mates of levels further in than `level`: the last ones in the table.
  std::span<const ForwardingTable::Mate> further_in(int level) const noexcept;
  void pass_on(const MessageHead& head, std::span<const std::byte> body);
  bool pass_waiting();
  std::size_t pass(const MessageHead& head, std::span<const std::byte> body);
  std::size_t pass_rows(const MessageHead& head, std::span<const std::byte> body);
  std::size_t pass_unit(std::span<const std::byte> unit, std::span<Onward> onward);
  void put_unit(std::span<const std::byte> unit, UnitHead head, Onward& to);

  // stored_rows.cc
  void store_rows(std::uint64_t number, std::span<const std::byte> body) const;
  std::size_t store_unit(std::uint64_t number, std::span<const std::byte> unit) const;
  void store_metadata(std::byte* buffer, const UnitRow& to, const std::byte* rest) const;

  // asked_sums.cc
  void read_ask(int from, const MessageHead& head, std::span<const std::byte> body);
  bool split(SumRequest& request, std::vector<Question>& questions) const;
  bool reaches(int rank, int level) const noexcept;
  void add_unit(const SumRequest& request, std::size_t first, std::span<const std::int64_t> items,
                Question& question) const;
  TermPlace place_of(const SumRequest& request, std::size_t first, std::int64_t term,
                     int position) const;
  Subtrees subtrees_of(const SumRequest& request, std::size_t first, int num_terms) const;

  // served_sums.cc
  bool serve(SumRequest& request);
  enum class Ready { kNo, kYes, kNever };
  Ready ready(const SumRequest& request) const;
  bool serve_unit(SumRequest& request);
  std::size_t part_bytes(const SumRequest& request,
                         const Subtrees::Subtree& subtree) const noexcept;
  bool has_come(const SumRequest& request, const Subtrees& subtrees) const;
  bool find_rows(SumRequest& request, std::size_t first, std::span<const std::int64_t> items) const;
  void ship(SumRequest& request, const Subtrees& subtrees, std::byte* out) const;
  void add_up(SumRequest& request, const Subtrees& subtrees, std::byte* out) const;
  void put_scalars(const SumRequest& request, std::size_t first, const Subtrees& subtrees,
                   float* out) const;

  GroupState* group_;
  // Its own: it may outlive its exchange.
  ExchangeConfig config_;
  WindowLayout layout_;
  WindowView view_;
  const WireFormat* combine_wire_;
  ForwardingTable forwarding_;  // of all ranks: what comes is passed on by it
  ForwardingTable table_;       // what this rank sends goes by it
  int rank_;
  std::uint32_t channel_;

  std::uint64_t told_ = 0;                          // last record that was told
  std::map<int, std::deque<SumRequest>> requests_;  // of each client that has asked
  std::map<int, std::deque<Passing>> passing_;      // of each client, in the order they came
  std::list<Incoming> incoming_;
  std::vector<std::pair<std::size_t, std::unique_ptr<std::byte[]>>> spare_;  // used before
  std::vector<int> wanted_;                                                  // peers: room for them
  // Raised here, awaited by this rank's caller.
  std::vector<std::atomic<std::uint64_t>> summed_, served_, room_;
  std::vector<Crossed> crossed_;  // [ranks]
};

}  // namespace ferry::internal
