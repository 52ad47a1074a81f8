// Runs of a group that loses ranks and goes on: ranks of one host die, are stopped, leave or end
// the view, and the others call survive() and make more operations. An exchange that a rank could
// not make is made anew in the next view.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/config.h"
#include "simulator/run.h"

namespace ferry::test {

// What a rank does of its own accord when it has played some rounds.
enum class Whim { kNone, kLeave, kSurvive, kNewExchange };

struct ViewsCase {
  struct Blow {
    Fault fault;  // kDeath, kPause, kStop or kRaise
    int rank;
    int turns;  // of the rank before it
  };
  std::uint64_t seed = 0;
  int num_ranks = 0;
  ExchangeConfig config = {};
  std::vector<Blow> blows = {};
  int num_rounds = 0;  // of each view
  std::chrono::milliseconds deadline{4000};

  bool has(Fault fault) const;
  std::string describe() const;
};
ViewsCase draw_views(std::uint64_t seed);

struct ViewsOutcome {
  std::vector<std::string> wrong;
  int num_views = 1, num_rounds = 0;  // begun, and finished by a rank
  int num_remade = 0;                 // exchanges that were made in a later view
  std::uint64_t digest = 0, steps = 0;
};
ViewsOutcome run_views(const ViewsCase& drawn, bool trace = false);

}  // namespace ferry::test
