// Mirror: a Collectives between nodes. The segment of each node has the flags, records and windows
// of all ranks. What this rank writes for ranks of another node is sent to its mate there, which
// writes it to the same place in the segment of that node. So data that several ranks of a node
// read cross once, and nothing else needs to know where a rank is. Messages of send() go to the
// receiver itself, since a mate may be in no call at that time.
//
// A message overwrites no data that are still read: the sender wrote only after all ranks had read
// the earlier data at that place (calls.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/incoming.h"
#include "collectives/layout.h"
#include "collectives/mailbox.h"
#include "group/state.h"
#include "memory/segment.h"

namespace ferry::internal {

class Mirror {
 public:
  // Collective: all ranks number their channels in the same order.
  Mirror(GroupState& group, std::shared_ptr<Segment> segment, const CollectivesLayout& layout,
         const MailboxShape& shape);
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // True if this rank writes the data that `peer` sends to the segment of its node.
  bool serves(int peer) const noexcept { return table().is_served[peer]; }
  const std::vector<bool>& mates() const noexcept { return table().is_mate; }
  const ForwardingTable& table() const noexcept { return group_.forwarding(); }

  // The record of a call and its counts, which raise the flag of its first round.
  void send_call(std::uint64_t number);
  void send_step(std::uint64_t step) const;
  // Bytes of this rank's window, at this offset in the segment, for the node of `reader`, or for
  // all other nodes.
  static constexpr int kAll = -1;
  void send_data(std::size_t offset, std::span<const std::byte> data, int reader) const;

  // Messages to a rank of another node, and from it.
  void meet(int peer);
  void send_piece(int receiver, std::uint64_t position, std::span<const std::byte> head,
                  std::span<const std::byte> data) const;
  void send_taken(int sender, std::uint64_t taken) const;

  // Call when the Collectives is destroyed: ranks of this node may still need messages that arrive
  // through this rank.
  static void keep_open(const std::shared_ptr<Mirror>& mirror);

 private:
  void send(int peer, MirrorMessage::Kind kind, std::uint64_t number,
            std::span<const std::byte> body = {}, bool soon = false) const;
  void read(const InMessage& message);
  bool go_on();
  std::byte* at(std::size_t offset) const noexcept { return segment_->data() + offset; }

  GroupState& group_;
  std::shared_ptr<Segment> segment_;
  const CollectivesLayout layout_;
  Incoming incoming_;
  std::vector<bool> met_;        // [ranks] ranks that this one has connected to for messages
  std::vector<std::byte> call_;  // for send_call()
  Channel channel_;
  std::uint32_t number_;
};

}  // namespace ferry::internal
