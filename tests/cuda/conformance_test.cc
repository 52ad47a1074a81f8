// The conformance suite on a device: random exchanges of ranks that are threads, and of ranks that
// are processes, equal the oracle bit for bit.
#include <gtest/gtest.h>

#include "cuda/device_case.h"
#include "exchange/frame.h"

namespace ferry::test {
namespace {

constexpr int kRanks[] = {1, 2, 3, 4, 7, 8};

void play(Mode mode, int num_ranks, std::uint64_t seed, const PlayChoices& choices) {
  const Scenario scenario = cuda_scenario(num_ranks, seed);
  run_ranks(mode, num_ranks, [&](const Group& group) { play_on_cuda(group, scenario, choices); },
            scenario.describe(), {.deadline = std::chrono::seconds(20)});
}

class CudaConformance : public testing::TestWithParam<int> {};

TEST_P(CudaConformance, WholeCallsEqualTheOracle) {
  FERRY_NEED_DEVICE();
  for (std::uint64_t seed = 0; seed < 25; ++seed) play(Mode::kThreads, GetParam(), seed, {});
}

TEST_P(CudaConformance, HalvesWithoutWaitingEqualTheOracle) {
  FERRY_NEED_DEVICE();
  for (std::uint64_t seed = 100; seed < 125; ++seed)
    play(Mode::kThreads, GetParam(), seed, {.halves = true, .wait_for_counts = false});
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaConformance, testing::ValuesIn(kRanks),
                         [](const auto& info) { return std::to_string(info.param); });

// Processes take turns on a device, so this test has few processes and few rounds.
TEST(CudaProcesses, OfOneDeviceEqualTheOracle) {
  FERRY_NEED_DEVICE();
  for (std::uint64_t seed = 200; seed < 203; ++seed) play(Mode::kProcesses, 2, seed, {});
}

}  // namespace
}  // namespace ferry::test
