// Messages: sends and receives that this rank has begun. progress() moves them, in one thread at a
// time; another thread may begin messages meanwhile. Sends to one rank go out in the order in which
// they were begun. Receives are matched in their order too, each with the earliest message that
// fits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "collectives/mailboxes.h"
#include "group/wait.h"

namespace ferry::internal {

// What a caller sends or wants to receive.
struct MessageSpec {
  std::size_t bytes;
  DataType dtype;
  int peer;  // the receiver; for recv the sender, or kAny
  std::int64_t tag;
  bool receives;
  const std::byte* from;  // of a send
  std::byte* to;          // of a receive
  static constexpr int kAny = -1;
};

struct MessageState {
  MessageState(const MessageSpec& what, std::chrono::nanoseconds limit)
      : spec(what), time(limit), source(what.peer) {}

  bool has_ended() const noexcept { return ended.load(std::memory_order_acquire); }
  // Release: the data have moved before. Partner: has_ended().
  void end(Status with) {
    status = std::move(with);
    ended.store(true, std::memory_order_release);
  }

  MessageSpec spec;
  CallTime time;
  std::uint64_t number = 0;
  int source;             // of a receive that is matched: the sender
  bool matched = false;   // the first piece has come
  std::size_t moved = 0;  // bytes
  bool written = false;   // of a send: all bytes are in the mailbox, or on their way to it
  std::uint64_t channel_number = 0;  // of a send to another node that is written (Traffic::queued)
  bool whole = false;                // of a receive: all bytes have come
  bool over = false;                 // at the last look, its time had passed or its peer was lost
  Status status;
  std::atomic<bool> ended{false};
};

class Messages {
 public:
  explicit Messages(GroupState& group, Mailboxes mailboxes);

  // Any thread.
  void begin(std::shared_ptr<MessageState> message);
  // Moves what was begun. With `waits` it returns when a message has ended, or none is on its way.
  // An error is that of the group, with which all messages end.
  Status progress(bool waits) {
    CountedWait counted(group_.survival().num_calls());
    return move(waits, nullptr, counted);
  }
  // The same until this message has ended.
  Status finish(const std::shared_ptr<MessageState>& message);

 private:
  using Begun = std::list<std::shared_ptr<MessageState>>::iterator;
  Begun take_begun();
  void meet(Begun message);
  bool advance();
  bool send_some(MessageState& message);
  bool write_some(MessageState& message);
  bool is_sent(const MessageState& message) const;
  using Wanted = std::set<std::pair<std::int64_t, int>>;  // tags and senders, or kAny
  bool receive_some(MessageState& message, Wanted& unmatched);
  // Whether a message of `sender` fits, or ends the receive with an error.
  bool match(MessageState& message, int sender);
  bool claim(MessageState& message, int sender, const PieceHead& head);
  void take_kept(MessageState& message, const KeptMessage& kept);
  bool receive_pieces(MessageState& message);
  Status check(const MessageState& message, int sender, const PieceHead& head) const;
  void keep_all();

  // `counted`: of the call that moves messages.
  Status move(bool waits, const MessageState* awaited, CountedWait& counted) noexcept;
  Status try_move(bool waits, const MessageState* awaited, CountedWait& counted);
  Status await_event(std::uint64_t events, const MessageState* awaited, CountedWait& counted);
  // Sets the ranks that the next wait is for.
  void want(int peer) noexcept;
  void want_any() noexcept;
  Await awaiting(MessageState& message, const Status& death, std::uint64_t events) noexcept;
  bool has_lost_peer(const MessageState& message, const Status& death) const noexcept;
  Status end_all(const Status& status);
  Status await_departure();

  GroupState& group_;
  Mailboxes mailboxes_;
  bool crowded_;
  std::uint64_t view_;          // the view of the group in which all was made
  std::int64_t looked_ns_ = 0;  // when this rank last looked for ranks that died
  std::mutex mutex_;            // of the two below
  std::list<std::shared_ptr<MessageState>> begun_;
  std::uint64_t number_ = 0;
  std::list<std::shared_ptr<MessageState>> pending_;  // in the order in which they were begun
  int first_sender_ = 0;             // the sender that a receive from any rank looks at first
  std::vector<bool> only_, nobody_;  // [ranks] for Await
  std::vector<bool> full_;           // [ranks] a send waits for room, and so do those behind it
  std::vector<bool> receiving_;      // [ranks] a receive takes the pieces of the rank as they come
};

}  // namespace ferry::internal
