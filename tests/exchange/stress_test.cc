// Ten thousand exchanges (dispatch and combine pairs) of random shapes, with delays and another
// order of receive halves on each rank. FERRY_STRESS scales their number.
#include <gtest/gtest.h>

#include <algorithm>

#include "player.h"

namespace ferry::test {
namespace {

constexpr int kExchanges = kSanitized ? 2'000 : 10'000;
constexpr int kRoundsAtMost = 40;
constexpr int kExchangesPerGroup = 4;

ScenarioLimits small_shapes() {
  return {.max_rounds = kRoundsAtMost, .max_tokens = 6, .max_hidden = 24, .wide_rows = false};
}

// Plays scenarios, several on one group, until `num_exchanges` are through.
void stress(Mode mode, int num_exchanges, std::uint64_t seed) {
  Random random(seed);
  for (int done = 0; done < num_exchanges;) {
    const int num_ranks = static_cast<int>(random.between(1, 8));
    std::vector<Scenario> scenarios;
    for (int i = 0; i < kExchangesPerGroup; ++i) {
      scenarios.push_back(make_scenario(num_ranks, seed++, small_shapes()));
      for (const Round& round : scenarios.back().rounds)
        done += static_cast<int>(round.combines.size());
    }
    GroupOptions options;
    options.deadline = std::chrono::seconds(60);
    const auto body = [&scenarios](Group group) {
      for (const Scenario& scenario : scenarios)
        play(group, scenario, {.halves = true, .delays = true});
    };
    run_ranks(mode, num_ranks, body, "seeds up to " + std::to_string(seed), options);
    if (testing::Test::HasFailure()) return;
  }
}

int scaled(int number) { return std::max(20, static_cast<int>(number * stress_scale())); }

TEST(StressThreads, RandomShapesDelaysAndOrders) {
  stress(Mode::kThreads, scaled(kExchanges / 2), 500'000);
}

TEST(StressProcesses, RandomShapesDelaysAndOrders) {
  stress(Mode::kProcesses, scaled(kExchanges / 2), 700'000);
}

}  // namespace
}  // namespace ferry::test
