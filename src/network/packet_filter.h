// Packet filter: which hosts the kernel lets through to a TCP socket. Packets of other hosts get no
// reply, not even the first of a connection, and take no resources of this process. Any user may
// set a filter on a socket of their own.
#pragma once

#include <set>
#include <string>

#include "network/ip.h"

namespace ferry::internal {

// Lets through packets from these addresses only; connections that a listening socket accepts
// inherit the filter. Where the addresses are too many for the kernel, it lets through the networks
// that they are in. Returns why the kernel refused the filter; empty: it is set.
std::string let_through_only(int fd, const std::set<Ip>& sources);

}  // namespace ferry::internal
