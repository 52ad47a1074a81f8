// Draws the case of a run from its seed.
#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "simulator/run.h"

namespace ferry::test {

namespace {

constexpr std::array kFaults = {
    Fault::kNone,     Fault::kNone,          Fault::kSlow,     Fault::kPause, Fault::kOutage,
    Fault::kNoMemory, Fault::kNoDescriptors, Fault::kStop,     Fault::kDeath, Fault::kDeath,
    Fault::kRaise,    Fault::kCut,           Fault::kPartition};

std::vector<Nodes> shapes() {
  return {nodes_of("host:1,rank:3"),
          nodes_of_sizes({1, 1}),
          nodes_of_sizes({2, 1}),
          nodes_of_sizes({2, 2}),
          nodes_of_sizes({1, 1, 1}),
          nodes_of_sizes({2, 1, 3}),
          nodes_of("rack:2,host:2,rank:1"),
          nodes_of("rack:2,host:2+1,rank:1+1+2"),
          nodes_of("host:2@also1xor,rank:2"),
          nodes_of("rack:2@also1xor,host:2,rank:1")};
}

// The largest number of turns is drawn first, small or large, so that a fault is as likely while
// the group is made as later.
int draw_turns(Random& random) {
  constexpr std::array kMost = {8, 60, 250, 800};
  return static_cast<int>(random.below(random.pick(kMost)));
}

// More rows than may be under way to a rank at a time, so that senders wait for room.
void widen(ExchangeConfig& config) {
  config.max_tokens = 24;
  config.hidden = 8000;
  config.top_k = std::min(config.top_k, 2);
}

// " [0, 1] [] ..."; empty where all ranks take part in all rounds.
std::string sets_of(const Scenario& scenario) {
  std::string text;
  bool all = true;
  for (const Round& round : scenario.rounds) {
    text += fmt::format(" [{}]", fmt::join(round.inputs[0].active_ranks, ", "));
    all = all && round.inputs[0].active_ranks.empty();
  }
  return all ? "" : ", sets" + text;
}

}  // namespace

const char* name_of(Fault fault) {
  constexpr std::array kNames = {"no fault",       "slow", "pause", "outage",    "no memory",
                                 "no descriptors", "stop", "death", "exception", "cut",
                                 "partition"};
  return kNames[static_cast<std::size_t>(fault)];
}

std::string Case::describe() const {
  return std::string(name_of(fault)) + " of rank " + std::to_string(victim) + " after " +
         std::to_string(turns) + " turns" +
         (fault == Fault::kCut ? ", with rank " + std::to_string(peer) : "") + ", on " +
         scenario.nodes.topology + (split_host ? ", nodes of one host" : "") +
         (halves ? ", halves" : "") + (strangers ? ", strangers" : "") +
         (scenario.silent ? ", silent ranks" : "") + (num_exchanges > 1 ? ", two exchanges" : "") +
         sets_of(scenario);
}

Case draw_case(std::uint64_t seed, bool sequences) {
  Random random(seed, 6000);
  Case drawn;
  ScenarioLimits limits{.max_rounds = 3, .max_tokens = 5, .max_hidden = 20, .wide_rows = false};
  // A stream of its own: the other cases stay what they were.
  limits.sequence = sequences && Random(seed, 6001).one_in(2);
  if (limits.sequence) limits.max_rounds = 6;
  const bool wide = random.one_in(12);
  limits.adjust = [wide](ExchangeConfig& config) {
    config.workers = 1;
    if (wide) widen(config);
  };
  drawn.scenario = make_scenario(random.pick(shapes()), seed, limits);
  const std::int64_t num_ranks = drawn.scenario.num_ranks;
  drawn.fault = random.pick(kFaults);
  drawn.victim = static_cast<int>(random.below(num_ranks));
  drawn.peer = static_cast<int>((drawn.victim + 1 + random.below(num_ranks - 1)) % num_ranks);
  drawn.turns = draw_turns(random);
  drawn.halves = random.one_in(2);
  drawn.strangers = random.one_in(3);
  drawn.num_exchanges = random.one_in(3) ? 2 : 1;
  drawn.split_host = random.one_in(3);
  if (drawn.fault == Fault::kStop || drawn.fault == Fault::kPartition)
    drawn.deadline = std::chrono::milliseconds(400);
  return drawn;
}

}  // namespace ferry::test
