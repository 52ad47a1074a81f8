// TcpSockets: the TCP sockets that UCX opens for one transport and does not show, found among this
// process's descriptors by their ports. Lets in only hosts of the job, has TCP try a silent peer
// again every second for as long as it takes, and closes the sockets in forked children, where they
// would keep the connections of a dead rank alive. Owned by ucx_transport.cc. Where UCX uses no TCP
// there are none, and all of this does nothing.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "network/ip.h"

namespace ferry::internal {

class TcpSockets {
 public:
  // What address() says of a rank: its host's addresses, and where it listens.
  struct Place {
    std::set<Ip> ips;
    std::vector<IpEndpoint> listens;
  };
  static Place place_of(std::string_view address);

  // Make it before UCX opens sockets: those that listen by then belong to others.
  TcpSockets();
  ~TcpSockets();
  TcpSockets(const TcpSockets&) = delete;
  TcpSockets& operator=(const TcpSockets&) = delete;

  // Finds those that listen at a port that UCX's address names. From here on nobody gets in.
  void find(std::string_view ucx_address);
  // For peers; place_of() reads it.
  std::string address() const;
  // From here on the hosts with these addresses get in; whoever came before is thrown out.
  void let_in(const std::vector<std::string>& addresses);
  // Connections that all transports of this process made since are set up too, unless that was done
  // in the last `every_ns`. Takes microseconds for each descriptor.
  static void set_up_connections(std::int64_t every_ns = 0);
  // Where connections to peers are asked for and not made, for lack of an answer or refused.
  std::vector<IpEndpoint> unconnected() const;
  bool none() const noexcept { return ports_.empty(); }
  // Why the kernel lets others in all the same; empty: it does not.
  const std::string& exposed() const noexcept { return exposed_; }

 private:
  friend struct OpenSockets;
  struct Ends;
  bool is_ours(const Ends& ends) const;
  void close_in_child() const;
  void guard();

  std::set<std::string> not_ours_;  // names of sockets
  std::vector<IpEndpoint> listens_;
  std::set<std::uint16_t> ports_, peer_ports_;
  std::set<Ip> peer_ips_;
  std::string exposed_;
};

}  // namespace ferry::internal
