// Makes a transport in the same way as a group that spans hosts, and lists the interfaces; see
// findings.h.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <memory>

#include "ferry/status.h"
#include "network/transport.h"
#include "tools/doctor/findings.h"

namespace ferry::tools {
namespace {

std::string address_text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET)
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  if (address->sa_family == AF_INET6)
    bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (bytes) inet_ntop(address->sa_family, bytes, text.data(), text.size());
  return text.data();
}

std::vector<NetworkInterface> interfaces() {
  std::vector<NetworkInterface> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    std::string address = address_text(entry->ifa_addr);
    if (address.empty()) continue;
    found.push_back({entry->ifa_name, std::move(address), (entry->ifa_flags & IFF_UP) != 0});
  }
  freeifaddrs(list);
  return found;
}

}  // namespace

Network find_network() {
  Network network{
      .ucx = internal::ucx_found(), .link = {}, .no_link = {}, .interfaces = interfaces()};
  try {
    const std::unique_ptr<internal::Transport> transport = internal::ucx_transport();
    transport->let_in({transport->address()});
    // Connects to itself, because UCX chooses a transport once there is a peer.
    transport->connect({{0, transport->address()}});
    network.link = transport->describe();
  } catch (const Error& error) {
    network.no_link = error.what();
  }
  return network;
}

}  // namespace ferry::tools
