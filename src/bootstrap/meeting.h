// Meeting: rank 0 lets the other ranks of a group in. The listener lives only as long as this call.
// Called by hub.cc; calls Entrance and Hello.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bootstrap/connection.h"
#include "bootstrap/party.h"

namespace ferry::internal {

struct Member {
  std::unique_ptr<Connection> connection;
  std::string who;  // for messages: "pid 12, host a"
};

// Listens at the party's door until every rank has said a hello that agrees with rank 0's. The
// members, by seat; rank 0's is empty. Strangers are dropped and cannot hold up the others. When
// ranks do not fit, leave or do not come, all that are there are told, and the same Error is
// thrown.
std::vector<Member> meet(const Party& party, Deadline deadline);

}  // namespace ferry::internal
