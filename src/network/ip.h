// Ip: an IPv4 or IPv6 address. IpEndpoint: an address with a port.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace ferry::internal {

using Ip = std::array<std::uint8_t, 16>;  // an IPv4 address is stored as ::ffff:a.b.c.d

constexpr Ip kMappedIpv4{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr Ip kLoopback4{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
constexpr Ip kLoopback6{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};

constexpr bool is_ipv4(const Ip& ip) {
  return std::equal(ip.begin(), ip.begin() + 12, kMappedIpv4.begin());
}
constexpr bool is_loopback(const Ip& ip) {
  return ip == kLoopback6 || (is_ipv4(ip) && ip[12] == 127);
}

// The address of one end of a TCP connection.
struct IpEndpoint {
  Ip ip;
  std::uint16_t port;

  bool operator==(const IpEndpoint&) const = default;
};

// Formats an endpoint as "port 4711 of 10.77.0.2".
std::string text_of(const IpEndpoint& end);

}  // namespace ferry::internal
