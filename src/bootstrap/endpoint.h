// Endpoint: the address at which the ranks of a group meet. It is an abstract Unix socket of one
// host, or a TCP port of the coordinator's host. The coordinator listens there, and the others
// connect. "Rank 0" stands for the coordinator here: it is another rank in a group that begins
// without rank 0, in a later view, and in an admission.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/descriptor.h"
#include "bootstrap/handshake.h"
#include "bootstrap/tcp.h"

namespace ferry::internal {

// The TCP endpoint of a group that spans hosts.
struct TcpEndpoint {
  TcpAddress address;
  std::string secret;
  std::string group;  // several groups of a job may use the port, one after the other
  // The interfaces at which rank 0 listens (FERRY_SOCKET_IFNAME). If empty, it listens at all.
  std::string interfaces;
  // The listener of rank 0, if it was made earlier, so that the others could be told the port.
  std::shared_ptr<Descriptor> listener;
};

struct Endpoint {
  std::string name;                      // "@ferry-0-x-4", "tcp://a:29501"
  std::string advice;                    // what ranks must share to meet, for messages
  TcpEndpoint tcp;                       // used unless local()
  std::shared_ptr<const Secret> secret;  // null if local()

  // Whether the ranks are on one host. The kernel then identifies the process at the other end of a
  // connection (SO_PEERCRED).
  bool local() const noexcept { return !secret; }
  std::chrono::milliseconds longest_pause() const noexcept;  // between two attempts to find rank 0
};

// The endpoint for `num_ranks` processes of this host and user.
Endpoint unix_endpoint(const std::string& address, int num_ranks);
Endpoint tcp_endpoint(const TcpEndpoint& tcp);

// Returns rank 0's listener, or an empty one if another process holds the endpoint. If a process of
// another user holds the name of a Unix socket, rank 0 listens at a name with a random part at its
// end, which connect_to() finds.
Descriptor listen_at(const Endpoint& endpoint);
Attempt connect_to(const Endpoint& endpoint, Deadline deadline);

// The process or program that keeps rank 0 from listening, as a text for messages.
std::string holder_of(const Endpoint& endpoint);

}  // namespace ferry::internal
