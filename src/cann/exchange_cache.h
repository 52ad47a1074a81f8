// ExchangeCache: the inside of a Communicator. Holds the exchanges that calls have asked for, makes
// new ones with all ranks together, and tells the other ranks of a refused call.
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
  // Throws Refused unless the attributes name this communicator.
  void check_names(const Attributes& attributes) const;

  // The ranks that this call names (DispatchArgs::active_ranks): those that a refusal must reach.
  void set_active(std::span<const int> ranks) { active_.assign(ranks.begin(), ranks.end()); }

  // What a call asks for as far as it is known, to meet the others there if it is refused. First
  // its rows (extents of 0: not known), then all of it.
  void expect(const Attributes& attributes, const Batch& batch);
  void expect(const ExchangeConfig& config) { expected_ = config; }

  // The exchange used last of those that serve; else a new one. All ranks ask alike, so they find
  // the same. Throws Failed where others use one that they have. `any_scales`: of a rank without
  // tokens, which takes part with whatever scales the others have.
  Exchange& find(Purpose purpose, ExchangeConfig wanted, bool any_scales = false);

  // Of a rank without tokens, while all others ask for an exchange that they have not.
  Exchange& follow(Purpose purpose, ExchangeConfig wanted, bool any_scales);

  // This rank's call is refused: the others learn why.
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
