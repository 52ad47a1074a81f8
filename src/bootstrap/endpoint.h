// Endpoint: where the ranks of a group meet: an abstract Unix socket of one host, or a TCP port of
// rank 0's host. Rank 0 listens there, the others connect.
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
  std::string group;       // several groups of a job may meet at the port, one after the other
  std::string interfaces;  // where rank 0 listens (FERRY_SOCKET_IFNAME); empty: all
  std::shared_ptr<Descriptor> listener;  // rank 0's, where the port had to be known before
};

struct Endpoint {
  std::string name;                      // "@ferry-0-x-4", "tcp://a:29501"
  std::string advice;                    // what ranks must have in common to meet, for messages
  TcpEndpoint tcp;                       // unless local()
  std::shared_ptr<const Secret> secret;  // null: local

  // The ranks are on one host: the kernel knows the process at the other end of a connection
  // (SO_PEERCRED).
  bool local() const noexcept { return !secret; }
  std::chrono::milliseconds longest_pause() const noexcept;  // between attempts to find rank 0
};

// The endpoint of `num_ranks` processes of this host and user.
Endpoint unix_endpoint(const std::string& address, int num_ranks);
Endpoint tcp_endpoint(const TcpEndpoint& tcp);

// Rank 0's listener; empty while another process holds the endpoint. Where a process of another
// user holds it, rank 0 listens at a name with a random part behind it, and connect_to() finds that
// name.
Descriptor listen_at(const Endpoint& endpoint);
Attempt connect_to(const Endpoint& endpoint, Deadline deadline);

// The process or program that keeps rank 0 from listening, for a message.
std::string holder_of(const Endpoint& endpoint);

}  // namespace ferry::internal
