// How ranks agree to make an exchange: before anything is made, each rank sends the others its
// configuration, or the reason why it refuses.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "exchange/setup/setup.h"
#include "ferry/config.h"
#include "ferry/status.h"
#include "group/state.h"

namespace ferry::internal {

// Returns the group. Throws Error if there is none or it is broken.
GroupState& usable(const std::shared_ptr<GroupState>& group);

// Collective. Runs `make`, which makes an object and returns its description, or throws. If it
// throws on one rank, that rank throws its error and all others Error(kPeerRejected). If the
// descriptions of two ranks differ, all ranks throw Error(kMismatch), which names the fields.
// `object`: the name of the object in messages.
void make_alike(GroupState& group, const Deadline& by, const std::function<std::string()>& make,
                const char* object = "exchange");

// Collective. Returns the setup of `config`; throws on all ranks if their configurations differ.
std::unique_ptr<const Setup> agree_on_setup(GroupState& group, const ExchangeConfig& config,
                                            const Deadline& by);

// The terms of an exchange that was made in this view: its ranks, and its configuration.
std::string terms_in_view(const GroupState& group, const Setup& setup);

// The ranks in these terms.
std::vector<int> makers_in(const std::string& terms);

// On a newcomer: takes the first offer of an exchange with this configuration, and returns the
// setup and the offer. Throws Error(kInvalidArgument) if there is none.
std::pair<std::unique_ptr<const Setup>, Offer> take_offered_setup(GroupState& group,
                                                                  const ExchangeConfig& config);

// Collective. Rendezvous::share_segment, but throws the error of a group that breaks meanwhile.
std::shared_ptr<Segment> share_segment(GroupState& group, std::size_t bytes, const Deadline& by);

// Collective. A rank that refuses calls this where the others call agree_on_setup or make_alike.
// The call sends `why` to the others and throws it. If `why` cannot be sent, the call throws the
// error of sending it, with the text of `why` added.
[[noreturn]] void refuse_setup(GroupState& group, const Error& why, const Deadline& by);

}  // namespace ferry::internal
