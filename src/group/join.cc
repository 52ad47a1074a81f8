// Ways to join a group.
#include "group/join.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <sstream>

#include "base/environment.h"
#include "bootstrap/endpoint.h"
#include "bootstrap/hello.h"
#include "bootstrap/tcp.h"

namespace ferry::internal {
namespace {

std::string topology_text(const GroupOptions& options) {
  return options.topology.empty() ? environment_or_empty("FERRY_TOPOLOGY") : options.topology;
}

std::string named(const std::string& base, const GroupOptions& options) {
  return options.name.empty() ? base : base + "/" + options.name;
}

// Writes a text into a field of a record, as all-gathers need records of one size. Zeros follow.
template <std::size_t kBytes>
void put(char (&field)[kBytes], const std::string& text) {
  text.copy(field, kBytes - 1);
}

// The text in a field of a record. A stranger may have made the record, so the zero at its end may
// be missing.
template <std::size_t kBytes>
std::string text_of(const char (&field)[kBytes]) {
  return {field, strnlen(field, kBytes)};
}

struct Announcement {
  char name[32];        // random; that of rank 0 becomes the group's name
  char identity[223];   // equal on processes that share memory (hello.h)
  std::uint8_t secret;  // 1: has FERRY_SECRET
};

struct CoordinatorAddress {
  char hosts[512];                   // rank 0's addresses, comma-separated
  char secret[2 * kNonceBytes + 8];  // random; empty: FERRY_SECRET is used
  int port;                          // 0: rank 0 could not listen
};

template <typename Record>
std::vector<Record> gather(int rank, int size, const AllGather& all_gather, const Record& mine) {
  std::vector<Record> all(size);
  if (!all_gather(&mine, all.data(), sizeof mine)) {
    throw Error(Code::kSystem,
                fmt::format("the caller's all-gather of {} bytes failed on rank {} of {}",
                            sizeof mine, rank, size));
  }
  if (std::memcmp(&all[rank], &mine, sizeof mine) == 0) return all;
  throw Error(
      Code::kInvalidArgument,
      fmt::format("the caller's all-gather did not return rank {}'s own {} bytes at its place",
                  rank, sizeof mine));
}

// Throws unless all ranks have FERRY_SECRET, or none has.
void check_secrets(const std::vector<Announcement>& all, int rank) {
  const auto differs = std::ranges::find_if(
      all, [&](const Announcement& one) { return one.secret != all[rank].secret; });
  if (differs == all.end()) return;
  const int other = static_cast<int>(differs - all.begin());
  const bool mine = all[rank].secret != 0;
  throw Error(
      Code::kMismatch,
      fmt::format("rank {} has FERRY_SECRET and rank {} does not: set the same on all ranks "
                  "or on none",
                  mine ? rank : other, mine ? other : rank),
      other);
}

// Rank 0 listens now, so that no other process takes the port before the others connect. The others
// wait in the all-gather: a failure is sent to them in place of the hosts.
CoordinatorAddress listen_for_others(const std::string& interfaces, bool has_secret,
                                     std::shared_ptr<Descriptor>& listener) {
  CoordinatorAddress mine{};
  try {
    std::vector<std::string> hosts = own_addresses(interfaces);
    if (interfaces.empty()) hosts.push_back("127.0.0.1");  // containers may share that only
    while (fmt::format("{}", fmt::join(hosts, ",")).size() >= sizeof mine.hosts)
      hosts.erase(hosts.end() - 2);
    put(mine.hosts, fmt::format("{}", fmt::join(hosts, ",")));
    if (!has_secret) put(mine.secret, hex(fresh_nonce()));
    listener = std::make_shared<Descriptor>(tcp_listen(interfaces, 0));
    mine.port = port_of(*listener);
  } catch (const Error& error) {
    put(mine.hosts, error.what());
  }
  return mine;
}

// `secret`: FERRY_SECRET. If it is set, a secret from the all-gather is not used.
TcpEndpoint endpoint_at(const CoordinatorAddress& coordinator, const std::string& secret) {
  const std::string where = text_of(coordinator.hosts);
  if (coordinator.port == 0) {
    throw Error(Code::kSystem,
                fmt::format("rank 0 cannot listen for ranks of other hosts: {}", where), 0);
  }
  if (coordinator.port < 0 || coordinator.port > kMostPort) {
    throw Error(Code::kMismatch,
                fmt::format("rank 0's port is {}, need 1 to {}", coordinator.port, kMostPort), 0);
  }
  TcpEndpoint endpoint;
  endpoint.secret = secret.empty() ? text_of(coordinator.secret) : secret;
  std::istringstream hosts(where);
  for (std::string host; std::getline(hosts, host, ',');) endpoint.address.hosts.push_back(host);
  endpoint.address.port = coordinator.port;
  return endpoint;
}

// The name of a job that is known by its address. The host is no part of it: a host may have
// several names, and newcomers may find the group on another host.
std::string job_at(int port) { return fmt::format("port {}", port); }

// The endpoint of ranks that meet at "tcp://host:port".
TcpEndpoint endpoint_of(const JoinAddress& at, const GroupOptions& options) {
  const TcpAddress address = parse_tcp(at.address);
  const std::string job = at.job == at.address ? job_at(address.port) : at.job;
  TcpEndpoint endpoint{.address = address,
                       .secret = environment_or_empty("FERRY_SECRET"),
                       .group = named(job, options),
                       .interfaces = environment_or_empty("FERRY_SOCKET_IFNAME"),
                       .listener = nullptr};
  if (endpoint.secret.empty()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("a group at {} needs FERRY_SECRET, the same text of {} or more "
                            "characters for all ranks and for nobody else (`ferry launch` makes "
                            "one; so does `openssl rand -hex 16`)",
                            at.address, Secret::kLeastBytes));
  }
  return endpoint;
}

}  // namespace

