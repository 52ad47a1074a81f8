// A TCP meeting at a free port of this host, for the tests between hosts.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <string>

#include "bootstrap/endpoint.h"
#include "bootstrap/meeting.h"
#include "bootstrap/rendezvous.h"

namespace ferry::internal {

// A port where no socket listens.
inline int free_port() { return port_of(tcp_listen("lo", 0)); }

inline TcpEndpoint endpoint_at(int port, const std::string& job = "the job") {
  TcpEndpoint endpoint;
  endpoint.address = {{"127.0.0.1"}, port};
  endpoint.secret = "the shared secret of " + job;
  endpoint.group = "a group";
  endpoint.interfaces = "lo";
  return endpoint;
}

// "met" when all ranks receive each other's texts.
inline std::string meet_over_tcp(const TcpEndpoint& endpoint, int rank,
                                 const std::vector<int>& split, Deadline deadline = soon()) {
  const auto rendezvous = tcp_rendezvous(endpoint, rank, split, deadline);
  const auto texts = rendezvous->all_gather(std::to_string(rank), deadline);
  for (std::size_t peer = 0; peer < split.size(); ++peer) {
    if (texts.size() != split.size() || texts[peer] != std::to_string(peer)) return "mixed";
  }
  return "met";
}

}  // namespace ferry::internal
