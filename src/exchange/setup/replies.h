// Replies: the texts that ranks send each other before they make an exchange, and the check that
// all of them agree.
#pragma once

#include <string>
#include <vector>

#include "ferry/status.h"

namespace ferry::internal {

// The reply of a rank that refuses.
std::string refusal_reply(const Error& why);
// The reply of a rank that would make the object. `what`: its description, lines of "name is
// value".
std::string willing_reply(const std::string& what);

// Reads the replies of `ranks`; empty: of all. Throws Error(kPeerRejected), which names a rank that
// refused, or Error(kMismatch), which names two ranks that would make different objects. `object`:
// the name of the object in the message.
void require_agreement(const std::vector<std::string>& replies, const std::vector<int>& ranks = {},
                       const char* object = "exchange");

}  // namespace ferry::internal
