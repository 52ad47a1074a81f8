// ControlMirror: the control messages of one way. It sends this rank's record, counts and flags to
// its mates, and writes those of the ranks that it serves into the segment of this node, as if
// those ranks had written them. The mirror of the second way sends and writes only the flag that
// says that rows are there. A mirror sends on the thread of the exchange's caller, and writes where
// the group makes progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "exchange/internode/mate_links.h"
#include "exchange/internode/message_layout.h"

namespace ferry::internal {

class ControlMirror {
 public:
  explicit ControlMirror(MateLinks& links);

  // Sends this rank's flags to the mates. The first message of operation `number` also has the
  // record, and the counts if the operation has any.
  void send(std::uint64_t number);
  // On the second way: sends that this rank has delivered its rows of operation `number`.
  void send_delivered(std::uint64_t number);
  // Sends this rank's read_through to the ranks of the last operation and to those that will take
  // part. It does not send progress, since messages by the table in use may still be in flight.
  // Returns the table of the ranks that will take part. `all`: all ranks will.
  ForwardingTable send_read(const std::vector<bool>& taking_part, bool all);
  // The table of an operation of these ranks. Connects to its mates.
  ForwardingTable table_of(const std::vector<bool>& taking_part, bool all);
  // Call when a view begins: forgets for which operation the last record was sent.
  void begin_view() noexcept { sent_.store(0, std::memory_order_relaxed); }
  // Sends to all nodes with which this rank may have communicated that it destroys its exchange.
  void send_departure();

  // Writes a message about rank `source` to the segment of this node.
  void write(int source, std::uint64_t number, const RecordMessage& message);
  void write(int source, std::uint64_t number, const RankFlags& flags);

  // The mates from which rows may still arrive although no awaited flag shows it.
  std::vector<int> expected() const;
  // True if no more messages pass through this rank: at every level, all served ranks outside this
  // rank's group, or all other ranks inside the group, have destroyed their exchange or are gone.
  bool ended() const;

 private:
  void send_flags(const std::vector<ForwardingTable::Mate>& mates, const RankFlags& flags);
  std::vector<ForwardingTable::Mate> mates_elsewhere(const ForwardingTable& table) const;
  void add_served(const ForwardingTable& table);
  std::uint64_t seen_progress(int peer) const noexcept;
  std::span<std::int32_t> count_row(int rank, std::uint64_t number) const noexcept;

  MateLinks& links_;
  std::atomic<std::uint64_t> ControlFlags::*progress_;  // the flag that this way raises
  // The operation of the last record that was sent; on the second way, the last operation that was
  // delivered. The caller writes it and any thread reads it; it publishes no other memory.
  std::atomic<std::uint64_t> sent_{0};
  // [ranks] The ranks whose messages came through this rank by the table of any operation so far;
  // and those of them that send to it directly. Guarded by the lock of the group.
  std::vector<bool> served_, sends_here_;
};

}  // namespace ferry::internal
