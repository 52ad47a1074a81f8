// Groups on several nodes over UCX with network chaos (ChaosTransport): whatever order packets
// arrive in, every output equals the oracle bit for bit; and ten thousand exchanges leave neither
// memory nor descriptors behind. FERRY_STRESS scales their number.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <string>

#include "network/chaos_transport.h"
#include "player.h"

namespace ferry::test {
namespace {

constexpr std::array kAlgorithms = {Algorithm::kFullmesh, Algorithm::kHierarchical,
                                    Algorithm::kAllgather};
constexpr std::array kSums = {NodeSums::kRowType, NodeSums::kFp32, NodeSums::kExact};
constexpr std::array kLayouts = {Layout::kRankMajor, Layout::kExpertMajor, Layout::kPadded};
constexpr std::array kProgress = {"inline", "thread"};

std::vector<Nodes> shapes() {
  return {nodes_of_sizes({2, 2}), nodes_of_sizes({1, 1, 1, 1}), nodes_of_sizes({2, 1, 3}),
          nodes_of("rack:2,host:2+1,rank:2+1+2"), nodes_of("rack:2@also1xor,host:2,rank:2")};
}

// While it lives, groups that are made have ChaosTransports, and ranks move messages as `progress`
// says (FERRY_PROGRESS).
class NetworkChaos {
 public:
  NetworkChaos(std::uint64_t seed, const char* progress)
      : frame_transports_([this, seed] {
          // Relaxed: only the number matters; ranks make their transports at the same time.
          const std::uint64_t number = transports_.fetch_add(1, std::memory_order_relaxed);
          return std::make_unique<ChaosTransport>(internal::ucx_transport(),
                                                  seed * 100'000 + number, &counts_);
        }) {
    setenv("FERRY_PROGRESS", progress, 1);
  }
  ~NetworkChaos() { unsetenv("FERRY_PROGRESS"); }
  NetworkChaos(const NetworkChaos&) = delete;
  NetworkChaos& operator=(const NetworkChaos&) = delete;

  // So many ranks have made a transport.
  void expect_transports(std::uint64_t number) const {
    EXPECT_EQ(transports_.load(std::memory_order_relaxed), number);  // relaxed: all have been made
  }
  // Each kind of chaos came about.
  void expect_bad() const {
    // Relaxed: nothing is counted any more.
    EXPECT_GT(counts_.repeated.load(std::memory_order_relaxed), 0U);
    EXPECT_GT(counts_.shuffled.load(std::memory_order_relaxed), 0U);
    EXPECT_GT(counts_.sent_late.load(std::memory_order_relaxed), 0U);
  }

 private:
  std::atomic<std::uint64_t> transports_{0};
  ChaosCounts counts_;
  FrameTransports frame_transports_;
};

// ---- every algorithm, bit for bit

struct ChaosCase {
  Nodes nodes;
  Algorithm algorithm = Algorithm::kFullmesh;
  NodeSums sums = NodeSums::kRowType;
  const char* progress = "inline";
};

std::ostream& operator<<(std::ostream& stream, const ChaosCase& c) {
  return stream << c.nodes.topology << ", " << name_of(c.algorithm) << ", sums " << name_of(c.sums)
                << ", progress " << c.progress;
}

std::vector<ChaosCase> chaos_cases() {
  std::vector<ChaosCase> cases;
  for (const Nodes& nodes : shapes()) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const NodeSums sums : kSums) {
        for (const char* progress : kProgress) cases.push_back({nodes, algorithm, sums, progress});
      }
    }
  }
  return cases;
}

// "fullmesh_fp32_host_3_rank_2_1_3_thread"
std::string chaos_name(const testing::TestParamInfo<ChaosCase>& info) {
  const ChaosCase& c = info.param;
  std::string name = std::string(name_of(c.algorithm)) + "_" + name_of(c.sums) + "_" +
                     c.nodes.topology + "_" + c.progress;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char l) { return std::isalnum(l) == 0; }, '_');
  return name;
}

