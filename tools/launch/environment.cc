// Chooses run id, secret and port of a launch, and builds each rank's environment.
#include "tools/launch/environment.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <string_view>

#include "base/environment.h"
#include "ferry/status.h"

namespace ferry::tools {
namespace {

constexpr int kFirstPort = 10000, kLastPort = 65535;
// torchrun uses port 29400 for its rendezvous and 29500 for its store. ferry avoids these and the
// ports near them.
constexpr int kFirstTorchPort = 29400, kLastTorchPort = 29600;

// Group::from_environment reads the first three before the variables of torchrun. The next five are
// of an outer launch. The last two come from an outer torchrun: with them torch would join the
// store of that torchrun and write to its error file.
constexpr std::array<std::string_view, 10> kRemoved = {"FERRY_ADDR",
                                                       "FERRY_RANK",
                                                       "FERRY_SIZE",
                                                       "FERRY_NEWCOMER",
                                                       "FERRY_SPARE",
                                                       "RANK",
                                                       "LOCAL_RANK",
                                                       "ROLE_RANK",
                                                       "TORCHELASTIC_USE_AGENT_STORE",
                                                       "TORCHELASTIC_ERROR_FILE"};

std::uint64_t random_bits() {
  std::uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) {
    throw Error(Code::kSystem, fmt::format("getrandom: {}", std::strerror(errno)));
  }
  return bits;
}

struct PortRange {
  int first = 32768, last = 60999;  // the kernel's default
  bool contains(int port) const { return first <= port && port <= last; }
};

// The kernel gives ports of this range to outgoing connections.
PortRange ephemeral_ports() {
  PortRange range;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> range.first >> range.last;
  return range;
}

// Whether a port is free for the store that torch opens on rank 0. The probe binds a socket and
// closes it at once; it never listens.
bool can_bind(int family, const sockaddr* address, socklen_t length) {
  const internal::Descriptor probe(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe) return errno == EAFNOSUPPORT;
  const int only_v6 = 1;
  if (family == AF_INET6)
    setsockopt(probe.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof only_v6);
  return bind(probe.fd(), address, length) == 0 || errno == EADDRNOTAVAIL;
}

bool is_free(int port) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<std::uint16_t>(port));
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = v4.sin_port;
  return can_bind(AF_INET, reinterpret_cast<const sockaddr*>(&v4), sizeof v4) &&
         can_bind(AF_INET6, reinterpret_cast<const sockaddr*>(&v6), sizeof v6);
}

// Claims a port for as long as the launcher lives, by an abstract socket that is named after the
// port. Two launches thus never choose the same port, even before either has opened it.
internal::Descriptor claim(int port) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("ferry-launch-port-{}", port);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  internal::Descriptor held(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (bind(held.fd(), reinterpret_cast<const sockaddr*>(&address), length) != 0) held = {};
  return held;
}

void choose_port(LaunchIdentity& identity) {
  constexpr int kTries = 10'000;
  const PortRange ephemeral = ephemeral_ports();
  // Where the kernel's range covers nearly all ports, a port of that range is chosen.
  const bool avoid = ephemeral.first - kFirstPort + kLastPort - ephemeral.last >= 1000;
  for (int i = 0; i < kTries; ++i) {
    constexpr int kPairs = (kLastPort - kFirstPort + 1) / 2;
    const int port = kFirstPort + 2 * static_cast<int>(random_bits() % kPairs);
    if (kFirstTorchPort <= port && port <= kLastTorchPort) continue;
    if ((avoid && ephemeral.contains(port)) || !is_free(port) || !is_free(port + 1)) continue;
    internal::Descriptor held = claim(port);
    if (!held) continue;
    identity.port_claim = std::make_shared<const internal::Descriptor>(std::move(held));
    identity.master_port = port;
    identity.port_reason = fmt::format(
        "drawn at random, free when tried, {} the kernel's own range {} to {}, claimed among "
        "launches",
        ephemeral.contains(port) ? "inside" : "outside", ephemeral.first, ephemeral.last);
    return;
  }
  throw Error(Code::kSystem,
              fmt::format("no free TCP port for MASTER_PORT in {} tries between {} and {}", kTries,
                          kFirstPort, kLastPort));
}

