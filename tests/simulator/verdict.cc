// What must be true of a run, whatever its seed: every output equals the oracle (player.cc), no
// flag goes back, no call outlasts its deadline and nothing is left behind (run.cc); and here, that
// an error is told only where there is a reason, soon, and names a rank that is to blame.
#include <functional>

#include "simulator/run.h"
#include "topology/forwarding_table.h"

namespace ferry::test {

namespace {

// From a death, or a lost connection, until all know: a second, as the README says.
constexpr std::int64_t kSoonNs = 1'000'000'000;

bool excuses_errors(Fault fault) {
  return fault != Fault::kNone && fault != Fault::kSlow && fault != Fault::kPause &&
         fault != Fault::kOutage;
}

bool told_soon(Fault fault) { return fault == Fault::kDeath || fault == Fault::kCut; }

// Whether control messages of `origin` come to some rank by one that `is_stuck`, or the other way
// round.
bool passes_on(const Case& drawn, int origin, const std::function<bool(int)>& is_stuck) {
  const Topology topology = Topology::parse(drawn.scenario.nodes.topology);
  const int num_ranks = drawn.scenario.num_ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (const bool flat : {false, true}) {
      const internal::ForwardingTable table(topology, rank,
                                            std::vector<bool>(drawn.nodes().size(), true), flat);
      const int hop = table.last_hop[origin];
      if (hop != rank && is_stuck(hop)) return true;
      for (int other = 0; other < num_ranks; ++other) {
        if (is_stuck(other) && table.last_hop[other] == origin) return true;
      }
    }
  }
  return false;
}

bool is_guilty(const Case& drawn, int rank, int culprit) {
  const auto inside = [&drawn](int one) {
    return drawn.nodes()[static_cast<std::size_t>(one)] ==
           drawn.nodes()[static_cast<std::size_t>(drawn.victim)];
  };
  if (culprit < 0) return false;
  if (culprit == drawn.victim || (drawn.fault == Fault::kCut && culprit == drawn.peer)) return true;
  if (drawn.fault == Fault::kPartition && inside(rank) != inside(culprit)) return true;
  // A rank that is stuck is not told from those whose messages it passes on.
  return !told_soon(drawn.fault) && passes_on(drawn, culprit, inside);
}

// While an exchange is made a rank may wait in the rendezvous, where it moves no messages, for one
// that lingers (kLinger of between_nodes.cc).
std::int64_t soon_ns(const RankOutcome& one) {
  const bool making = one.status.message().starts_with("making");
  return kSoonNs + (making ? 2'000'000'000 : 0);
}

// Of one rank; empty: nothing.
std::string complaint(const Case& drawn, const Outcome& outcome, int rank) {
  const RankOutcome& one = outcome.ranks[static_cast<std::size_t>(rank)];
  if (!one.wrong.empty()) return one.wrong;
  if (one.status.ok()) return "";
  if (!excuses_errors(drawn.fault) || outcome.fault_ns == 0) return "an error without a fault";
  if (drawn.fault == Fault::kNoMemory) return "";
  // A rank that was stopped finds the others gone when it goes on.
  if (drawn.fault == Fault::kStop && rank == drawn.victim) return "";
  if (!is_guilty(drawn, rank, one.status.culprit())) return "a rank is blamed that is not guilty";
  if (told_soon(drawn.fault) && one.told_ns - outcome.fault_ns > soon_ns(one)) {
    return "told late";
  }
  return "";
}

}  // namespace

void judge(const Case& drawn, Outcome& outcome) {
  for (int rank = 0; rank < static_cast<int>(outcome.ranks.size()); ++rank) {
    const Status& status = outcome.ranks[static_cast<std::size_t>(rank)].status;
    const std::string wrong = complaint(drawn, outcome, rank);
    if (wrong.empty()) continue;
    outcome.wrong.push_back("rank " + std::to_string(rank) + ": " + wrong +
                            (status.ok()
                                 ? ""
                                 : std::string(": ") + code_name(status.code()) + ", culprit " +
                                       std::to_string(status.culprit()) + ": " + status.message()));
  }
}

}  // namespace ferry::test
