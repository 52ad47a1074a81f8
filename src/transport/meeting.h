// Meeting: rank 0 lets the other ranks of a group in. The listener lives only as long as this call.
// Called by hub.cc; calls Connection and Hello.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "transport/connection.h"
#include "transport/hello.h"

namespace ferry::internal {

// Listens at the address of `self` (rank 0) until every rank has said a hello that agrees with it.
// The connections, by rank; rank 0's is null. Strangers are dropped and cannot hold up the others.
// When ranks do not fit, leave or do not come, all that are there are told, and the same Error is
// thrown.
std::vector<std::unique_ptr<Connection>> meet(const Hello& self, Deadline deadline);

}  // namespace ferry::internal
