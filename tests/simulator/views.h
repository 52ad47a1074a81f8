// Runs of a group that loses ranks and goes on: ranks of one node or of several die, are stopped,
// leave or end the view, and the others call survive() and make more operations. Other processes
// come to take the places of lost ranks, and the others call admit() or not. An exchange that a
// rank could not make or join is made anew in the next view.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "exchange/nodes.h"
#include "ferry/config.h"
#include "simulator/run.h"

namespace ferry::test {

// What a rank does of its own accord when it has played some rounds.
enum class Whim { kNone, kLeave, kSurvive, kNewExchange };

// Processes have numbers: those of the first view are their ranks, and the others follow. Those of
// ranks that the first view lacks do nothing.
struct ViewsCase {
  struct Blow {
    Fault fault;  // kDeath, kPause, kStop, kRaise, or kOutage of its node
    int process;
    int turns;                  // of `process` before the blow
    bool in_admission = false;  // only turns in admit(), or in the join of a newcomer, count
  };
  // A process that comes to take the place of a rank, whether that rank is lost or not.
  struct Return {
    int rank;
    std::int64_t at_ns;  // since the beginning of the run
    bool joins;          // the exchange of the others, if there is one
    bool elsewhere;      // on a host of its own
  };
  // What the members do when view `view` has begun, and again when admit() has failed in it.
  struct Admit {
    bool called;
    int named;  // the one that they name, of the ranks that the view lacks; -1: all
    std::chrono::milliseconds deadline;
  };
  std::uint64_t seed = 0;
  Nodes nodes = {};
  bool one_host = true;         // the nodes are parts of one host
  std::vector<int> first = {};  // the ranks that the group begins with; empty: all
  ExchangeConfig config = {};
  std::vector<Blow> blows = {};
  std::vector<Return> returns = {};
  int num_rounds = 0;  // of each view
  std::chrono::milliseconds deadline{4000};

  int num_ranks() const { return static_cast<int>(nodes.of_rank.size()); }
  int num_processes() const { return num_ranks() + static_cast<int>(returns.size()); }
  int rank_of(int process) const;
  std::vector<int> hosts() const;  // [processes]
  bool begins_with(int rank) const;
  bool has(Fault fault) const;
  Admit admit_in(std::uint64_t view, int attempt, int num_lost) const;
  std::string describe() const;
};
ViewsCase draw_views(std::uint64_t seed);       // one node
ViewsCase draw_admissions(std::uint64_t seed);  // several nodes, to which processes come

struct ViewsOutcome {
  std::vector<std::string> wrong;
  int num_views = 1, num_rounds = 0;  // begun, and finished by a rank
  int num_remade = 0;                 // exchanges that were made in a later view
  int num_returns = 0;                // processes that asked for a place
  int num_admitted = 0;               // and got it
  int num_joins = 0;                  // exchanges of others that such a process joined
  int num_refused = 0;                // calls of admit() that ended with an error
  int num_ended = 0;                  // ranks of a part that may not go on
  std::uint64_t digest = 0, steps = 0;
};
ViewsOutcome run_views(const ViewsCase& drawn, bool trace = false);

// Whether these nodes may begin the view that follows `view`.
bool is_enough(const Nodes& nodes, const View& view, const std::set<int>& numbers);

}  // namespace ferry::test
