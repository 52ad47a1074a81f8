// Abstract Unix sockets: their names are in the kernel, not in a file system, and end with the
// process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/descriptor.h"

namespace ferry::internal {

// The process at the other end, from the kernel (SO_PEERCRED).
struct Credentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

// "ferry-<uid>-<address>-<size>"; an address over 64 bytes is cut and gets a digest.
std::string socket_name(const std::string& address, int size);

// A non-blocking listener; empty when another process holds the name. Throws Error(kSystem) for
// anything else.
Descriptor listen_at(const std::string& name);

// A non-blocking connection to the listener; empty when there is none or its queue is full.
Descriptor connect_to(const std::string& name);

// The next connection of a listener; empty, with errno, when there is none.
Descriptor accept_from(const Descriptor& listener) noexcept;

Credentials credentials_of(const Descriptor& socket) noexcept;

// The names at which sockets of user `uid` listen here, as the kernel lists them (sock_diag).
// Before Linux 5.3 it does not say whose a socket is: those of all users. None where it lists none.
std::vector<std::string> abstract_listeners(uid_t uid);

}  // namespace ferry::internal
