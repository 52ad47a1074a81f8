// MateLinks: the sending side of one way: the ranks that it reaches (ForwardingTable), the heads of
// its messages, and counts of the sent bytes. Any thread may call it, except for table() and use().
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "exchange/internode/message_layout.h"
#include "exchange/setup/window_view.h"
#include "ferry/exchange.h"
#include "group/state.h"
#include "topology/forwarding_table.h"

namespace ferry::internal {

class MateLinks {
 public:
  // With Algorithm::kFullmesh no rank forwards from one node to another.
  MateLinks(GroupState& group, const WindowView& view, Algorithm algorithm, bool second_way);

  // The table by which this rank sends its own messages: that of the last operation in which it
  // took part. Both functions are only for the thread of the exchange's caller.
  const ForwardingTable& table() const noexcept { return table_; }
  void use(ForwardingTable table) { table_ = std::move(table); }
  // The table of all ranks, by which this rank passes messages on.
  const ForwardingTable& everybody() const noexcept { return everybody_; }
  bool is_second_way() const noexcept { return second_way_; }
  // Whether there is a second way, at the outermost level at which this rank has mates.
  bool has_second_way() const {
    return topology().level(everybody_.outermost).link.second_way.has_value();
  }
  GroupState& group() const noexcept { return *group_; }
  const Topology& topology() const noexcept { return group_->topology(); }
  MessageChannel& messages() const noexcept { return group_->messages(); }
  const WindowView& view() const noexcept { return view_; }
  const WindowLayout& layout() const noexcept { return layout_; }
  int rank() const noexcept { return group_->rank(); }
  int num_ranks() const noexcept { return view_.num_ranks(); }

  // Sets the number of the channel. Call before the first message.
  void open(std::uint32_t channel) noexcept { channel_ = channel; }
  // `source`: the rank that the message is about, or for which sums are requested.
  MessageHead head(MessageKind kind, std::uint64_t number, int level, int source) const noexcept {
    return {.channel = channel_,
            .kind = kind,
            .level = static_cast<std::uint8_t>(level),
            .source = static_cast<std::uint16_t>(source),
            .number = number};
  }
  void send(int peer, const MessageHead& head, std::span<const std::byte> body);
  // MessageChannel::send_soon.
  void send_soon(int peer, const MessageHead& head, std::span<const std::byte> body);

  void count_rows(int peer, std::size_t bytes) noexcept {
    crossed_[peer].rows.fetch_add(bytes, std::memory_order_relaxed);
  }
  void count_all(int peer, std::size_t bytes) noexcept {
    crossed_[peer].all.fetch_add(bytes, std::memory_order_relaxed);
  }
  // Bytes sent to ranks outside this rank's group of `level`.
  CrossedBytes crossed(int level) const;

 private:
  struct Crossed {
    std::atomic<std::uint64_t> rows{0}, all{0};
  };

  GroupState* group_;
  WindowLayout layout_;  // a copy: a way may outlive its exchange
  WindowView view_;
  bool second_way_;
  ForwardingTable everybody_, table_;
  std::uint32_t channel_ = 0;
  std::vector<Crossed> crossed_;  // [ranks]
};

}  // namespace ferry::internal
