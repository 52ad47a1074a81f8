// One rank of faults_test.py: joins, plays rounds of a dispatch and a combine, compares each result
// with the oracle, and prints how that ended.
//   faults_rank DEADLINE_S TOKENS ROUNDS [dispatch | combine ROUND]
// With a place to stop at it prints "stopped" there and goes on with the next line of its input.
// SIGINT interrupts its waits, as Ctrl-C does in Python. The last line that it prints is "end CODE
// CULPRIT MESSAGE".
// Variables of the environment choose other plays, which print the ranks of the last view as bits.
// FERRY_TEST_SURVIVE: it prints "stopped", plays until an error and calls survive(). In the new
// view it plays ROUNDS rounds with the first exchange and with one that is made in that view, and
// then all collectives. FERRY_TEST_ADMIT: then it also admits processes in the places of lost
// ranks, and all play. FERRY_NEWCOMER: it is such a process, and joins the first exchange.
// FERRY_GROUP_SIZE: the ranks of view 1 play ROUNDS rounds, admit the others, and all play.
// FERRY_TEST_LATER_PORTS: UCX_TCP_PORT_RANGE in later views. FERRY_TEST_CHILD, without these: it
// forks a child that outlives the rank and ends with its host.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "exchange/view_collectives.h"
#include "exchange/view_rounds.h"
#include "ferry/collectives.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 4;
constexpr int kScenarioRounds = 2;  // in a scenario; the play repeats them

struct Plan {
  double deadline_s = 0;
  std::int64_t tokens = 0;
  int rounds = 0;
  std::string stop_before;  // dispatch, combine; empty: nowhere
  int stop_round = -1;

  void stop(const char* before, int round) const {
    if (stop_before != before || stop_round != round) return;
    std::cout << "stopped" << std::endl;
    std::string line;
    std::getline(std::cin, line);
  }
};

Plan read_plan(int argc, char** argv) {
  if (argc != 4 && argc != 6) throw std::runtime_error("wrong number of arguments");
  Plan plan;
  plan.deadline_s = std::atof(argv[1]);
  plan.tokens = std::atoll(argv[2]);
  plan.rounds = std::atoi(argv[3]);
  if (argc == 6) plan.stop_before = argv[4], plan.stop_round = std::atoi(argv[5]);
  return plan;
}

ExchangeConfig config_of(const Plan& plan) {
  return {.max_tokens = plan.tokens,
          .hidden = 4096,
          .num_experts = 12,
          .top_k = 2,
          .expert_ranks = {0, 1, 2, 3},
          .algorithm = Algorithm::kHierarchical};
}

Scenario scenario_of(const Plan& plan) {
  return plain_scenario(kRanks, config_of(plan), std::min(plan.rounds, kScenarioRounds), 41);
}

Status play_rounds(Seat& seat, const Scenario& scenario, const Plan& plan) {
  for (int i = 0; i < plan.rounds; ++i) {
    const std::string what = "round " + std::to_string(i);
    const Round& round = scenario.rounds[i % kScenarioRounds];
    const DispatchCall dispatch = seat.dispatch_call(i % kScenarioRounds);
    plan.stop("dispatch", i);
    Received received;
    if (Status status = seat.exchange().dispatch(dispatch.args(), received); !status.ok())
      return status;
    check_received(scenario, round, seat.rank(), received, what);
    const CombineCall combine = seat.combine_call(i % kScenarioRounds, received.handle);
    plan.stop("combine", i);
    if (Status status = seat.exchange().combine(combine.args()); !status.ok()) return status;
    combine.check(what);
  }
  return {};
}

volatile std::sig_atomic_t signalled = 0;

void fork_child() {
  if (std::getenv("FERRY_TEST_CHILD") == nullptr || fork() != 0) return;
  for (const int stream : {0, 1, 2}) close(stream);  // else the test reads on until the child ends
  for (;;) pause();
}

// In a later view: rounds with the first exchange and with another one, then collectives of that
// view.
Status play_later_view(Group& group, Seat& first, const Plan& plan) {
  const std::vector<int>& members = group.view().members;
  const Scenario scenario = scenario_among(kRanks, config_of(plan), members, 43);
  Seat second(group, scenario);
  for (int i = 0; i < plan.rounds; ++i) {
    for (Seat* const seat : {&first, &second})
      if (Status status = play_view(group, *seat); !status.ok()) return status;
  }
  int lost = 0;
  while (std::ranges::count(members, lost)) ++lost;
  require_collectives(group, lost);
  return group.barrier();
}

