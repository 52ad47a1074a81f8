// Short forms that the tests of the rendezvous share.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bootstrap/connection.h"

namespace ferry::internal {

inline Deadline soon(std::chrono::milliseconds span = std::chrono::seconds(20)) {
  return Deadline::after(span);
}

// The address where the ranks of a test meet; programs that run at the same time have others.
inline std::string address(const std::string& test) {
  return fmt::format("test-{}-{}", test, getpid());
}

inline std::string joined(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, ","));
}

inline void write_to(const Descriptor& socket, const std::string& bytes) {
  static_cast<void>(send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

}  // namespace ferry::internal
