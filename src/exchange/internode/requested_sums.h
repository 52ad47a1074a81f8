// RequestedSums: the sums that one combine requests from the mates, and the places of their
// replies. The source of the tokens makes such requests, and so does each mate for nodes further
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
                const ReplyLayout& layout);

  // The subtrees of a unit's summands: summand i is item i.
  Subtrees subtrees_of(const SumUnit& unit) const;
  // Adds a request to each subtree of a unit. The subtrees get the next numbers.
  void add(const SumUnit& unit);
  // Sends the requests to every mate further in than `level`, also to mates from which nothing is
  // requested.
  void send(SumServer& server, std::uint64_t number, int source);

  std::size_t num_subtrees() const noexcept { return replies_.size(); }
  // Call after send(). Returns the reply for a subtree; null: its rows are on this node.
  const std::byte* reply(std::size_t subtree) const noexcept;
  bool has_arrived(std::size_t subtree) const noexcept;
  // True if sums are requested from the mate with this index.
  bool asks(std::size_t mate) const noexcept { return sums_[mate] != nullptr; }
  // Appends the mates whose replies are not complete yet.
  void add_awaited(std::vector<int>& mates) const;
  const ReplyLayout& layout() const noexcept { return layout_; }

 private:
  struct Reply {
    int next_hop;
    std::size_t at, end;  // bytes of that mate's reply
  };

  SubtreeRule rule_;
  int level_;
  SumFormat format_;
  ReplyLayout layout_;
  std::vector<std::vector<std::byte>> terms_;  // [mates]
  std::vector<std::size_t> bytes_;             // [mates] bytes of the replies
  std::vector<const IncomingSums*> sums_;      // [mates] null: nothing is requested
  std::vector<Reply> replies_;                 // [subtrees]
};

}  // namespace ferry::internal
