// Forwarder: the side of an exchange that faces other nodes. It sends this rank's control messages
// (record, counts, flags) to its mates, the ranks with its position in the sibling groups, and
// writes down those of the ranks that it serves, which are of other nodes; it stores their rows at
// the ranks of this node, sums rows of this node for them, and passes on what is for nodes further
// in. One per exchange of several nodes and way between them: that of the second way has rows and
// sums, and of the control messages only those that say that rows are there. Called by Protocol,
// RowSender and Combine, and by the group when messages come, maybe on a thread of its own: what
// both touch is guarded by the lock of the MessageChannel. docs/protocol.md, "Between nodes".
//   forwarder.cc     control messages, room, what waits
//   stored_rows.cc   rows, into their slots
//   row_splitter.h   rows, to each mate that wants them
//   asked_sums.h     sums, asked of each mate
//   sum_request.h    sums that were asked for
//   sums_inbox.h     the answers, as they come
//   message_layout.h the bytes of all that
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "exchange/internode/message_layout.h"
#include "exchange/internode/row_splitter.h"
#include "exchange/internode/sum_request.h"
#include "exchange/internode/sums_inbox.h"
#include "exchange/window_view.h"
#include "exchange/worker_pool.h"
#include "group/state.h"
#include "group/wait.h"
#include "topology/forwarding_table.h"

namespace ferry::internal {

class Forwarder final : public Channel {
 public:
  // With Algorithm::kFullmesh no rank forwards from one node to another.
  Forwarder(GroupState& group, const WindowView& view, const ExchangeConfig& config,
            Algorithm algorithm, bool second_way);
  ~Forwarder() override;

  // Of the ranks of the last operation in which this rank took part: by it this rank sends.
  const ForwardingTable& table() const noexcept { return table_; }
  // Of all ranks: by it this rank passes on.
  const ForwardingTable& everybody() const noexcept { return everybody_; }
  // Between the groups of the outermost level at which this rank has mates.
  bool has_second_way() const {
    return topology().level(everybody_.outermost).link.second_way.has_value();
  }
  const Topology& topology() const noexcept { return group_->topology(); }
  const WindowView& view() const noexcept { return view_; }
  const WindowLayout& layout() const noexcept { return layout_; }
  int num_ranks() const noexcept { return view_.num_ranks(); }
  MessageChannel& messages() const noexcept { return group_->messages(); }

  // What peers of other nodes must know once progress says `number`: the first time the record, and
  // with it the counts where there are any.
  void tell(std::uint64_t number);
  // By the second way: what I sent of operation `number` is there.
  void tell_delivered(std::uint64_t number);
  // Tells the ranks of the last operation and those that will take part how far this rank has read,
  // and nothing of what may still be under way by the table in use; returns the table of those that
  // will take part. `all`: everybody does.
  ForwardingTable tell_read(const std::vector<bool>& taking_part, bool all);
  void use(ForwardingTable table) { table_ = std::move(table); }
  // The workers of the exchange, which sum rows for other ranks. Before the first operation.
  void use(std::shared_ptr<WorkerPool> workers);
  WorkerPool& workers() const noexcept { return *workers_; }
  // By the table of all messages before.
  void tell_left();

  // Flags to wait for, [ranks].
  const std::atomic<std::uint64_t>* summed() noexcept { return inbox_.summed().data(); }
  const std::atomic<std::uint64_t>* served() const noexcept { return asked_.served.data(); }
  const std::atomic<std::uint64_t>* room() const noexcept { return room_.given.data(); }
  // The value of room()[peer] that says there is room for so many messages.
  std::uint64_t want_room(int peer, int messages);

  // How sums are made and lie.
  bool exact() const noexcept { return config_.node_sums == NodeSums::kExact; }
  DataType sum_type(DataType row_type) const noexcept {
    return config_.node_sums == NodeSums::kFp32 ? DataType::kFp32 : row_type;
  }
  RowFormat row_format(const SumFormat& format) const noexcept;
  AnswerLayout answer_layout(const RowFormat& format, int scalars) const noexcept;

