// Packet filter: selects the hosts whose packets the kernel lets through to a TCP socket. Packets
// of other hosts get no reply, not even the first one of a connection, and take no resources of
// this process. Any user may set a filter on their own sockets.
#pragma once

#include <set>
#include <string>

#include "network/ip.h"

namespace ferry::internal {

// Lets through packets from these addresses only. Connections that a listening socket accepts
// inherit the filter. If the addresses are too many for the kernel, it lets through their whole
// networks. Returns why the kernel refused the filter, or an empty text if it is set.
std::string let_through_only(int fd, const std::set<Ip>& sources);

}  // namespace ferry::internal