std::vector<int> split_nodes(const GroupOptions& options, int size) {
  const std::string text = topology_text(options);
  if (text.empty()) return std::vector<int>(size);
  const Topology topology = Topology::parse(text);
  if (topology.num_ranks() == size) return topology.nodes();
  throw Error(Code::kInvalidArgument,
              fmt::format("the topology \"{}\" has {} ranks, the group has {}", text,
                          topology.num_ranks(), size));
}

GroupRanks ranks_of(const GroupOptions& options, int size) {
  return {split_nodes(options, size), options.members};
}

Topology topology_of(const GroupOptions& options, const std::vector<int>& nodes) {
  const std::string text = topology_text(options);
  if (text.empty()) return Topology::from_nodes(nodes);
  Topology topology = Topology::parse(text);
  for (int rank = 0; rank < topology.num_ranks(); ++rank) {
    const int first = topology.node_ranks(topology.node_of(rank))[0];
    if (nodes[first] == nodes[rank]) continue;
    throw Error(
        Code::kInvalidArgument,
        fmt::format("the topology \"{}\" has ranks {} and {} on one host, but they share no "
                    "memory (does it lack the level \"{}\"?)",
                    text, first, rank, Topology::kHost));
  }
  return topology;
}

std::unique_ptr<Rendezvous> join_at_address(const JoinAddress& at, const GroupOptions& options,
                                            const Deadline& deadline) {
  const GroupRanks ranks = ranks_of(options, at.size);
  if (!is_tcp(at.address)) {
    return process_rendezvous(named(at.address, options), at.rank, ranks, deadline, at.launch);
  }
  return tcp_rendezvous(endpoint_of(at, options), at.rank, ranks, deadline, at.launch);
}

std::pair<std::unique_ptr<Rendezvous>, Admission> come_back_to_address(const JoinAddress& at,
                                                                       const GroupOptions& options,
                                                                       const Deadline& deadline) {
  const std::vector<int> split = split_nodes(options, at.size);
  const AdmissionAddress where =
      is_tcp(at.address) ? tcp_admission_address(tcp_endpoint(endpoint_of(at, options)), split)
                         : unix_admission_address(named(at.address, options), split);
  return newcomer_rendezvous(where, at.rank, deadline);
}

std::pair<std::unique_ptr<Rendezvous>, std::string> join_by_all_gather(
    int rank, int size, const AllGather& all_gather, const GroupOptions& options,
    std::optional<Deadline>& by) {
  const std::vector<int> split = split_nodes(options, size);
  Announcement mine{};
  put(mine.name, "cb-" + hex(fresh_nonce()).substr(0, 16));
  put(mine.identity, identity(own_hello("", rank, split)));
  const std::string secret = environment_or_empty("FERRY_SECRET");
  mine.secret = secret.empty() ? 0 : 1;
  const std::vector<Announcement> all = gather(rank, size, all_gather, mine);
  by = Deadline::after(options.deadline, &options.interrupted);
  const std::string address = text_of(all[0].name), name = named(address, options);
  const bool one_host = std::all_of(all.begin(), all.end(), [&](const Announcement& one) {
    return std::memcmp(one.identity, mine.identity, sizeof mine.identity) == 0;
  });
  if (one_host) return {process_rendezvous(name, rank, split, *by), address};
  check_secrets(all, rank);

  const std::string interfaces = environment_or_empty("FERRY_SOCKET_IFNAME");
  std::shared_ptr<Descriptor> listener;
  const CoordinatorAddress coordinator =
      rank == 0 ? listen_for_others(interfaces, !secret.empty(), listener) : CoordinatorAddress{};
  TcpEndpoint endpoint = endpoint_at(gather(rank, size, all_gather, coordinator)[0], secret);
  endpoint.group = named(job_at(endpoint.address.port), options);
  endpoint.interfaces = interfaces;
  endpoint.listener = listener;
  return {tcp_rendezvous(endpoint, rank, split, *by),
          secret.empty() ? "" : endpoint.address.text()};
}

}  // namespace ferry::internal
