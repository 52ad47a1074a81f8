// How ranks agree to make an exchange: each sends the others the configuration that it would
// make, or why it refuses, before anything is made.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "exchange/setup/setup.h"
#include "ferry/config.h"
#include "ferry/status.h"
#include "group/state.h"

namespace ferry::internal {

// Throws Error unless collective calls are possible.
GroupState& usable(const std::shared_ptr<GroupState>& group);

// Collective. Runs `make`, which says what this rank made, or throws; then throws on all ranks when
// one of them did or two differ: Error(kMismatch) names the fields that differ; a refusal is thrown
// as it is where it was made, as Error(kPeerRejected) elsewhere.
// `object`: what is made.
void make_alike(GroupState& group, const Deadline& by, const std::function<std::string()>& make,
                const char* object = "exchange");

// Collective: the setup that this configuration makes on all ranks.
std::unique_ptr<const Setup> agree_on_setup(GroupState& group, const ExchangeConfig& config,
                                            const Deadline& by);

// Collective: as Rendezvous::share_segment.
std::shared_ptr<Segment> share_segment(GroupState& group, std::size_t bytes, const Deadline& by);

// Collective. Takes the place of the above on a rank that refuses; throws `why`, or what kept it
// from being sent, with its text.
[[noreturn]] void refuse_setup(GroupState& group, const Error& why, const Deadline& by);

}  // namespace ferry::internal
