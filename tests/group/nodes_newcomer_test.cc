// Processes that take the places of lost ranks in a group of several nodes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bootstrap/forked.h"
#include "bootstrap/tcp_endpoint.h"
#include "ferry/group.h"

namespace ferry::internal {
namespace {

constexpr int kOfNodes = 6;
constexpr const char* kTopology = "host:3,rank:2";

// The ranks that are killed at once, and whether the hosts meet over TCP or the nodes on one host.
struct Loss {
  const char* name;
  std::vector<int> victims;
  bool over_tcp;
};

// All ranks gather their numbers.
std::string gathered(Group& group) {
  std::vector<int> ranks(kOfNodes);
  const int mine = group.rank();
  require_ok(group.all_gather(&mine, sizeof mine, ranks.data()));
  return fmt::format("{} in view {} of {}", fmt::join(ranks, " "), group.view().number,
                     group.view().members.size());
}

class NodesNewcomer : public testing::TestWithParam<Loss> {};

TEST_P(NodesNewcomer, TakesItsPlace) {
  const Loss& loss = GetParam();
  const std::string address = loss.over_tcp
                                  ? fmt::format("tcp://127.0.0.1:{}", free_port())
                                  : fmt::format("nodes-newcomer-{}-{}", getpid(), loss.name);
  setenv("FERRY_SECRET", "the secret of the test", 1);
  std::vector<int> roles;  // from kOfNodes on: newcomers
  for (int rank = 0; rank < kOfNodes; ++rank) roles.push_back(rank);
  for (const int rank : loss.victims) roles.push_back(kOfNodes + rank);
  const auto results = in_processes(roles, [&](int role) {
    GroupOptions options{.deadline = std::chrono::seconds(20), .topology = kTopology};
    options.newcomer = role >= kOfNodes;
    const int rank = role % kOfNodes;
    Group group = Group::connect(address, rank, kOfNodes, options);
    if (!options.newcomer) {
      static_cast<void>(group.barrier());  // all have joined; it may end with an error of a victim
      if (std::ranges::count(loss.victims, rank) > 0) raise(SIGKILL);
      while (group.barrier().ok()) {
      }
      require_ok(group.survive());
      require_ok(group.admit());
    }
    const std::string first = gathered(group);
    EXPECT_EQ(gathered(group), first);
    require_ok(group.barrier());
    return first;
  });
  for (const int role : roles) {
    const bool dies = role < kOfNodes && std::ranges::count(loss.victims, role) > 0;
    const std::string& result = results[std::ranges::find(roles, role) - roles.begin()];
    EXPECT_EQ(result, dies ? "" : "0 1 2 3 4 5 in view 3 of 6") << "role " << role;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Losses, NodesNewcomer,
    testing::Values(Loss{"OneRank", {3}, false}, Loss{"RankZero", {0}, false},
                    Loss{"TheFirstNode", {0, 1}, false}, Loss{"TheLastNode", {4, 5}, false},
                    Loss{"OfTwoNodes", {1, 2}, false}, Loss{"OneRankOverTcp", {3}, true},
                    Loss{"RankZeroOverTcp", {0}, true}, Loss{"TheFirstNodeOverTcp", {0, 1}, true},
                    Loss{"TheLastNodeOverTcp", {4, 5}, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ferry::internal