  // Asks a mate for the sums of combine `number` for rank `origin`, which will have `bytes`; null
  // where that is 0: the mate learns that nothing is asked of it.
  struct Ask {
    std::uint64_t number;
    int origin;
    std::size_t bytes;
  };
  const IncomingSums* ask(const ForwardingTable::Mate& mate, const Ask& ask,
                          std::span<const std::byte> body);
  void forget_sums(std::uint64_t number, int origin);
  // Whether the sums of my own combine from a mate are all here.
  bool all_here(std::uint64_t number, int mate) const;

  // Messages of an exchange. `origin`: whose they are, or for whom sums are asked.
  enum Message : std::uint8_t { kRecord, kFlags, kRows, kAsk, kSums };
  MessageHead head(Message kind, std::uint64_t number, int level, int origin) const noexcept {
    return {.channel = channel_,
            .kind = kind,
            .level = static_cast<std::uint8_t>(level),
            .origin = static_cast<std::uint16_t>(origin),
            .number = number};
  }

  // Sent to other groups of a level.
  CrossedBytes crossed(int level) const;
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
  // What is left of a message that waits for room to be passed on.
  struct Passing {
    MessageHead head;
    std::vector<std::byte> body;
    std::size_t at = 0;
  };
  // Sums that this rank makes for others.
  struct Asked {
    // Of each served rank that has asked. The key is the outermost level at which its groups and
    // mine differ, then the rank: sums for ranks furthest out are made first, as most hops are left
    // to them.
    std::map<std::pair<int, int>, std::list<SumRequest>> requests = {};
    std::vector<std::atomic<std::uint64_t>> served;  // [ranks] the last combine answered
  };
  struct Room {
    std::vector<std::pair<int, int>> wanted;        // by peer: messages
    std::vector<std::atomic<std::uint64_t>> given;  // [ranks] raised here
  };

  void read(int from, const MessageHead& head, std::span<const std::byte> body) override;
  bool go_on() override;
  bool holds() const override { return !passing_.empty(); }
  bool waits_for(int peer) const override;
  bool expects(int peer) const override;
  bool done() const override;

  void read_record(int origin, std::uint64_t number, std::span<const std::byte> body);
  void read_flags(int origin, std::uint64_t number, const RankFlags& flags);
  void read_ask(int from, const MessageHead& head, std::span<const std::byte> body);
  void read_sums(int from, const MessageHead& head, std::span<const std::byte> body);
  void send(int peer, const MessageHead& head, std::span<const std::byte> body);
  void send_soon(int peer, const MessageHead& head, std::span<const std::byte> body);
  void send_flags(const ForwardingTable& table, const RankFlags& flags);

  void pass_on(const MessageHead& head, std::span<const std::byte> body);
  bool pass_waiting();
  std::size_t pass(const MessageHead& head, std::span<const std::byte> body);
  std::size_t pass_rows(const MessageHead& head, std::span<const std::byte> body);

  std::uint64_t seen_progress(int peer) const noexcept;

  // stored_rows.cc
  void store_rows(std::uint64_t number, std::span<const std::byte> body) const;
  bool store_unit(std::uint64_t number, const RowUnit& unit) const;

  GroupState* group_;
  // Its own: the forwarder may outlive its exchange.
  ExchangeConfig config_;
  WindowLayout layout_;
  WindowView view_;
  ForwardingTable everybody_, table_;
  std::atomic<std::uint64_t> ControlFlags::*progress_;  // that messages of this way raise
  std::uint32_t channel_;
  // The last record that was told; by the second way, the last operation that was delivered.
  std::uint64_t told_ = 0;
  std::shared_ptr<WorkerPool> workers_ = std::make_shared<WorkerPool>(1);
  Asked asked_;
  std::map<int, std::deque<Passing>> passing_;  // of each served rank, in the order they came
  SumsInbox inbox_;
  Room room_;
  std::vector<Crossed> crossed_;  // [ranks]
};

}  // namespace ferry::internal
