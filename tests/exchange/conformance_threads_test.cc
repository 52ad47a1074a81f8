// The conformance suite with ranks as threads; ThreadSanitizer runs it.
#include <map>

#include "conformance.h"
#include "scenario.h"

namespace ferry::test {

INSTANTIATE_TEST_SUITE_P(Threads, Conformance,
                         testing::ValuesIn(conformance_cases(Mode::kThreads, {1, 2, 3, 4, 7, 8},
                                                             kSeeds)),
                         conformance_name);

TEST(ConformanceSuite, CoversEveryFeatureSeveralTimes) {
  std::map<std::string, int> found;
  for (const ConformanceCase& c : conformance_cases(Mode::kThreads, {1, 2, 3, 4, 7, 8}, kSeeds)) {
    for (const std::uint64_t first_seed : {0, 1000}) {
      const Scenario scenario =
          make_scenario(c.num_ranks, first_seed + static_cast<std::uint64_t>(c.seed));
      for (const auto& [feature, times] : scenario.features()) found[feature] += times;
    }
  }
  for (const auto& [feature, times] : found) EXPECT_GE(times, 4) << feature;
}

}  // namespace ferry::test
