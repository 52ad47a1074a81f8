// The conformance suite between nodes, with ranks as threads of one process.
#include "conformance.h"

namespace ferry::test {

constexpr int kSeedsOfAShape = 24;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSeedsPlayed = 8;  // a second each
#else
constexpr int kSeedsPlayed = kSeedsOfAShape;
#endif

INSTANTIATE_TEST_SUITE_P(Threads, Conformance,
                         testing::ValuesIn(conformance_cases(Mode::kThreads, every_shape(),
                                                             kSeedsPlayed)),
                         conformance_name);

INSTANTIATE_TEST_SUITE_P(MatesByLinks, Conformance,
                         testing::ValuesIn(conformance_cases(
                             Mode::kThreads,
                             std::vector{nodes_of("rack:2@3xor,host:2@1xor,rank:2"),
                                         nodes_of("rack:2@pairs0-6+1-5+2-4+3-7,host:2,rank:2"),
                                         nodes_of("host:3@pairs0-2+0-4+2-5+1-3+1-5+3-4,rank:2")},
                             4)),
                         conformance_name);

INSTANTIATE_TEST_SUITE_P(TwoWays, Conformance,
                         testing::ValuesIn(conformance_cases(
                             Mode::kThreads,
                             std::vector{nodes_of("host:2@also1xor,rank:2"),
                                         nodes_of("host:3@10GB/s@1xor@also0xor5GB/s,rank:2"),
                                         nodes_of("rack:2@also3xor,host:2@1xor,rank:2"),
                                         nodes_of("rack:2@3xor@also0xor,host:2,rank:2"),
                                         nodes_of("rack:2@also1xor,host:1+2,rank:4+2+2")},
                             4)),
                         conformance_name);

TEST(ConformanceSuite, CoversEveryFeatureBetweenNodes) {
  const std::map<std::string, int> found =
      features_found(conformance_cases(Mode::kThreads, every_shape(), kSeedsOfAShape));
  for (const auto& [feature, times] : found) EXPECT_GE(times, 4) << feature;
}

}  // namespace ferry::test