// One scenario for each layout. Wires and other settings are drawn; each case has another seed.
std::vector<Scenario> scenarios_of(const ChaosCase& c) {
  std::uint64_t seed = 90'000;
  for (const char letter : c.progress + std::string(name_of(c.algorithm)) + name_of(c.sums))
    seed = (seed * 31 + static_cast<unsigned char>(letter)) % 1'000'003;
  std::vector<Scenario> scenarios;
  for (const Layout layout : kLayouts) {
    ScenarioLimits limits;
    limits.max_rounds = kSanitized ? 2 : 4;
    limits.adjust = [&](ExchangeConfig& config) {
      config.algorithm = c.algorithm;
      config.node_sums = c.sums;
      config.layout = layout;
    };
    scenarios.push_back(make_scenario(c.nodes, seed++, limits));
  }
  return scenarios;
}

class UnderChaos : public testing::TestWithParam<ChaosCase> {};

TEST_P(UnderChaos, EveryOutputEqualsTheOracle) {
  const NetworkChaos chaos(1, GetParam().progress);
  for (const Scenario& scenario : scenarios_of(GetParam()))
    run_scenario(Mode::kThreads, scenario, {.halves = true, .delays = true});
  chaos.expect_transports(kLayouts.size() * GetParam().nodes.of_rank.size());
}

INSTANTIATE_TEST_SUITE_P(Nodes, UnderChaos, testing::ValuesIn(chaos_cases()), chaos_name);

TEST(ChaosSuite, CrossesEveryWireByEveryAlgorithm) {
  if (kSanitized) GTEST_SKIP() << "draws the same as without sanitizers";
  std::map<Algorithm, std::map<Wire, int>> wires;
  std::map<Algorithm, std::map<CombineWire, int>> combine_wires;
  for (const ChaosCase& c : chaos_cases()) {
    for (const Scenario& scenario : scenarios_of(c)) {
      ++wires[c.algorithm][scenario.config.wire];
      ++combine_wires[c.algorithm][scenario.config.combine_wire];
    }
  }
  for (const Algorithm algorithm : kAlgorithms) {
    EXPECT_EQ(wires[algorithm].size(), 6U) << name_of(algorithm);
    EXPECT_EQ(combine_wires[algorithm].size(), 4U) << name_of(algorithm);
  }
}

// ---- ten thousand exchanges, and nothing grows

