// Acceptor: the coordinator lets the other ranks of a group in. The listener lives only as long as
// this call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/collectives.h"
#include "bootstrap/connection.h"

namespace ferry::internal {

struct Peer {
  std::unique_ptr<Connection> connection;
  std::string who;  // for messages: "pid 12, host a"
};

// Listens at the roster's endpoint until every rank has sent a hello that agrees with the
// coordinator's. Returns the members, by place; the coordinator's own is empty. Strangers are
// dropped and do not delay the members. When a rank does not fit, ends or does not come, every
// connected rank receives the Error that is thrown.
std::vector<Peer> accept_members(const Roster& roster, Deadline deadline);

}  // namespace ferry::internal
