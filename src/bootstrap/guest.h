// Guest: a connection to an acceptor whose process is not known yet, and the limits of such
// connections.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "bootstrap/connection.h"
#include "bootstrap/handshake.h"

namespace ferry::internal {

// Until the process is known, its bytes are not trusted, take little memory and delay no other
// connection.
struct Guest {
  std::unique_ptr<Connection> connection;
  std::optional<Handshake> handshake;  // used between hosts only
  std::int64_t since_ns;
};

// The most guests beyond one for each absent rank: kMost, or fewer if the process may open few
// descriptors. If there are more, the oldest guest is dropped once it is older than kStrangerNs. It
// may connect again.
inline std::size_t most_strangers() noexcept {
  constexpr std::size_t kMost = 64, kDescriptorsEach = 8;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMost;
  return std::min<std::size_t>(kMost, limit.rlim_cur / kDescriptorsEach);
}
constexpr std::int64_t kStrangerNs = 50'000'000;
constexpr int kStrangerMs = 10;  // between two checks whether kStrangerNs have passed

}  // namespace ferry::internal
