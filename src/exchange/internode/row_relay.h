// RowRelay: passes messages of served ranks on to nodes further in, and reports room for messages
// to a caller that waits for it. Messages of a rank are passed on in the order in which they came,
// when there is room. It is called where the group makes progress; want_room() and room() are for
// the thread of the exchange's caller.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "exchange/internode/mate_links.h"

namespace ferry::internal {

class RowRelay {
 public:
  explicit RowRelay(MateLinks& links) : links_(links), room_(links.num_ranks()) {}

  // Keeps a message for the nodes further in, if there are any. Not for requests of sums, which
  // each mate makes anew (SumRequest).
  void keep(const MessageHead& head, std::span<const std::byte> body);
  // Passes on kept messages, and raises room() of peers that have room. True if something was sent.
  bool go_on();
  // True while it keeps messages for which others wait.
  bool holds() const noexcept { return !waiting_.empty(); }

  // Drops all messages.
  void drop() noexcept {
    waiting_.clear();
    wanted_.store({0, 0}, std::memory_order_relaxed);
  }

  // [ranks] Flags for which a rank waits: each rises when there is the room that want_room() asked
  // for.
  const std::atomic<std::uint64_t>* room() const noexcept { return room_.data(); }
  // Returns the value that room()[peer] will reach when there is room for this many messages. Only
  // one peer at a time.
  std::uint64_t want_room(int peer, std::uint32_t messages);

 private:
  struct Wanted {
    std::int32_t peer;
    std::uint32_t messages;  // 0: no room is waited for
  };
  // A kept message, of which the bytes before `at` have been passed on.
  struct Waiting {
    MessageHead head;
    std::vector<std::byte> body;
    std::size_t at = 0;
  };

  bool pass_waiting();
  bool give_room();
  std::size_t pass(const MessageHead& head, std::span<const std::byte> body);
  std::size_t pass_rows(const MessageHead& head, std::span<const std::byte> body);

  MateLinks& links_;
  std::map<int, std::deque<Waiting>> waiting_;  // by served rank, in order of arrival
  std::atomic<Wanted> wanted_{Wanted{0, 0}};
  std::vector<std::atomic<std::uint64_t>> room_;  // [ranks] raised by this rank
};

}  // namespace ferry::internal
