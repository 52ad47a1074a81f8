// Door: where rank 0 of a group is found, on one host or from all, and how a stranger is told from
// a rank. A plain value. Made by processes.cc and tcp_rendezvous; used by meeting.cc and spoke.cc.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "bootstrap/secret.h"
#include "bootstrap/socket.h"
#include "bootstrap/tcp.h"

namespace ferry::internal {

struct Door {
  // Who keeps rank 0 from listening.
  struct Holder {
    std::string who;
    bool another_job = false;  // one that will not share the port with this one
  };

  std::string name;    // for messages: "@ferry-0-x-4", "tcp://a:29501"
  std::string advice;  // what the ranks that did not come must have in common with those that did
  std::optional<Secret> secret;                 // none: the kernel tells who is there (SO_PEERCRED)
  std::chrono::milliseconds longest_pause{20};  // between attempts to find rank 0

  // A listener; empty while another holds the place.
  std::function<Descriptor()> listen;
  std::function<Attempt(Deadline)> connect;
  std::function<Holder()> holder;
};

// At an abstract Unix socket, for `num_ranks` processes of this host and user.
Door unix_door(const std::string& address, int num_ranks);

struct TcpMeeting {
  TcpAddress address;
  std::string secret;
  std::string name;        // of the group: others of the same job may meet at the port, one by one
  std::string interfaces;  // where rank 0 listens (FERRY_SOCKET_IFNAME); empty: all
  std::shared_ptr<Descriptor> listener;  // rank 0's, where the port had to be known before
};
Door tcp_door(const TcpMeeting& meeting);

}  // namespace ferry::internal
