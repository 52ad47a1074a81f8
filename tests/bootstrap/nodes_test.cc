// Ranks of one host that a topology splits into nodes, as threads and as processes: each node has a
// segment of its own.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "bootstrap/agree.h"
#include "bootstrap/forked.h"
#include "bootstrap/meeting.h"
#include "bootstrap/rendezvous.h"

namespace ferry::internal {
namespace {

using std::chrono::seconds;
using testing::Each;
using testing::ElementsAre;

// Every rank writes its number into its node's segment; "ok" when ranks of the node, and only they,
// are seen there.
std::string write_and_look(Rendezvous& mine) {
  const auto segment = mine.share_segment(4096, soon());
  if (mine.rank() == 0 || mine.nodes()[mine.rank()] != mine.nodes()[mine.rank() - 1]) {
    if (!segment->commit(0, 4096)) return "refused";
  }
  mine.all_gather("", soon());
  segment->data()[mine.rank()] = std::byte(mine.rank() + 1);
  mine.all_gather("", soon());
  for (int peer = 0; peer < mine.size(); ++peer) {
    const bool here = mine.nodes()[peer] == mine.nodes()[mine.rank()];
    if (segment->data()[peer] != std::byte(here ? peer + 1 : 0))
      return fmt::format("rank {} sees {} of rank {}", mine.rank(), int(segment->data()[peer]),
                         peer);
  }
  return "ok";
}

const std::vector<std::vector<int>> kSplits = {
    {0}, {0, 1}, {0, 0, 1, 1}, {0, 0, 0, 1, 1, 1, 1, 1}, {0, 1, 0, 2, 1}};

TEST(Nodes, OfThreadsHaveSegmentsOfTheirOwn) {
  for (const std::vector<int>& nodes : kSplits) {
    auto all = thread_rendezvous(nodes);
    std::vector<std::string> results(nodes.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
      threads.emplace_back([&, rank] {
        EXPECT_EQ(all[rank]->nodes(), nodes);
        for (int round = 0; round < 3 && results[rank] != "wrong"; ++round)
          results[rank] = write_and_look(*all[rank]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(results, Each("ok"));
  }
}

TEST(Nodes, OfProcessesHaveSegmentsOfTheirOwn) {
  const std::string at = fmt::format("nodes-{}", getpid());
  for (const std::vector<int>& nodes : kSplits) {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < nodes.size(); ++rank) ranks.push_back(static_cast<int>(rank));
    const auto results = in_processes(ranks, [&](int rank) {
      const auto rendezvous = process_rendezvous(at, rank, nodes, soon());
      const std::string first = write_and_look(*rendezvous);
      return first == "ok" ? write_and_look(*rendezvous) : first;
    });
    EXPECT_THAT(results, Each("ok"));
  }
}

TEST(Nodes, ProcessesOfOtherNodesAreWatchedToo) {
  const std::string at = fmt::format("nodes-watch-{}", getpid());
  const auto results = in_processes({0, 1, 2}, [&](int rank) -> std::string {
    const auto rendezvous = process_rendezvous(at, rank, std::vector{0, 1, 1}, soon());
    const int victim = rendezvous->pid(1);
    rendezvous->all_gather("", soon());
    if (rank == 1) pause();
    if (rank == 0) kill(victim, SIGKILL);
    const std::int64_t begin = now_ns();
    while (rendezvous->alive(1)) {
      if (now_ns() - begin > 5'000'000'000) return "still alive";
      usleep(500);
    }
    const bool well = rendezvous->alive(2 - rank);
    usleep(300'000);  // until the other rank has looked
    return well ? "ok" : "the other died";
  });
  EXPECT_THAT(results, ElementsAre("ok", "", "ok"));
}

TEST(Nodes, TopologiesThatDifferAreNamed) {
  const std::string at = fmt::format("nodes-differ-{}", getpid());
  const auto results = in_processes({0, 1}, [&](int rank) {
    process_rendezvous(at, rank, std::vector{0, rank}, soon());
    return "met";
  });
  EXPECT_THAT(results, Each(testing::AllOf(testing::StartsWith("mismatch: different topologies"),
                                           testing::HasSubstr("has 0*2"),
                                           testing::HasSubstr("has 0*1,1*1"))));
}

TEST(Nodes, AreNumberedByTheirLowestRank) {
  EXPECT_THAT(number_nodes({"b", "a", "b", "c", "a"}), ElementsAre(0, 1, 0, 2, 1));
  EXPECT_EQ(num_nodes({0, 1, 0, 2, 1}), 3);
}

}  // namespace
}  // namespace ferry::internal
