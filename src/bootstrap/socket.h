// Abstract Unix sockets: names in the kernel only, nothing in a file system, gone with the process.
// Owns descriptors. Called by connection.cc and door.cc.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

namespace ferry::internal {

// An open file descriptor, closed by its destructor; empty when fd() < 0.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();

  int fd() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Who is at the other end, as the kernel says (SO_PEERCRED).
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

}  // namespace ferry::internal
