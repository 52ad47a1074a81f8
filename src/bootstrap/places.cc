#include "bootstrap/places.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "bootstrap/agree.h"
#include "bootstrap/handshake.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

constexpr std::size_t kNonceDigits = 2 * kNonceBytes;
constexpr std::size_t kAddressDigits = 32;

// Reads the identity from the place of `rank`. Ranks that share memory have equal identities.
std::string identity_in(const std::string& place, std::size_t rank) {
  const bool long_enough = place.size() > kNonceDigits;
  if (long_enough && place.find_first_not_of("0123456789abcdef") >= kNonceDigits)
    return place.substr(kNonceDigits);
  throw Error(Code::kMismatch,
              fmt::format("rank {} sent a place of {} bytes that does not begin with {} "
                          "hexadecimal digits",
                          rank, place.size(), kNonceDigits),
              static_cast<int>(rank));
}

}  // namespace

// Only rank 0's nonce is used. Without others, ranks of a host send equal texts, which reach every
// rank once.
std::string own_place(const Hello& self) {
  return (self.rank == 0 ? hex(fresh_nonce()) : std::string(kNonceDigits, '0')) + identity(self);
}

// Computes where the ranks of this host meet. Rank 0's nonce is part of the socket's name. Hosts
// that share a network namespace but no pid namespace would use the same name, so the first rank of
// a host is part of it, too.
HostMeeting host_meeting(const std::vector<std::string>& places, int rank, const std::string& mine,
                         const std::vector<int>& split) {
  if (places.size() != split.size() || places.at(static_cast<std::size_t>(rank)) != mine)
    throw Error(Code::kMismatch,
                fmt::format("rank {} sent its place, and received another place of itself", rank),
                0);
  const std::string here = identity_in(mine, static_cast<std::size_t>(rank));
  HostMeeting meeting;
  std::vector<std::string> keys;
  for (std::size_t peer = 0; peer < places.size(); ++peer) {
    const std::string theirs = identity_in(places[peer], peer);
    if (theirs == here) meeting.ranks.push_back(static_cast<int>(peer));
    keys.push_back(theirs + ' ' + std::to_string(split[peer]));
  }
  FERRY_CHECK(std::ranges::count(meeting.ranks, rank), ==, 1);
  meeting.address =
      fmt::format("{}-{}", places[0].substr(0, kAddressDigits), meeting.ranks.front());
  meeting.nodes = number_nodes(keys);
  FERRY_CHECK(meeting.nodes.size(), ==, split.size());
  return meeting;
}

}  // namespace ferry::internal
