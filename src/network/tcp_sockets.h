// TcpSockets: the TCP sockets of one transport, which UCX does not show; they are found among the
// descriptors of this process by their ports. Only hosts of the job can connect; TCP retransmits to
// a silent peer without limit, every second from Linux 6.15 on; and forked children close the
// sockets, since they would keep the connections of a dead rank open. Without TCP there are no
// sockets, and no call has an effect.
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
  // The contents of address(): the addresses of a rank's host, and the endpoints at which the rank
  // listens.
  struct Place {
    std::set<Ip> ips;
    std::vector<IpEndpoint> listens;
  };
  static Place place_of(std::string_view address);

  // Must be made before UCX opens sockets. Sockets that listen at that time are not UCX's.
  TcpSockets();
  ~TcpSockets();
  TcpSockets(const TcpSockets&) = delete;
  TcpSockets& operator=(const TcpSockets&) = delete;

  // Finds the sockets that listen at a port in UCX's address. After this call no host can connect.
  void find(std::string_view ucx_address);
  // The text for peers, which they read with place_of().
  std::string address() const;
  // After this call, the hosts with these addresses can connect, too. The first call closes earlier
  // connections.
  void let_in(const std::vector<std::string>& addresses);
  // Sets the options of the connections that all transports of this process have made since the
  // last call. Does nothing if the last call was less than `every_ns` ago. Takes microseconds for
  // each descriptor.
  static void set_up_connections(std::int64_t every_ns = 0);
  // The remote ends of connections to peers that are not established, because they have no reply or
  // were refused.
  std::vector<IpEndpoint> unconnected() const;
  // The hosts that have acknowledged nothing for `ms`, though the kernel sends them packets again
  // and again. The host of a stopped process acknowledges packets, and is not silent.
  std::set<Ip> silent(std::uint32_t ms) const;
  bool none() const noexcept { return ports_.empty(); }
  // The reason why the kernel lets other hosts connect in spite of the filter. Empty if it does
  // not.
  const std::string& exposed() const noexcept { return exposed_; }

 private:
  friend struct OpenSockets;
  struct Ends;
  bool is_ours(const Ends& ends) const;
  void close_in_child() const;
  void guard();

  std::set<std::string> not_ours_;  // the names of sockets that listened before
  std::vector<IpEndpoint> listens_;
  std::set<std::uint16_t> ports_, peer_ports_;
  std::set<Ip> peer_ips_;
  std::string exposed_;
};

}  // namespace ferry::internal
