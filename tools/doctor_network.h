// What this host has for groups that span hosts: UCX, and network interfaces. Called by doctor.cc,
// after everything that forks (UCX starts threads); calls bootstrap/link.h.
#pragma once

#include <string>
#include <vector>

namespace ferry::tools {

struct NetworkInterface {
  std::string name, address;  // an interface with two addresses is there twice
  bool up = false;
};

struct Network {
  std::string ucx;                           // version of libucp, empty: not found
  std::string link;                          // what UCX would use, as ferry's link says
  std::string no_link;                       // why there is none
  std::vector<NetworkInterface> interfaces;  // without the loopback
};

Network find_network();

}  // namespace ferry::tools