// In a view of all ranks: rounds with the first exchange, one with another, then collectives.
Status play_with_all(Group& group, Seat& first, const Plan& plan) {
  for (int i = 0; i < plan.rounds; ++i)
    if (Status status = play_view(group, first); !status.ok()) return status;
  const Scenario scenario = scenario_of_sets(kRanks, config_of(plan), 43);
  Seat second(group, scenario);
  if (Status status = play_view(group, second); !status.ok()) return status;
  Collectives collectives(group);
  if (Status status = collectives.barrier(); !status.ok()) return status;
  return group.barrier();
}

// Ranks that are killed together may be lost in two views.
Status play_views(Group& group, const Plan& plan) {
  const Scenario scenario = scenario_of_sets(kRanks, config_of(plan), 41);
  Seat seat(group, scenario);
  std::cout << "stopped" << std::endl;
  Status status = play_until_error(group, seat);
  while (status.code() == Code::kPeerLost || !group.usable()) {
    if (Status survived = group.survive(); !survived.ok()) return survived;
    if (const char* const ports = std::getenv("FERRY_TEST_LATER_PORTS"))
      setenv("UCX_TCP_PORT_RANGE", ports, 1);
    try {
      status = play_later_view(group, seat, plan);
    } catch (const Error& error) {
      const Status usable = group.barrier();
      status = {error.code(), std::string(error.what()) + (usable.ok() ? "; usable" : ""),
                error.culprit()};
    }
  }
  if (status.ok() && std::getenv("FERRY_TEST_ADMIT") != nullptr) {
    if (Status admitted = group.admit(); !admitted.ok()) return admitted;
    status = play_with_all(group, seat, plan);
  }
  return status;
}

// The group begins with some of its ranks.
Status play_and_grow(Group& group, const Plan& plan) {
  const Scenario scenario = scenario_of_sets(kRanks, config_of(plan), 41);
  Seat seat(group, scenario);
  for (int i = 0; i < plan.rounds; ++i)
    if (Status status = play_view(group, seat); !status.ok()) return status;
  std::cout << "grows from " << set_of(group.view()) << std::endl;
  if (Status admitted = group.admit(); !admitted.ok()) return admitted;
  return play_with_all(group, seat, plan);
}

// Joins the first exchange of the members, and plays with it and with another one of all ranks.
Status play_as_newcomer(Group& group, const Plan& plan) {
  const Scenario scenario = scenario_of_sets(kRanks, config_of(plan), 41);
  Seat seat(group, scenario, Exchange::join(group, scenario.config));
  return play_with_all(group, seat, plan);
}

// Plays in several views; prints the ranks of the last one as bits.
Status play_in_views(Group& group, const Plan& plan) {
  const auto way = std::getenv("FERRY_NEWCOMER") != nullptr     ? play_as_newcomer
                   : std::getenv("FERRY_GROUP_SIZE") != nullptr ? play_and_grow
                                                                : play_views;
  Status status = way(group, plan);
  if (status.ok()) std::cout << "view " << set_of(group.view()) << std::endl;
  return status;
}

Status play(const Plan& plan) {
  GroupOptions options;
  options.deadline = std::chrono::nanoseconds(static_cast<std::int64_t>(plan.deadline_s * 1e9));
  options.interrupted = [] { return signalled != 0; };
  std::signal(SIGINT, [](int) { signalled = 1; });
  const Scenario scenario = scenario_of(plan);
  Group group = Group::from_environment(options);
  for (const char* const views : {"FERRY_NEWCOMER", "FERRY_GROUP_SIZE", "FERRY_TEST_SURVIVE"})
    if (std::getenv(views) != nullptr) return play_in_views(group, plan);
  Seat seat(group, scenario);
  fork_child();
  return play_rounds(seat, scenario, plan);
}

// Prints the end after play() has returned, so after the rank has left its group.
int run(int argc, char** argv) {
  Status end;
  try {
    end = play(read_plan(argc, argv));
  } catch (const Error& error) {
    end = {error.code(), error.what(), error.culprit()};
  }
  std::cout << fmt::format("end {} {} {}", code_name(end.code()), end.culprit(), end.message())
            << std::endl;
  return end.ok() ? 0 : 1;
}

}  // namespace
}  // namespace ferry::test

int main(int argc, char** argv) {
  try {
    return ferry::test::run(argc, argv);
  } catch (const std::exception& error) {  // a result that is wrong
    std::cerr << "faults_rank: " << error.what() << '\n';
    return 2;
  }
}
