// ControlMirror: the control messages of one way. It sends this rank's record, counts and flags to
// its mates, and writes those of the ranks that it serves into the window of this node, as if those
// ranks had written them. By the second way only the flag goes that says that rows are there.
// Owned by Way; sends on the thread of the exchange's caller, stores where the group makes
// progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "exchange/internode/mate_links.h"
#include "exchange/internode/message_layout.h"

namespace ferry::internal {

class ControlMirror {
 public:
  explicit ControlMirror(MateLinks& links) noexcept
      : links_(links),
        progress_(links.is_second_way() ? &ControlFlags::second_way : &ControlFlags::progress) {}

  // What peers of other nodes must know once progress says `number`: the first time the record, and
  // with it the counts where there are any.
  void send(std::uint64_t number);
  // By the second way: what this rank sent of operation `number` is there.
  void send_delivered(std::uint64_t number);
  // Tells the ranks of the last operation and those that will take part how far this rank has read,
  // and nothing of what may still be under way by the table in use; returns the table of those that
  // will take part. `all`: everybody does.
  ForwardingTable send_read(const std::vector<bool>& taking_part, bool all);
  // That this rank destroys its exchange, by the table of all messages before.
  void send_left();

  // What came from `origin`.
  void write(int origin, std::uint64_t number, const RecordMessage& message);
  void write(int origin, std::uint64_t number, const RankFlags& flags);

  // The mates whose rows are still to come that no flag of a wait tells of.
  std::vector<int> expected() const;
  // True when all ranks whose messages come through this one, or all that read these messages here,
  // have destroyed their exchange or are gone, at every level.
  bool ended() const;

 private:
  void send_flags(const ForwardingTable& table, const RankFlags& flags);
  std::uint64_t seen_progress(int peer) const noexcept;

  MateLinks& links_;
  std::atomic<std::uint64_t> ControlFlags::*progress_;  // that messages of this way raise
  // The last record that was sent; by the second way, the last operation that was delivered. The
  // caller writes it, any thread reads it; nothing else is published by it.
  std::atomic<std::uint64_t> sent_{0};
  // [ranks] Those that this rank served by the table of the last operation, once it has destroyed
  // its exchange; guarded by the lock of the group.
  std::vector<bool> served_last_;
};

}  // namespace ferry::internal
