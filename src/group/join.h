// Join: chooses the rendezvous of a new group, and adds options from the environment.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/rendezvous.h"
#include "ferry/group.h"
#include "ferry/topology.h"

namespace ferry::internal {

// The node of each rank, as the topology says (GroupOptions, else FERRY_TOPOLOGY); without a
// topology all ranks of a host are one node. Throws Error if the topology has another number of
// ranks; it names both numbers.
std::vector<int> split_nodes(const GroupOptions& options, int size);

// That topology, or else a topology of the nodes that were found. Throws Error, which names two
// ranks, if the topology says that they are of one host and they are not.
Topology topology_of(const GroupOptions& options, const std::vector<int>& nodes);

// The ranks of a group that meet to make it. Throws as split_nodes() does.
GroupRanks ranks_of(const GroupOptions& options, int size);

// Processes that know where to meet: at "tcp://host:port", with the secret of FERRY_SECRET, or
// at any other text on their host. `job` distinguishes groups that meet at one port.
struct JoinAddress {
  std::string address;
  std::string job;
  int rank = 0;
  int size = 1;
  LocalLaunch launch = {};
};
std::unique_ptr<Rendezvous> join_at_address(const JoinAddress& at, const GroupOptions& options,
                                            const Deadline& deadline);

// The same for a newcomer.
std::pair<std::unique_ptr<Rendezvous>, Admission> come_back_to_address(const JoinAddress& at,
                                                                       const GroupOptions& options,
                                                                       const Deadline& deadline);

// Processes with an all-gather of their own. With it they learn on which host each of them is, and,
// if there are several hosts, rank 0's addresses. The secret is FERRY_SECRET; if no rank has one,
// rank 0 draws one and sends it in the all-gather. No other data of the all-gather is trusted.
// `by`: the deadline of the join, which begins when all ranks are known. The second value is the
// address of the group, without the name in the options; empty between hosts without FERRY_SECRET.
std::pair<std::unique_ptr<Rendezvous>, std::string> join_by_all_gather(int rank, int size,
                                                                       const AllGather& all_gather,
                                                                       const GroupOptions& options,
                                                                       std::optional<Deadline>& by);

}  // namespace ferry::internal
