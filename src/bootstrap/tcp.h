// TCP sockets between hosts. No call blocks for longer than its deadline.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "bootstrap/socket.h"

namespace ferry::internal {

constexpr int kMostPort = 65535;

// The address of rank 0 of a group that spans hosts: it is at one of `hosts`, which are names or
// addresses.
struct TcpAddress {
  std::vector<std::string> hosts;
  int port = 0;

  // Formats the address, as "tcp://a:29501" or "tcp://[::1]:29501".
  std::string text() const;
};

// Whether the text begins with tcp://.
bool is_tcp(const std::string& text);

// Throws Error(kInvalidArgument) that names the text if it is not tcp://host:port. Several hosts
// are separated by commas: rank 0 is at one of them.
TcpAddress parse_tcp(const std::string& text);

// Listens at the port, at all interfaces. If `interfaces` names some (comma-separated), it listens
// at the first that has an address. Port 0 means any free port. Returns an empty descriptor if
// another socket holds the port. Throws Error(kSystem), or Error(kInvalidArgument) if no named
// interface has an address.
Descriptor tcp_listen(const std::string& interfaces, int port);
int port_of(const Descriptor& socket) noexcept;
// The address of this host that a connection uses. Empty if it is no TCP connection, or one over
// the loopback.
std::string local_address_of(const Descriptor& socket);

// The result of an attempt to connect: a connection, or the reason why there is none.
struct Attempt {
  Descriptor socket;
  // Each address that was tried, with its error: "a (10.0.0.1): Connection refused".
  std::string why;
  // Whether the deadline ended the attempt. The reason of an earlier attempt is then more useful.
  bool cut = false;
  bool silent = false;  // whether an address did not reply
};
// Tries the addresses of each host in turn.
Attempt tcp_connect(const TcpAddress& address, Deadline deadline);

// The addresses of this host that other hosts may reach. If interfaces are named, only their
// addresses. Throws as tcp_listen() does.
std::vector<std::string> own_addresses(const std::string& interfaces);

}  // namespace ferry::internal
