// Fair rates, simulated time and bounds of schedules: by hand and on random graphs.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "plan/schedule.h"

namespace ferry::internal {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

Task task(double bytes, std::vector<Use> uses, std::vector<int> after = {}) {
  return {.what = "t", .bytes = bytes, .uses = std::move(uses), .after = std::move(after)};
}

TEST(FairRates, AThirdFlowTakesWhatTheOthersLeave) {
  // Link 0 carries two flows, one of which shares link 1 with a third.
  const Schedule schedule{.resources = {{.capacity = 10}, {.capacity = 4}},
                          .tasks = {task(1, {{0}}), task(1, {{0}, {1}}), task(1, {{1}})}};
  EXPECT_THAT(fair_rates(schedule, {0, 1, 2}),
              ElementsAre(DoubleNear(8, 1e-12), DoubleNear(2, 1e-12), DoubleNear(2, 1e-12)));
}

TEST(FairRates, AFlowWhoseBytesCostTwice) {
  const Schedule schedule{.resources = {{.capacity = 9}},
                          .tasks = {task(1, {{.resource = 0, .cost = 2}}), task(1, {{0}})}};
  EXPECT_THAT(fair_rates(schedule, {0, 1}),
              ElementsAre(DoubleNear(3, 1e-12), DoubleNear(3, 1e-12)));
}

TEST(Simulate, LatencyDelaysAStartOnce) {
  Schedule schedule{.resources = {{.capacity = 10}}, .tasks = {task(100, {{0}})}};
  schedule.tasks[0].latency_us = 5;
  EXPECT_NEAR(simulate(cut(schedule, 1)).end_us, 15, 1e-9);
  EXPECT_NEAR(simulate(cut(schedule, 20)).end_us, 15, 1e-9);
  schedule.tasks.push_back(task(100, {}, {0}));
  schedule.tasks[1].latency_us = 3;
  EXPECT_NEAR(simulate(cut(schedule, 20)).end_us, 18, 1e-9);
}

// Eight partly linked cards, each of which sends 100 bytes to every other over links of 64
// bytes/us. All cards are equal, so one link to a mate and one to a peer represent all links. A
// mate passes on the rows for its three peers; the mate's own rows are sent first or last.
Schedule relay(bool barrier, bool own_last) {
  const Use mate{.resource = 0}, peer{.resource = 1};
  Schedule schedule{.resources = {{.capacity = 64}, {.capacity = 64}},
                    .tasks = {task(100, {peer})}};
  auto& tasks = schedule.tasks;
  for (int i = 1; i <= 4; ++i) {
    tasks.push_back(task(100, {mate}));
    if (i > 1) tasks.back().previous = i - 1;
  }
  // Each of three peers receives its rows over a link of its own; the last link decides.
  tasks.push_back(task(100, {peer}, {own_last ? 3 : 4}));
  tasks.back().streamed = false;
  if (barrier) tasks.back().after = {0, 1, 2, 3, 4};
  return schedule;
}

TEST(Relay, TwoStepsAndABarrierReach102) {
  EXPECT_NEAR(800 / simulate(relay(true, false)).end_us, 102.4, 1e-9);
}

TEST(Relay, TheMatesOwnRowsLastReach128WhichNoOrderBeats) {
  EXPECT_NEAR(800 / simulate(relay(false, true)).end_us, 128, 1e-9);
  EXPECT_NEAR(800 / bound_us(relay(false, true)), 128, 1e-9);
  EXPECT_NEAR(800 / simulate(relay(false, false)).end_us, 102.4, 1e-9);
}

TEST(Cut, ManyChunksMeetTheFluidLimit) {
  const Schedule schedule{
      .resources = {{.capacity = 10}, {.capacity = 20}, {.capacity = 5}},
      .tasks = {task(1000, {{0}}), task(1000, {{1}}, {0}), task(1000, {{2}}, {1})}};
  double before = simulate(cut(schedule, 1)).end_us;
  EXPECT_NEAR(before, 100 + 50 + 200, 1e-9);
  for (const int chunks : {2, 8, 64, 1024}) {
    const double now = simulate(cut(schedule, chunks)).end_us;
    EXPECT_LT(now, before);
    before = now;
  }
  EXPECT_NEAR(before, bound_us(schedule), 0.001 * before);
}

TEST(Bound, AResourceNeedsTheTimeOfAllItsTasksOnceTheFirstCanStart) {
  Schedule schedule{.resources = {{.capacity = 10}, {.capacity = 10}},
                    .tasks = {task(100, {{0}}), task(100, {{0}}), task(50, {{1}})}};
  for (Task& each : schedule.tasks) each.latency_us = 3;
  EXPECT_NEAR(bound_us(schedule), 23, 1e-9);
  EXPECT_NEAR(simulate(schedule).end_us, 23, 1e-9);
}

// Tasks on random resources, after random earlier tasks.
Schedule random_schedule(std::mt19937& random) {
  const auto number = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  Schedule schedule;
  for (int i = number(1, 6); i > 0; --i)
    schedule.resources.push_back({.capacity = number(0, 9) == 0 ? 0.0 : number(1, 100)});
  for (int i = 0, count = number(1, 12); i < count; ++i) {
    Task next = task(number(0, 1000), {});
    next.latency_us = number(0, 3);
    next.streamed = number(0, 1) == 1;
    for (int r = 0; r < std::ssize(schedule.resources); ++r) {
      if (number(0, 2) > 0) continue;
      const double share = number(1, 3), cost = number(0, 3) == 0 ? 1.5 : 1;
      next.uses.push_back({.resource = r, .share = share, .cost = cost});
    }
    for (int before = 0; before < i; ++before)
      if (number(0, 4) == 0) next.after.push_back(before);
    schedule.tasks.push_back(next);
  }
  return schedule;
}

// Rates are fair if a task can go faster only when a task that is no faster goes slower: every task
// uses a full resource on which no task is faster.
void expect_fair(const Schedule& schedule) {
  std::vector<int> active(schedule.tasks.size());
  for (std::size_t i = 0; i < active.size(); ++i) active[i] = static_cast<int>(i);
  const std::vector<double> rates = fair_rates(schedule, active);
  std::vector<double> used(schedule.resources.size()), fastest(schedule.resources.size());
  for (std::size_t i = 0; i < rates.size(); ++i) {
    for (const Use& use : schedule.tasks[i].uses) {
      if (schedule.resources[use.resource].capacity <= 0) continue;
      used[use.resource] += rates[i] * use.share * use.cost;
      fastest[use.resource] = std::max(fastest[use.resource], rates[i]);
    }
  }
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (std::isinf(rates[i])) continue;
    EXPECT_TRUE(std::ranges::any_of(schedule.tasks[i].uses,
                                    [&](const Use& use) {
                                      const double capacity =
                                          schedule.resources[use.resource].capacity;
                                      return capacity > 0 &&
                                             used[use.resource] > capacity * (1 - 1e-9) &&
                                             rates[i] > fastest[use.resource] * (1 - 1e-9);
                                    }))
        << "task " << i;
  }
  for (std::size_t r = 0; r < used.size(); ++r) {
    if (schedule.resources[r].capacity <= 0) continue;
    EXPECT_LE(used[r], schedule.resources[r].capacity * (1 + 1e-9));
  }
}

TEST(Random, FairAndNeverBelowTheBoundOnTenThousandGraphs) {
  std::mt19937 random(20261122);
  int bound_met = 0;
  for (int i = 0; i < 10000 && !HasFailure(); ++i) {
    const Schedule schedule = random_schedule(random);
    SCOPED_TRACE(i);
    expect_fair(schedule);
    const double bound = bound_us(schedule);
    for (const int chunks : {1, 3}) {
      const double end = simulate(cut(schedule, chunks)).end_us;
      ASSERT_GE(end, bound * (1 - 1e-9));
      bound_met += end <= bound * (1 + 1e-9) ? 1 : 0;
    }
  }
  EXPECT_GT(bound_met, 2000);  // the bound is often exact
}

}  // namespace
}  // namespace ferry::internal
