// ExchangeCache: the inside of a Communicator. It holds the exchanges that calls needed, makes new
// exchanges together with all ranks, and refuses a call on all ranks. All ranks look for exchanges
// in the same order, so that their caches hold equal exchanges in equal order.
#pragma once

#include <optional>
#include <vector>

#include "cann/attributes.h"
#include "cann/refusal.h"
#include "ferry/cann.h"

namespace ferry::cann::internal {

enum class Purpose { kDispatch, kCombine };

class ExchangeCache {
 public:
  ExchangeCache(Group group, CommunicatorOptions options);

  const Group& group() const noexcept { return group_; }
  Place place() const noexcept { return {group_.rank(), group_.size()}; }
  const Exchange& last() const { return exchanges_.front(); }
  // Throws Refused unless the attributes have the names of this communicator.
  void check_names(const Attributes& attributes) const;

  // The ranks that take part in this call (DispatchArgs::active_ranks). A refusal goes to them.
  void set_active(std::span<const int> ranks) { active_.assign(ranks.begin(), ranks.end()); }

  // The settings that a call needs, as far as they are known: first those of its rows (extents of
  // 0: unknown), then all. If the call is refused, they give the exchange in which other ranks
  // wait.
  void expect(const Attributes& attributes, const Batch& batch);
  void expect(const ExchangeConfig& config) { expected_ = config; }

  // The exchange used last of those that serve the call; else a new one. All ranks call with equal
  // settings and find equal exchanges. Throws Failed where other ranks use an exchange that this
  // rank does not. `any_scales`: this rank has no tokens, and takes the scales of the others.
  Exchange& find(Purpose purpose, ExchangeConfig wanted, bool any_scales = false);

  // For a rank without tokens: joins the other ranks in making an exchange.
  Exchange& follow(Purpose purpose, ExchangeConfig wanted, bool any_scales);

  // Refuses the call of this rank, on all ranks.
  Result refuse(Purpose purpose, const Refused& refused);

 private:
  Exchange* used_last(Purpose purpose, const ExchangeConfig& wanted);
  Exchange& make(Purpose purpose, const ExchangeConfig& wanted);
  std::int64_t agree_on_scales(std::int64_t mine);
  Exchange& meeting_place(Purpose purpose);
  Status decline(Purpose purpose, const Status& why, std::span<const int> ranks, bool& by_all);

  Group group_;
  CommunicatorOptions options_;
  std::vector<Exchange> exchanges_;         // used last first
  std::vector<int> active_;                 // of the last call whose elastic_info was legal
  std::optional<ExchangeConfig> expected_;  // until the call has found its exchange
};

}  // namespace ferry::cann::internal