// Exchanges in all tests below together. Sanitizers make them ten times slower.
int num_exchanges() {
  return std::max(20, static_cast<int>((kSanitized ? 1000 : 10'000) * stress_scale()));
}
constexpr int kTests = 4;
// After a quarter of the exchanges there are buffers for the largest operation and the deepest
// queue.
constexpr int kWarmUpShare = 4;  // a quarter
// How much the heap, and resident memory, may have grown when all groups are gone: next to nothing.
constexpr std::int64_t kDust = std::int64_t{128} << 10;
constexpr std::int64_t kResidentDust = std::int64_t{1} << 20;
// How much more that may be while a group lives: it may have needed a bounded number of further
// buffers (MessageChannel, 256 KiB each). A leak of 100 bytes for each packet would be more than
// that.
constexpr std::int64_t kMoreBuffers = std::int64_t{6} << 20;

// What this process holds.
struct Holdings {
  std::int64_t descriptors = 0;
  std::int64_t heap_bytes = 0;
  std::int64_t resident_bytes = 0;
};

// One arena for all threads: leaks would be hidden by the memory that each thread leaves unused in
// an arena of its own.
[[maybe_unused]] const int kOneArena = mallopt(M_ARENA_MAX, 1);

Holdings holdings() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  malloc_trim(0);
  const struct mallinfo2 heap = mallinfo2();
  std::int64_t pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident_pages;
  return {.descriptors = std::distance(begin(open), end(open)),
          .heap_bytes = static_cast<std::int64_t>(heap.uordblks + heap.hblkhd),
          .resident_bytes = resident_pages * sysconf(_SC_PAGESIZE)};
}

std::ostream& operator<<(std::ostream& stream, const Holdings& held) {
  return stream << held.descriptors << " descriptors, " << (held.heap_bytes >> 10)
                << " KiB of heap, " << (held.resident_bytes >> 10) << " KiB resident";
}

void expect_no_growth(const Holdings& warm, const Holdings& end, std::int64_t buffers) {
  EXPECT_GT(warm.descriptors, 0) << "not measured";
  EXPECT_EQ(end.descriptors, warm.descriptors);
  if (kSanitized) return;  // they keep memory of their own
  std::cout << "warm: " << warm << "; in the end: " << end << "\n";
  EXPECT_LE(end.heap_bytes, warm.heap_bytes + buffers + kDust);
  EXPECT_LE(end.resident_bytes, warm.resident_bytes + buffers + kResidentDust);
}

// One for each algorithm, of small shapes and some tens of rounds.
std::vector<Scenario> small_scenarios(const Nodes& nodes, std::uint64_t seed) {
  std::vector<Scenario> scenarios;
  for (const Algorithm algorithm : kAlgorithms) {
    ScenarioLimits limits{.max_rounds = 40, .max_tokens = 6, .max_hidden = 24, .wide_rows = false};
    limits.adjust = [algorithm](ExchangeConfig& config) {
      config.algorithm = algorithm;
      config.depth = std::min(config.depth, 2);
    };
    scenarios.push_back(make_scenario(nodes, seed++, limits));
  }
  return scenarios;
}

int count_exchanges(const std::vector<Scenario>& scenarios) {
  std::size_t combines = 0;
  for (const Scenario& scenario : scenarios) {
    for (const Round& round : scenario.rounds) combines += round.combines.size();
  }
  return static_cast<int>(combines);
}

// Plays the same rounds, but by other calls and in another order in each `lap`.
void play_lap(Exchange& exchange, int rank, Scenario scenario, int lap) {
  scenario.seed += 1000 * static_cast<std::uint64_t>(lap);
  play(exchange, rank, scenario, {.halves = true, .delays = true});
}

void run_on(const Nodes& nodes, const Body& body, const std::string& context) {
  GroupOptions options;
  options.deadline = std::chrono::seconds(60);
  options.topology = nodes.topology;
  run_ranks(Mode::kThreads, static_cast<int>(nodes.of_rank.size()), body, context, options);
}

class Endurance : public testing::TestWithParam<const char*> {};

TEST_P(Endurance, ManyGroupsLeaveNothingBehind) {
  const NetworkChaos chaos(2, GetParam());
  std::vector<std::vector<Scenario>> scenarios;  // [shapes]
  for (const Nodes& nodes : shapes()) scenarios.push_back(small_scenarios(nodes, 92'000));
  const int wanted = num_exchanges() / kTests;
  std::optional<Holdings> warm;
  for (int group = 0, done = 0; done < wanted && !HasFailure(); ++group) {
    const std::vector<Scenario>& played = scenarios[group % scenarios.size()];
    const auto body = [&](const Group& member) {
      for (const Scenario& scenario : played) {
        Exchange exchange(member, scenario.config);
        play_lap(exchange, member.rank(), scenario, group);
      }
    };
    run_on(played[0].nodes, body, "group " + std::to_string(group));
    done += count_exchanges(played);
    if (!warm && done >= wanted / kWarmUpShare) warm = holdings();
  }
  expect_no_growth(warm.value_or(Holdings{}), holdings(), 0);
  chaos.expect_bad();
}

TEST_P(Endurance, OneGroupDoesNotGrow) {
  const NetworkChaos chaos(3, GetParam());
  const Nodes nodes = nodes_of("rack:2,host:2+1,rank:1+1+2");
  const std::vector<Scenario> scenarios = small_scenarios(nodes, 95'000);
  const int laps = std::max(2, num_exchanges() / kTests / count_exchanges(scenarios) + 1);
  Holdings warm, end;  // rank 0's to write
  const auto body = [&](Group group) {
    const auto note = [&group](Holdings& what) {
      require_ok(group.barrier(), "barrier before the count");
      if (group.rank() == 0) what = holdings();
      require_ok(group.barrier(), "barrier after the count");
    };
    std::deque<Exchange> exchanges;
    for (const Scenario& scenario : scenarios) exchanges.emplace_back(group, scenario.config);
    for (int lap = 0; lap < laps; ++lap) {
      for (std::size_t i = 0; i < scenarios.size(); ++i)
        play_lap(exchanges[i], group.rank(), scenarios[i], lap);
      if (lap == laps / kWarmUpShare) note(warm);
    }
    note(end);
  };
  run_on(nodes, body, "one group");
  expect_no_growth(warm, end, kMoreBuffers);
  chaos.expect_bad();
}

INSTANTIATE_TEST_SUITE_P(Progress, Endurance, testing::ValuesIn(kProgress),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ferry::test
