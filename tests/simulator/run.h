// One run of a simulation: the case that is drawn from a seed, and the conditions that must hold in
// it.
//   case.cc       what is drawn         run.cc        the ranks, and the fault
//   verdict.cc    what must be true
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "exchange/scenario.h"
#include "simulator/choices.h"

namespace ferry::test {

enum class Fault {
  kNone,
  kSlow,           // a rank takes ten times as long for everything
  kPause,          // a rank is stopped, and goes on long before the deadline
  kOutage,         // nothing comes in or out of a node for a while, as in kPause
  kNoMemory,       // memory is refused now and then
  kNoDescriptors,  // a rank may open a few more descriptors, then none
  kStop,           // a rank is stopped until long after the deadline
  kDeath,          // a rank's process dies
  kRaise,          // a rank ends by an exception of its own
  kCut,            // the connection of two ranks is lost for good
  kPartition,      // nothing comes in or out of a node any more
};
const char* name_of(Fault fault);

struct Case {
  Scenario scenario;  // of one worker
  Fault fault = Fault::kNone;
  int victim = 0, peer = 0;  // ranks; of a cut both, of a node any of it
  // Turns of the victim before the fault; -1: each turn may be the one, by a choice.
  int turns = 0;
  bool halves = false, strangers = false;
  int num_exchanges = 1;  // one after the other
  std::chrono::milliseconds deadline{4000};

  bool split_host = false;  // the nodes are parts of one host

  const std::vector<int>& nodes() const { return scenario.nodes.of_rank; }
  bool one_host() const { return split_host || nodes().back() == 0; }
  // [ranks]
  std::vector<int> hosts() const { return one_host() ? std::vector<int>(nodes().size()) : nodes(); }
  std::string describe() const;
};
// `sequences`: in half of the cases the active ranks of its rounds are a sequence
// (scenario_sets.h).
Case draw_case(std::uint64_t seed, bool sequences = true);

// What became of a rank.
struct RankOutcome {
  std::string wrong;  // what no fault excuses; empty: nothing
  Status status;      // of the call that ended it
  bool joined = false, raised = false;
  std::int64_t told_ns = 0;
};

struct Outcome {
  std::vector<std::string> wrong;
  std::vector<RankOutcome> ranks;
  std::int64_t fault_ns = 0;     // 0: the fault did not come about
  bool victim_had_come = false;  // the others knew the victim by then
  std::uint64_t digest = 0, steps = 0;
};

Outcome run_case(const Case& drawn, Choices& choices, bool trace = false);
// With choices that are drawn from the seed of the case.
Outcome run_case(const Case& drawn, bool trace = false);

// Adds to `wrong` what the ranks, which have ended, did or were told wrongly.
void judge(const Case& drawn, Outcome& outcome);

}  // namespace ferry::test
