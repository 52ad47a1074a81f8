// Acceptor: the part of the coordinator that accepts the other ranks of a group. The listener is
// open only during accept_members().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/collectives.h"
#include "bootstrap/connection.h"

namespace ferry::internal {

struct Peer {
  std::unique_ptr<Connection> connection;
  std::string who;  // the process, for messages: "pid 12, host a"
};

// Listens at the roster's endpoint until every rank has sent a hello that agrees with the
// coordinator's. Returns the members by place; the coordinator's own entry is empty. Strangers are
// dropped and do not delay the members. If a rank does not fit, has ended or is missing at the
// deadline, this throws an Error, and every connected rank receives it.
std::vector<Peer> accept_members(const Roster& roster, Deadline deadline);

}  // namespace ferry::internal
