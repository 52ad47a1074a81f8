// How ranks agree to make an exchange: each tells all others what it would make, or why it will
// not, before anything is made. Called by state.cc; uses the rendezvous.
#pragma once

#include <memory>

#include "exchange/setup.h"
#include "ferry/config.h"
#include "ferry/status.h"
#include "group/state.h"

namespace ferry::internal {

// Throws Error unless collective calls are possible.
GroupState& usable(const std::shared_ptr<GroupState>& group);

// Collective. Throws on all ranks when one of them refuses or two differ: Error(kMismatch) names
// the fields that differ; a refusal is thrown as it is where it was made, as Error(kPeerRejected)
// elsewhere.
std::unique_ptr<const Setup> agree_on_setup(GroupState& group, const ExchangeConfig& config);

// Collective. Takes the place of the above on a rank that refuses; throws `why`.
[[noreturn]] void refuse_setup(GroupState& group, const Error& why);

}  // namespace ferry::internal
