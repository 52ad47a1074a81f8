// Abstract Unix sockets. A name is in the kernel and not in a file system, and ends with its
// listener.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/descriptor.h"

namespace ferry::internal {

// The process at the other end, as the kernel reports it (SO_PEERCRED).
struct Credentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

// Returns "ferry-<uid>-<address>-<size>". An address of more than 64 bytes is shortened and gets a
// digest.
std::string socket_name(const std::string& address, int size);

// Makes a non-blocking listener. It is empty if another process holds the name. Throws
// Error(kSystem) for all other errors.
Descriptor listen_at(const std::string& name);

// Makes a non-blocking connection to the listener. It is empty if there is no listener or its queue
// is full.
Descriptor connect_to(const std::string& name);

// Accepts the next connection of a listener. If there is none, the result is empty, and errno is
// set.
Descriptor accept_from(const Descriptor& listener) noexcept;

Credentials credentials_of(const Descriptor& socket) noexcept;

// The names at which sockets of user `uid` listen in this network namespace, as the kernel lists
// them (sock_diag). Linux before 5.3 does not give the user of a socket, so that all users' names
// are returned. Empty if the kernel lists no sockets.
std::vector<std::string> abstract_listeners(uid_t uid);

}  // namespace ferry::internal
