// TCP sockets between hosts, without blocking for longer than a deadline.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "bootstrap/socket.h"

namespace ferry::internal {

// Where rank 0 of a group that spans hosts is found: at one of `hosts`, names or addresses.
struct TcpAddress {
  std::vector<std::string> hosts;
  int port = 0;

  // "tcp://a:29501", "tcp://[::1]:29501".
  std::string text() const;
};

// True when the text begins with tcp://.
bool is_tcp(const std::string& text);

// Throws Error(kInvalidArgument) naming the text when it is not tcp://host:port.
TcpAddress parse_tcp(const std::string& text);

// A listener at the port of all interfaces, or of those named (comma-separated) the first that has
// an address. Port 0: any that is free. Empty when another socket holds the port. Throws
// Error(kSystem).
Descriptor tcp_listen(const std::string& interfaces, int port);
int port_of(const Descriptor& socket) noexcept;

// A connection, or why there is none.
struct Attempt {
  Descriptor socket;
  std::string why;      // each address that was tried, and why: "a (10.0.0.1): Connection refused"
  bool cut = false;     // the deadline ended the attempt: the reason of an earlier one is better
  bool silent = false;  // an address did not reply
};
// Tries each host's addresses in turn.
Attempt tcp_connect(const TcpAddress& address, Deadline deadline);

// Addresses of this host that other hosts may reach; with names, only those of the named
// interfaces.
std::vector<std::string> own_addresses(const std::string& interfaces);

}  // namespace ferry::internal
