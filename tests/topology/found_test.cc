// The trees that `ferry topology --found` makes of invented machines and of this one.
#include <gmock/gmock.h>

#include "ferry/topology.h"
#include "tools/topology/parts.h"

namespace ferry::tools {
namespace {

// `threads` hardware threads in each of `caches` caches in each of `domains` domains.
std::vector<Place> machine(int domains, int caches, int threads) {
  std::vector<Place> places;
  for (int thread = 0; thread < domains * caches * threads; ++thread) {
    const auto cache = static_cast<std::uint64_t>(thread / threads);
    places.push_back({.numa = cache / static_cast<std::uint64_t>(caches), .cache = 100 + cache});
  }
  return places;
}

TEST(Found, LeavesOutLevelsThatDivideNothing) {
  EXPECT_EQ(found_levels(machine(1, 1, 2), 2), "host:1,rank:2");
  EXPECT_EQ(found_levels(machine(2, 1, 8), 4), "host:1,numa:2,rank:2");
  EXPECT_EQ(found_levels(machine(1, 4, 8), 8), "host:1,cache:4,rank:2");
  EXPECT_EQ(found_levels(machine(2, 4, 8), 16), "host:1,numa:2,cache:4,rank:2");
}

TEST(Found, SpreadsRanksEvenly) {
  EXPECT_EQ(found_levels(machine(2, 1, 8), 3), "host:1,numa:2,rank:2+1");
  EXPECT_EQ(found_levels(machine(2, 2, 2), 3), "host:1,numa:2,cache:2+1,rank:1");
  EXPECT_EQ(found_levels(machine(2, 1, 1), 16), "host:1,numa:2,rank:8");  // more than threads
  EXPECT_EQ(found_levels(machine(4, 2, 8), 1), "host:1,rank:1");
  EXPECT_EQ(found_levels(machine(3, 1, 1), 2), "host:1,numa:2,rank:1");  // a domain stays empty
}

std::string joined(const std::vector<std::string>& hosts) {
  std::vector<Topology> found;
  for (const std::string& text : hosts) found.push_back(Topology::parse(text));
  return join_hosts(found);
}

TEST(Found, JoinsHostsOfAJob) {
  EXPECT_EQ(joined({"host:1,rank:2", "host:1,rank:2"}), "host:2,rank:2");
  EXPECT_EQ(joined({"host:1,rank:3", "host:1,rank:5"}), "host:2,rank:3+5");
  EXPECT_EQ(joined({"host:1,numa:2,cache:4,rank:2", "host:1,numa:2,cache:4,rank:2"}),
            "host:2,numa:2,cache:4,rank:2");
  EXPECT_EQ(joined({"host:1,numa:2,rank:2", "host:1,cache:3,rank:2"}),
            "host:2,numa:2+1,cache:1+1+3,rank:2");
  EXPECT_EQ(joined({"host:1,rank:1", "host:1,numa:2,cache:2+1,rank:1"}),
            "host:2,numa:1+2,cache:1+2+1,rank:1");
}

TEST(Found, TakesThreadsInAnyOrder) {
  const std::vector<Place> dealt = {{0, 1}, {7, 2}, {0, 1}, {7, 2}};
  EXPECT_EQ(found_levels(dealt, 4), "host:1,numa:2,rank:2");
}

TEST(Found, CacheThatSpansDomainsIsNoLevel) {
  const std::vector<Place> shared = {{0, 1}, {0, 1}, {1, 1}, {1, 1}};
  EXPECT_EQ(found_levels(shared, 4), "host:1,numa:2,rank:2");
}

TEST(Found, ReadsThisMachine) {
  const std::vector<Place> places = places_here();
  ASSERT_FALSE(places.empty());
  for (const int ranks : {1, 3, 8}) {
    const Topology topology = Topology::parse(found_levels(places, ranks));
    EXPECT_EQ(topology.num_ranks(), ranks);
    EXPECT_EQ(topology.num_nodes(), 1);
  }
}

}  // namespace
}  // namespace ferry::tools
