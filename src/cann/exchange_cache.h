// ExchangeCache: the inside of a Communicator. Holds the exchanges that calls have asked for, makes
// new ones with all ranks together, and tells the other ranks of a refused call.
#pragma once

#include <vector>

#include "cann/refusal.h"
#include "ferry/cann.h"

namespace ferry::cann::internal {

enum class Purpose { kDispatch, kCombine };

class ExchangeCache {
 public:
  ExchangeCache(Group group, CommunicatorOptions options);

  const Group& group() const noexcept { return group_; }
  const Exchange& last() const { return exchanges_.front(); }
  // Throws Refused unless the attributes name this communicator.
  void check_names(const Attributes& attributes) const;

  // The ranks that this call names (DispatchArgs::active_ranks): those that a refusal must reach.
  void set_active(std::span<const int> ranks) { active_.assign(ranks.begin(), ranks.end()); }

  // The exchange used last of those that serve; else a new one. All ranks ask alike, so they find
  // the same.
  Exchange& find(Purpose purpose, ExchangeConfig wanted);

  // This rank's call is refused: the others, in the exchange used last or about to make their
  // first, learn why.
  Result refuse(Purpose purpose, const Refused& refused);

 private:
  Exchange& make(const ExchangeConfig& config);
  void agree_to_make(const Status& mine);

  Group group_;
  CommunicatorOptions options_;
  std::vector<Exchange> exchanges_;  // used last first
  std::vector<int> active_;          // of the last call whose elastic_info was legal
};

}  // namespace ferry::cann::internal
