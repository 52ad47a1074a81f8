// ExchangeCache: the inside of a Communicator. It holds the exchanges that calls needed, makes new
// exchanges together with all ranks, and refuses a call on all ranks.
//
// All ranks hold equal exchanges in equal order, since every call begins in the exchange of the
// call before: each rank makes its call there, refuses it, or skips that exchange because it needs
// another one. Then all ranks go on to the exchange that most of them need, even ranks that refuse
// and ranks without tokens. Where their settings differ the ranks gather them, and the error names
// the values (docs/decisions/agreement_of_fronts.md).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cann/attributes.h"
#include "cann/refusal.h"
#include "cann/settings.h"
#include "ferry/cann.h"

namespace ferry::cann::internal {

// The exchange that a call needs, and its settings.
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
  // Throws Refused unless the attributes have the names of this communicator.
  void check_names(const Attributes& attributes) const;

  // The ranks that take part in this call (DispatchArgs::active_ranks). A refusal goes to them.
  void set_active(std::vector<int> ranks) { active_ = std::move(ranks); }

  const Exchange& last() const { return exchanges_.front(); }
  // The exchange for a call: that of the call before, or, after the ranks have skipped it, another
  // one that serves the call, or a new one. Throws Failed.
  Exchange& find(const Wanted& wanted);
  // Call after a call in an exchange that find() returned has ended with `status`. `digests` are
  // those of the active ranks (ferry::Digests::all). Returns the exchange in which all ranks repeat
  // the call, or null if `status` is final. Throws Failed where the settings differ; if all ranks
  // are active, they gather the settings first, for the message.
  Exchange* follow(const Wanted& wanted, const Status& status,
                   std::span<const std::uint64_t> digests);

  // Refuses the call of this rank, on all ranks.
  Result refuse(Purpose purpose, const Refused& refused);

 private:
  struct Sent {
    std::int32_t refuses;
    std::int32_t any_scales;
    Settings settings;
  };
  std::vector<Sent> gather(const Sent& mine);
  bool left_out() const;
  Status name_differences(const Wanted& wanted, const Status& status,
                          std::span<const std::uint64_t> numbers);
  Exchange& make_first(const Wanted& wanted);
  ExchangeIndex index_of(const Wanted& wanted, bool any_scales) const;
  Exchange& go_on(ExchangeIndex next, ExchangeConfig config, Purpose purpose);
  Exchange& use(ExchangeIndex next);
  void refuse_in(ExchangeIndex next, Purpose purpose, const Status& why);
  Exchange& make(ExchangeConfig config, Purpose purpose);

  Group group_;
  CommunicatorOptions options_;
  std::vector<Exchange> exchanges_;  // the one that was used last comes first
  std::vector<int> active_;          // ranks of the call; empty: all ranks
};

}  // namespace ferry::cann::internal
