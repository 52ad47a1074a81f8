// SubtreeSums: the sums that the source of the tokens requests from other nodes for one combine.
// Every mate gets a list of the rows of its subtree that each token needs. Memory for its replies
// is laid out before they come, so the replies need no addresses. Empty on one node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange/combine/combine_call.h"
#include "exchange/internode/requested_sums.h"

namespace ferry::internal {

class SubtreeSums {
 public:
  explicit SubtreeSums(const CombineCall& call) noexcept : call_(call) {}

  // Sends the requests, once.
  void request();
  // The requests that this rank sent by a way. Call after request().
  const RequestedSums& by_way(std::size_t way) const noexcept { return asked_[way]; }
  std::size_t num_ways() const noexcept { return asked_.size(); }
  const ReplyLayout& layout() const noexcept { return asked_[0].layout(); }
  // The reply for a subtree of a token; null: its rows are of this node.
  const std::byte* reply(std::int64_t token, int subtree) const {
    return of_token(token).reply(subtrees_[token].first + subtree);
  }
  bool are_here(std::int64_t token) const noexcept;

 private:
  struct Range {
    std::size_t first, end;
  };

  const RequestedSums& of_token(std::int64_t token) const {
    return asked_[call_.exchange.ways.of_token(token, asked_.size())];
  }
  Summand summand_of(TokenEntry at) const;

  const CombineCall& call_;
  std::vector<RequestedSums> asked_;  // [ways]
  std::vector<Range> subtrees_;       // [tokens] its subtrees in the requests of its way
};

}  // namespace ferry::internal
