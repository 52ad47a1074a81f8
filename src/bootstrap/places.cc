#include "bootstrap/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "bootstrap/agree.h"
#include "bootstrap/handshake.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

constexpr std::size_t kNonceDigits = 2 * kNonceBytes;
constexpr std::size_t kAddressDigits = 32;

// Reads the identity from the place of `rank`. Ranks that share memory have equal identities.
std::string identity_in(const std::string& place, int rank) {
  const bool long_enough = place.size() > kNonceDigits;
  if (long_enough && place.find_first_not_of("0123456789abcdef") >= kNonceDigits)
    return place.substr(kNonceDigits);
  throw Error(Code::kMismatch,
              fmt::format("rank {} sent a place of {} bytes that does not begin with {} "
                          "hexadecimal digits",
                          rank, place.size(), kNonceDigits),
              rank);
}

// The key of an absent rank: the key of the members on its node of the topology. If that node has
// no members, all its ranks get one key of their own. `keys` [ranks] has the keys of the members.
std::string key_of_absent(int rank, const GroupRanks& ranks, const std::vector<std::string>& keys) {
  const int node = ranks.split[rank];
  const auto is_beside = [&](int member) { return ranks.split[member] == node; };
  const auto beside = std::ranges::find_if(ranks.members, is_beside);
  if (beside == ranks.members.end()) return fmt::format("absent {}", node);
  for (const int other : ranks.members) {
    if (!is_beside(other) || keys[other] == keys[*beside]) continue;
    throw Error(Code::kInvalidArgument,
                fmt::format("rank {} is not there when the group begins, and nothing says whether "
                            "it will be on the host of rank {} or on that of rank {}: give a "
                            "topology such as \"host:2,rank:4\"",
                            rank, *beside, other),
                rank);
  }
  return keys[*beside];
}

}  // namespace

GroupRanks::GroupRanks(std::vector<int> split_nodes, std::vector<int> first_members)
    : split(std::move(split_nodes)), members(std::move(first_members)) {
  if (!members.empty()) return;
  members.resize(split.size());
  std::iota(members.begin(), members.end(), 0);
}

// Only the nonce of the lowest rank is used. The others send zeros, so that the ranks of a host
// send equal texts, of which every rank gets one (pack()).
std::string own_place(const Hello& self, bool lowest) {
  return (lowest ? hex(fresh_nonce()) : std::string(kNonceDigits, '0')) + identity(self);
}

// Computes where the ranks of this host meet. The lowest rank's nonce is part of the socket's name.
// Hosts that share a network namespace but no pid namespace would use the same name, so the first
// rank of a host is part of the name, too.
HostMeeting host_meeting(const std::vector<std::string>& places, int rank, const std::string& mine,
                         const GroupRanks& ranks) {
  const std::vector<int>& members = ranks.members;
  const auto place = static_cast<std::size_t>(std::ranges::find(members, rank) - members.begin());
  if (places.size() != members.size() || places.at(place) != mine)
    throw Error(Code::kMismatch,
                fmt::format("rank {} sent its place, and received another place of itself", rank),
                members[0]);
  const std::string here = identity_in(mine, rank);
  HostMeeting meeting;
  std::vector<std::string> keys(ranks.split.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    const int member = members[i];
    const std::string theirs = identity_in(places[i], member);
    if (theirs == here) meeting.ranks.push_back(member);
    keys[member] = fmt::format("{} {}", theirs, ranks.split[member]);
  }
  for (int one = 0; one < ranks.size(); ++one)
    if (keys[one].empty()) keys[one] = key_of_absent(one, ranks, keys);
  FERRY_CHECK(std::ranges::count(meeting.ranks, rank), ==, 1);
  meeting.address =
      fmt::format("{}-{}", places[0].substr(0, kAddressDigits), meeting.ranks.front());
  meeting.nodes = number_nodes(keys);
  FERRY_CHECK(meeting.nodes.size(), ==, ranks.split.size());
  return meeting;
}

}  // namespace ferry::internal
