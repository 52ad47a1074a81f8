// Messages: send and recv. Messages that this rank takes from a mailbox before a recv for them are
// kept in memory of this process. These are messages with other tags, and all that arrive while a
// send waits for room, so that two ranks can send to each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "collectives/layout.h"
#include "collectives/mailbox.h"
#include "collectives/mirror.h"
#include "group/state.h"
#include "group/wait.h"
#include "memory/segment.h"

namespace ferry::internal {

// The message that a caller sends or receives.
struct MessageSpec {
  std::size_t bytes;
  DataType dtype;
  int peer;  // the receiver; for recv the sender, or kAny
  std::int64_t tag;
  static constexpr int kAny = -1;
};

class Messages {
 public:
  Messages(GroupState& group, std::shared_ptr<Segment> segment, const CollectivesLayout& layout,
           const MailboxShape& shape, std::shared_ptr<Mirror> mirror);  // null on one node

  Status send(const std::byte* data, const MessageSpec& spec, std::chrono::nanoseconds limit);
  Status recv(std::byte* data, const MessageSpec& spec, int& source,
              std::chrono::nanoseconds limit);

 private:
  // A message of which all pieces, or the first ones, have been taken. Memory is allocated for the
  // received pieces only, and not for the size in the head, which another host may have forged.
  struct Kept {
    PieceHead head;
    std::vector<std::vector<std::byte>> pieces = {};
    std::size_t received = 0;
    bool whole() const noexcept { return received == head.total; }
  };
  struct Sender {
    std::uint64_t taken = 0;  // position in its mailbox to this rank
    std::list<Kept> kept;     // in order; only the last one may be incomplete
  };

  MailboxFlags& flags(int sender, int receiver) const noexcept {
    return *reinterpret_cast<MailboxFlags*>(segment_->data() + layout_.mailboxes(sender) +
                                            static_cast<std::size_t>(receiver) * shape_.stride);
  }
  std::byte* ring(int sender, int receiver, std::uint64_t position) const noexcept {
    return reinterpret_cast<std::byte*>(&flags(sender, receiver)) + sizeof(MailboxFlags) +
           position % shape_.ring_bytes;
  }

  Status make_room(int receiver, std::size_t bytes, CallTime& time);
  void write_piece(const PieceHead& head, const std::byte* data, int receiver);
  // The next piece from `sender`; null: none has come.
  const PieceHead* next_piece(int sender) noexcept;
  void take_piece(int sender, const PieceHead& piece);
  bool keep_piece(int sender);
  bool keep_all();
  // The first kept message from `sender` with this tag, which may be incomplete; null: none.
  Kept* find_kept(int sender, std::int64_t tag) noexcept;
  // Receives such a message if a part of it has arrived. False: nothing has arrived.
  bool receive_from(int sender, std::byte* data, const MessageSpec& spec, CallTime& time,
                    Status& status);
  Status receive_kept(int sender, Kept& message, std::byte* data, const MessageSpec& spec,
                      CallTime& time);
  Status receive_pieces(int sender, std::byte* data, std::size_t bytes, CallTime& time);
  Status await_piece(int sender, CallTime& time);
  Status await_any(std::uint64_t arrivals, CallTime& time);
  bool all_ended() const noexcept;  // the ranks of only_ have left or died
  Status check(int sender, const PieceHead& head, const MessageSpec& spec) const;
  Await awaiting(const char* phase, const std::atomic<std::uint64_t>& first,
                 std::size_t stride_bytes, std::uint64_t value, CallTime& time) noexcept;

  GroupState& group_;
  std::shared_ptr<Segment> segment_;
  const CollectivesLayout layout_;
  const MailboxShape shape_;
  std::shared_ptr<Mirror> mirror_;
  int rank_;
  bool crowded_;
  const char* operation_ = "";       // "send" or "recv"
  std::uint64_t number_ = 0;         // the number of the call
  std::vector<bool> only_;           // [ranks] true for the peer of the call
  std::vector<Sender> senders_;      // [ranks]
  std::vector<std::uint64_t> sent_;  // [ranks] position in this rank's mailbox to each
};

}  // namespace ferry::internal
