// ControlMirror: the control messages of one way. It sends this rank's record, counts and flags to
// its mates, and writes those of the ranks that it serves into the window of this node, as if those
// ranks had written them. The second way has only the flag that says that rows are there. It sends
// on the thread of the exchange's caller, and writes where the group makes progress.
#pragma once

#include <atomic>
#include <cstdint>
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
  // Over the second way: the rows that this rank sent in operation `number` have been delivered.
  void send_delivered(std::uint64_t number);
  // Sends read_through of this rank to the ranks of the last operation and to those that will take
  // part, without progress, since messages by the table in use may still be on their way. Returns
  // the table of the ranks that will take part. `all`: all ranks do.
  ForwardingTable send_read(const std::vector<bool>& taking_part, bool all);
  // Sends to all nodes that this rank may have sent to that it destroys its exchange.
  void send_departure();

  // Writes a message about rank `source` to the window of this node.
  void write(int source, std::uint64_t number, const RecordMessage& message);
  void write(int source, std::uint64_t number, const RankFlags& flags);

  // The mates whose rows are still to come that no flag of a wait covers.
  std::vector<int> expected() const;
  // True when all ranks whose messages come through this one, or all that read these messages here,
  // have destroyed their exchange or are gone, at every level.
  bool ended() const;

 private:
  void send_flags(const std::vector<ForwardingTable::Mate>& mates, const RankFlags& flags);
  std::vector<ForwardingTable::Mate> mates_elsewhere(const ForwardingTable& table) const;
  void add_served(const ForwardingTable& table);
  std::uint64_t seen_progress(int peer) const noexcept;

  MateLinks& links_;
  std::atomic<std::uint64_t> ControlFlags::*progress_;  // that messages of this way raise
  // The last record that was sent; by the second way, the last operation that was delivered. The
  // caller writes it, any thread reads it; nothing else is published by it.
  std::atomic<std::uint64_t> sent_{0};
  // [ranks] Those whose messages come through this rank, by the table of any operation so far; and
  // those of them that send to it directly. Guarded by the lock of the group.
  std::vector<bool> served_, sends_here_;
};

}  // namespace ferry::internal