using Variables = std::map<std::string, std::string, std::less<>>;

// The variables that all ranks of this host have in common.
Variables launch_variables(const LaunchIdentity& identity, const HostShare& share) {
  Variables set = {
      {"WORLD_SIZE", std::to_string(share.world_size)},
      {"LOCAL_WORLD_SIZE", std::to_string(share.num_ranks)},
      {"GROUP_RANK", std::to_string(share.host)},
      {"GROUP_WORLD_SIZE", std::to_string(share.num_hosts)},
      {"ROLE_NAME", "default"},
      {"ROLE_WORLD_SIZE", std::to_string(share.world_size)},
      {"MASTER_ADDR", identity.master_addr},
      {"MASTER_PORT", std::to_string(identity.master_port)},
      {"TORCHELASTIC_RUN_ID", identity.run_id},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"FERRY_SECRET", identity.secret},
  };
  if (!identity.ferry_addr.empty()) set.emplace("FERRY_ADDR", identity.ferry_addr);
  return set;
}

// The variables of one rank.
Variables place_variables(const LaunchIdentity& identity, const HostShare& share, int local_rank,
                          bool newcomer) {
  const std::string rank_text = std::to_string(share.first_rank + local_rank);
  Variables set = {
      {"RANK", rank_text}, {"LOCAL_RANK", std::to_string(local_rank)}, {"ROLE_RANK", rank_text}};
  if (newcomer) set.emplace("FERRY_NEWCOMER", "1");
  if (newcomer && !identity.newcomers_addr.empty())
    set.emplace("FERRY_ADDR", identity.newcomers_addr);
  return set;
}

// The environment of this process with these variables, and without those that are removed.
std::vector<std::string> own_environment_with(const Variables& set) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry), name = text.substr(0, text.find('='));
    const bool removed = std::find(kRemoved.begin(), kRemoved.end(), name) != kRemoved.end();
    if (!removed && set.find(name) == set.end()) environment.emplace_back(text);
  }
  for (const auto& [name, value] : set) environment.push_back(fmt::format("{}={}", name, value));
  return environment;
}

}  // namespace

LaunchIdentity make_identity(const std::string& name, const std::vector<std::string>& hosts,
                             int ferry_port) {
  LaunchIdentity identity;
  identity.run_id = fmt::format("{}-{:012x}", name, random_bits() >> 16);
  identity.secret = internal::environment("FERRY_SECRET")
                        .value_or(fmt::format("{:016x}{:016x}", random_bits(), random_bits()));
  choose_port(identity);
  if (hosts.empty()) return identity;
  const int port = ferry_port ? ferry_port : identity.master_port + 1;
  identity.master_addr = hosts[0];
  identity.ferry_addr = fmt::format("tcp://{}:{}", hosts[0], port);
  identity.newcomers_addr = fmt::format("tcp://{}:{}", fmt::join(hosts, ","), port);
  return identity;
}

std::vector<std::string> rank_environment(const LaunchIdentity& identity, const HostShare& share,
                                          int local_rank, bool newcomer) {
  Variables set = place_variables(identity, share, local_rank, newcomer);
  set.merge(launch_variables(identity, share));  // those of the place stay
  return own_environment_with(set);
}

std::vector<std::string> spare_environment(const LaunchIdentity& identity, const HostShare& share) {
  Variables set = launch_variables(identity, share);
  set.emplace("FERRY_SPARE", "1");
  return own_environment_with(set);
}

std::string place_of_rank(const LaunchIdentity& identity, const HostShare& share, int local_rank) {
  std::string lines;
  for (const auto& [name, value] : place_variables(identity, share, local_rank, true))
    lines += fmt::format("{}={}\n", name, value);
  return lines;
}

}  // namespace ferry::tools
