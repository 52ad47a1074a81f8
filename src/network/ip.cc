#include "network/ip.h"

#include <arpa/inet.h>
#include <fmt/format.h>

namespace ferry::internal {

std::string text_of(const IpEndpoint& end) {
  char text[INET6_ADDRSTRLEN] = {};
  if (is_ipv4(end.ip)) {
    inet_ntop(AF_INET, &end.ip[12], text, sizeof text);
  } else {
    inet_ntop(AF_INET6, end.ip.data(), text, sizeof text);
  }
  return fmt::format("port {} of {}", end.port, text);
}

}  // namespace ferry::internal
