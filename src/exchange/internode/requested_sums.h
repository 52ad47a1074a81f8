// RequestedSums: the sums that one combine requests from the mates, and where their replies will
// lie. The source of the tokens requests in this way, and so does each mate for what lies further
// in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange/internode/message_layout.h"
#include "exchange/internode/sums_inbox.h"
#include "topology/subtrees.h"

namespace ferry::internal {

class SumServer;

class RequestedSums {
 public:
  // Requests go to mates further in than `level`; -1: to all.
  RequestedSums(const SubtreeRule& rule, int level, const SumFormat& format,
                const ReplyLayout& answers);

  // The subtrees of a unit's terms: term i is item i.
  Subtrees subtrees_of(const SumUnit& unit) const;
  // Asks for a unit in each of its subtrees, which get the next numbers.
  void add(const SumUnit& unit);
  // Sends what was added to every mate, also to those from whom nothing is requested.
  void send(SumServer& server, std::uint64_t number, int source);

  std::size_t num_subtrees() const noexcept { return replies_.size(); }
  // After send(). The reply for a subtree; null: its rows are of this node.
  const std::byte* answer(std::size_t subtree) const noexcept;
  bool has_arrived(std::size_t subtree) const noexcept;
  // The index of a mate; true when sums are requested from it.
  bool asks(std::size_t mate) const noexcept { return sums_[mate] != nullptr; }
  // Appends the mates whose replies are not complete yet.
  void add_awaited(std::vector<int>& mates) const;
  const ReplyLayout& layout() const noexcept { return layout_; }

 private:
  struct Answer {
    int next_hop;
    std::size_t at, end;  // bytes of that mate's reply
  };

  SubtreeRule rule_;
  int level_;
  SumFormat format_;
  ReplyLayout layout_;
  std::vector<std::vector<std::byte>> terms_;  // [mates]
  std::vector<std::size_t> bytes_;             // [mates] of the replies
  std::vector<const IncomingSums*> sums_;      // [mates] null: nothing is requested from it
  std::vector<Answer> replies_;                // [subtrees]
};

}  // namespace ferry::internal
