// Packet filter: which hosts the kernel lets through to a TCP socket. Others get no answer, not
// even to the first packet of a connection, and take nothing of this process. Any user may set one
// on a socket of his own. Called by tcp_sockets.cc.
#pragma once

#include <set>
#include <string>

#include "network/ip.h"

namespace ferry::internal {

// Lets through what comes from these addresses only; connections that a listening socket accepts
// inherit it. Where they are too many for the kernel, it lets through the networks that they are
// in. Why it was refused; empty: it is set.
std::string let_through_only(int fd, const std::set<Ip>& sources);

}  // namespace ferry::internal
