// Replies: what ranks send each other before they make an exchange, as text, and the verdict on all
// of them.
#pragma once

#include <string>
#include <vector>

#include "ferry/status.h"

namespace ferry::internal {

// This rank will not make it.
std::string refusal_reply(const Error& why);
// This rank would make this: lines of "name is value".
std::string willing_reply(const std::string& what);

// Reads the replies of all ranks. Throws Error(kPeerRejected) naming one that refused,
// Error(kMismatch) naming two that would make different things. `object`: what they make.
void require_agreement(const std::vector<std::string>& answers, const char* object = "exchange");

}  // namespace ferry::internal
