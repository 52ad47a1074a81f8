// The conditions that hold in every run: every output equals the oracle (player.cc); no flag goes
// back, no call outlasts its deadline and nothing remains allocated (run.cc). This file checks that
// an error is returned only where there is a reason, that it comes soon, and that it names a rank
// that is to blame.
#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>

#include "simulator/run.h"

namespace ferry::test {

namespace {

// How soon after a death or a lost connection each rank must be told: within a second, as the
// README says, and another second where operations leave ranks out, since a rank may then be
// waiting for silent ranks (kAbsentWait in protocol.cc).
constexpr std::int64_t kSoonNs = 1'000'000'000, kSilentNs = 1'000'000'000;

bool excuses_errors(Fault fault) {
  return fault != Fault::kNone && fault != Fault::kSlow && fault != Fault::kPause &&
         fault != Fault::kOutage;
}

bool told_soon(Fault fault) {
  return fault == Fault::kDeath || fault == Fault::kRaise || fault == Fault::kCut;
}

// Whether operations leave ranks out. For the ranks that leave it out, a rank that is dead or whose
// link is cut is only silent.
bool may_leave_out_silent(const Case& drawn) {
  const auto leaves_out = [](const Round& round) { return !round.inputs[0].active_ranks.empty(); };
  return drawn.scenario.silent || std::ranges::any_of(drawn.scenario.rounds, leaves_out);
}

// A rank that waits for a stopped rank may itself be left out by the others, and be told so.
bool is_left_behind(const Case& drawn, int rank, const Status& status) {
  const bool held_up = drawn.fault == Fault::kStop || drawn.fault == Fault::kPartition;
  return held_up && status.code() == Code::kMismatch && status.culprit() == rank &&
         status.message().find("the others went on without rank") != std::string::npos;
}

// Whether some error must name the stuck rank. On more than two nodes each error may name a rank
// that waits for it instead.
bool told_by_time(const Case& drawn) {
  const bool stuck = drawn.fault == Fault::kStop || drawn.fault == Fault::kPartition;
  return stuck && drawn.nodes().back() < 2;
}

bool is_guilty(const Case& drawn, int rank, int culprit) {
  const auto inside = [&drawn](int one) {
    return drawn.nodes()[static_cast<std::size_t>(one)] ==
           drawn.nodes()[static_cast<std::size_t>(drawn.victim)];
  };
  if (culprit < 0) return false;
  if (drawn.fault == Fault::kPartition) return inside(rank) != inside(culprit);
  return culprit == drawn.victim || (drawn.fault == Fault::kCut && culprit == drawn.peer);
}

// Whether the error names a guilty rank, as the culprit or as the rank by which the culprit's
// control messages come.
bool names_guilty(const Case& drawn, int rank, const Status& status) {
  if (is_guilty(drawn, rank, status.culprit())) return true;
  const std::string by = "control messages come by rank " + std::to_string(drawn.victim);
  return status.message().find(by) != std::string::npos;
}

// Whether all ranks are guilty that this rank could not send to in time; the message lists them:
// "... room of ranks 1, 2, which came to ...".
bool room_is_guilty(const Case& drawn, int rank, const Status& status) {
  constexpr std::string_view kRoom = "waiting for room of rank";
  const std::string& message = status.message();
  const std::size_t at = status.code() == Code::kTimeout ? message.find(kRoom) : message.npos;
  if (at == message.npos || message.find(" reported: ") != message.npos) return true;
  std::istringstream ranks(message.substr(at + kRoom.size()));
  for (char letter = 0; ranks.get(letter) && letter != ';' && letter != 'w';) {
    if (!std::isdigit(static_cast<unsigned char>(letter))) continue;
    if (!is_guilty(drawn, rank, letter - '0')) return false;  // no number has two digits
  }
  return true;
}

// Ranks that a message speaks of: "... ranks 1, 2, which came to ...", "ranks 3 to 5 of 6".
std::vector<int> spoken_of(const std::string& message) {
  std::vector<int> ranks;
  bool listing = false, range = false;
  std::istringstream words(message);
  for (std::string word; words >> word;) {
    if (word == "rank" || word == "ranks") {
      listing = true;
    } else if (listing && std::isdigit(static_cast<unsigned char>(word[0])) != 0) {
      const int last = std::stoi(word);
      for (int rank = range ? ranks.back() + 1 : last; rank <= last; ++rank) ranks.push_back(rank);
    } else {
      listing = listing && (word == "to" || word == "and");
    }
    range = listing && word == "to" && !ranks.empty();
  }
  return ranks;
}

// Whether `innocent`, which waits for a stuck rank, may be named in its place. A rank of another
// node cannot tell a stuck rank from a rank of the stuck rank's node that waits for it, or from a
// rank whose messages the stuck rank passes on. Then a guilty rank must occur in the error of
// `innocent`, as the culprit, or in that of the rank that names `innocent`. On more than two nodes
// the latter may speak of any rank.
bool may_seem_stuck(const Case& drawn, const Outcome& outcome, int innocent) {
  const std::vector<int>& nodes = drawn.nodes();
  if (drawn.fault != Fault::kStop && drawn.fault != Fault::kPartition) return false;
  if (innocent >= 0 && is_guilty(drawn, innocent, outcome.ranks[innocent].status.culprit()))
    return true;
  for (std::size_t rank = 0; innocent >= 0 && rank < nodes.size(); ++rank) {
    const Status& status = outcome.ranks[rank].status;
    if (status.ok() || status.culprit() != innocent || nodes[rank] == nodes[innocent]) continue;
    const std::vector<int> ranks = spoken_of(status.message());
    if (nodes.back() > 1 || std::any_of(ranks.begin(), ranks.end(), [&](int one) {
          return is_guilty(drawn, static_cast<int>(rank), one);
        }))
      return true;
  }
  return false;
}

// What is wrong with the end of one rank; empty: nothing.
std::string complaint(const Case& drawn, const Outcome& outcome, int rank) {
  const RankOutcome& one = outcome.ranks[static_cast<std::size_t>(rank)];
  if (!one.wrong.empty()) return one.wrong;
  if (one.status.ok() || one.raised) return "";
  if (!excuses_errors(drawn.fault) || outcome.fault_ns == 0) return "an error without a fault";
  if (drawn.fault == Fault::kNoMemory) return "";
  if (drawn.fault == Fault::kNoDescriptors && one.status.culprit() < 0) return "";
  // A rank that was stopped finds the others gone when it goes on.
  if (drawn.fault == Fault::kStop && rank == drawn.victim) return "";
  if (!room_is_guilty(drawn, rank, one.status)) return "a rank had room";
  const bool late = one.status.message().find("did not arrive") != std::string::npos;
  if (late && one.status.code() == Code::kPeerLost) return "a rank that is lost is called late";
  const int culprit = one.status.culprit();
  if (is_left_behind(drawn, rank, one.status)) return "";
  if (!is_guilty(drawn, rank, culprit) && !may_seem_stuck(drawn, outcome, culprit))
    return "a rank is blamed that is not guilty";
  const std::int64_t soon_ns = kSoonNs + (may_leave_out_silent(drawn) ? kSilentNs : 0);
  if (told_soon(drawn.fault) && outcome.victim_had_come && one.told_ns - outcome.fault_ns > soon_ns)
    return "told late";
  return "";
}

}  // namespace

void judge(const Case& drawn, Outcome& outcome) {
  bool told = false, named = false;
  for (int rank = 0; rank < static_cast<int>(outcome.ranks.size()); ++rank) {
    const Status& status = outcome.ranks[static_cast<std::size_t>(rank)].status;
    told = told || (!status.ok() && rank != drawn.victim);
    named = named || (!status.ok() && names_guilty(drawn, rank, status));
    const std::string wrong = complaint(drawn, outcome, rank);
    if (wrong.empty()) continue;
    outcome.wrong.push_back("rank " + std::to_string(rank) + ": " + wrong +
                            (status.ok()
                                 ? ""
                                 : std::string(": ") + code_name(status.code()) + ", culprit " +
                                       std::to_string(status.culprit()) + ": " + status.message()));
  }
  if (told && !named && told_by_time(drawn)) outcome.wrong.emplace_back("nobody names the culprit");
}

}  // namespace ferry::test
