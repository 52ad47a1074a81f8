// ExchangeCache: the inside of a Communicator. It holds the exchanges that calls needed, makes new
// exchanges together with all ranks, and refuses a call on all ranks.
//
// All ranks hold equal exchanges in equal order, since every call begins in the exchange of the
// call before: each rank makes its call there, refuses it, or skips that exchange because it needs
// another one. Only when all ranks skip do they go on to the other one. Where their digests differ
// the ranks gather their settings, and the error names the values that differ
// (docs/decisions/agreement_of_fronts.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cann/attributes.h"
#include "cann/refusal.h"
#include "cann/settings.h"
#include "ferry/cann.h"

namespace ferry::cann::internal {

// What a call needs.
struct Wanted {
  ExchangeConfig config;
  Settings settings;
  bool any_scales = false;  // this rank has no tokens, and takes the scales of the others

  Purpose purpose() const noexcept { return settings.purpose(); }
};

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

  // The exchange for a call: that of the call before, or, after all ranks have skipped it, another
  // one that serves the call, or a new one. Throws Failed.
  Exchange& find(const Wanted& wanted);
  // The digest of a call in an exchange that find() returned.
  static std::uint32_t digest(const Wanted& wanted, const Exchange& exchange);
  // After a call with `status`, and the digests of all ranks (ferry::Digests::all; the lower halves
  // are compared). Returns the exchange to which the other ranks go on and this one must follow;
  // null: none, the status stands. Collective, and throws Failed, where the digests differ.
  Exchange* settle(const Wanted& wanted, const Status& status,
                   std::span<const std::uint64_t> digests);

  // Refuses the call of this rank, on all ranks.
  Result refuse(Purpose purpose, const Refused& refused);

 private:
  enum class Action : std::int32_t { kCalls, kSkips, kRefuses };
  struct Said {
    Action action;
    std::int32_t any_scales;
    Settings settings;
  };
  std::vector<Said> gather(const Said& mine);
  Exchange* settle(const Wanted& wanted, const Status& status,
                   std::span<const std::uint64_t> digests, Action action);
  Exchange& make_first(const Wanted& wanted);
  Exchange& go_on(ExchangeConfig config, Purpose purpose);
  Exchange& make(ExchangeConfig config, Purpose purpose);

  Group group_;
  CommunicatorOptions options_;
  std::vector<Exchange> exchanges_;  // used last first
  std::vector<int> active_;          // of the last call whose elastic_info was legal
};

}  // namespace ferry::cann::internal
