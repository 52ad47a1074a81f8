// Acceptor: the coordinator lets the other ranks of a group in. The listener lives only as long as
// this call. Called by coordinator.cc; calls Endpoint, Connection, Handshake and Hello.
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

// Listens at the roster's endpoint until every rank has said a hello that agrees with the
// coordinator's. The members, by place; the coordinator's own is empty. Strangers are dropped and
// cannot hold up the others. When ranks do not fit, leave or do not come, all that are there are
// told, and the same Error is thrown.
std::vector<Peer> accept_members(const Roster& roster, Deadline deadline);

}  // namespace ferry::internal
