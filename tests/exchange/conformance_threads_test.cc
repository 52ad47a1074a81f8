// The conformance suite with ranks as threads; ThreadSanitizer runs it, except for the count of
// features.
#include "conformance.h"

namespace ferry::test {

INSTANTIATE_TEST_SUITE_P(Threads, Conformance,
                         testing::ValuesIn(conformance_cases(Mode::kThreads, {1, 2, 3, 4, 7, 8},
                                                             kSeeds)),
                         conformance_name);

TEST(ConformanceSuite, CoversEveryFeatureSeveralTimes) {
  const std::map<std::string, int> found =
      features_found(conformance_cases(Mode::kThreads, {1, 2, 3, 4, 7, 8}, kSeeds));
  for (const auto& [feature, times] : found) EXPECT_GE(times, 4) << feature;
}

}  // namespace ferry::test
