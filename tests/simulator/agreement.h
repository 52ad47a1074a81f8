// Runs of a group of several nodes that loses ranks and goes on: ranks die, are stopped, leave or
// end the view, nodes are out of reach for a while, and links are cut at any moment. The others
// call survive(), in which their nodes agree on the next view, and make more operations.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "exchange/nodes.h"
#include "ferry/config.h"
#include "simulator/run.h"

namespace ferry::test {

struct AgreementCase {
  struct Blow {
    Fault fault;  // kDeath, kPause, kStop, kRaise, kOutage, kPartition or kCut
    int rank;
    int turns;                // of the rank before it
    bool in_survive = false;  // only turns in survive() count
    int part = 0;             // of a cut: the nodes on one side of it, as bits
    int other = 0;            // and those on the other side
  };
  std::uint64_t seed = 0;
  Nodes nodes = {};
  bool one_host = true;  // the nodes are parts of one host
  ExchangeConfig config = {};
  std::vector<Blow> blows = {};
  int num_rounds = 0;  // of each view
  std::chrono::milliseconds deadline{4000};

  int num_ranks() const { return static_cast<int>(nodes.of_rank.size()); }
  bool has(Fault fault) const;
  std::string describe() const;
};
AgreementCase draw_agreement(std::uint64_t seed);

struct AgreementOutcome {
  std::vector<std::string> wrong;
  int num_views = 1, num_rounds = 0;  // begun, and finished by a rank
  int num_refused = 0;                // ranks of a part that may not go on
  int num_left_behind = 0;            // ranks that others took for lost
  int num_late = 0;                   // calls of survive() that reached their deadline
  std::uint64_t digest = 0, steps = 0;
};
AgreementOutcome run_agreement(const AgreementCase& drawn, bool trace = false);

}  // namespace ferry::test
