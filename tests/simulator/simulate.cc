// simulate <seed>: one run with its trace, and the errors of its ranks. simulate <first> <count>:
// many runs; each that fails is printed with the command that replays it. `simulate views` and the
// same: runs of groups that lose ranks and go on (views.h); `simulate agreement`: the same with
// groups of several nodes (agreement.h). FERRY_LOG prints more.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include "simulator/agreement.h"
#include "simulator/one_processor.h"
#include "simulator/run.h"
#include "simulator/views.h"

namespace {

using namespace ferry::test;

// What came about: of each fault, runs, those in which it struck, and those in which a rank was
// told an error.
struct Tally {
  int runs = 0, struck = 0, told = 0;
};

bool tell(const Case& drawn, const Outcome& outcome, const char* program) {
  const auto seed = static_cast<unsigned long long>(drawn.scenario.seed);
  for (const std::string& wrong : outcome.wrong)
    std::printf("seed %llu: %s\n", seed, wrong.c_str());
  if (!outcome.wrong.empty())
    std::printf("  (%s)\n  replay: %s %llu\n", drawn.describe().c_str(), program, seed);
  return outcome.wrong.empty();
}

void tell_ranks(const Outcome& outcome) {
  for (std::size_t rank = 0; rank < outcome.ranks.size(); ++rank) {
    const ferry::Status& status = outcome.ranks[rank].status;
    std::printf("rank %zu: %s %s\n", rank, ferry::code_name(status.code()),
                status.message().c_str());
  }
}

void count(const Case& drawn, const Outcome& outcome, std::map<Fault, Tally>& tallies) {
  Tally& tally = tallies[drawn.fault];
  ++tally.runs;
  if (outcome.fault_ns != 0) ++tally.struck;
  if (std::any_of(outcome.ranks.begin(), outcome.ranks.end(),
                  [](const RankOutcome& rank) { return !rank.status.ok(); }))
    ++tally.told;
}

int end(std::uint64_t bad, std::uint64_t runs, std::uint64_t steps) {
  std::printf("%llu of %llu seeds went wrong; %llu turns\n", static_cast<unsigned long long>(bad),
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(steps));
  return bad == 0 ? 0 : 1;
}

int simulate_views(std::uint64_t first, std::uint64_t runs, bool many, const char* program) {
  std::uint64_t bad = 0, steps = 0;
  int views = 0, rounds = 0, remade = 0, returns = 0, admitted = 0, joins = 0, refused = 0;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    const ViewsCase drawn = draw_views(seed);
    if (!many) std::printf("%s\n", drawn.describe().c_str());
    const ViewsOutcome outcome = run_views(drawn, !many);
    for (const std::string& wrong : outcome.wrong)
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), wrong.c_str());
    if (!outcome.wrong.empty())
      std::printf("  (%s)\n  replay: %s views %llu\n", drawn.describe().c_str(), program,
                  static_cast<unsigned long long>(seed));
    bad += outcome.wrong.empty() ? 0 : 1;
    steps += outcome.steps;
    views += outcome.num_views, rounds += outcome.num_rounds, remade += outcome.num_remade;
    returns += outcome.num_returns, admitted += outcome.num_admitted;
    joins += outcome.num_joins, refused += outcome.num_refused;
  }
  std::printf(
      "%d views, %d rounds finished by a rank, %d exchanges made by a rank in a later view\n",
      views, rounds, remade);
  std::printf(
      "%d processes came to take a place, %d were admitted, %d of them joined an exchange; admit() "
      "ended %d times with an error on a rank\n",
      returns, admitted, joins, refused);
  return end(bad, runs, steps);
}

int simulate_agreement(std::uint64_t first, std::uint64_t runs, bool many, const char* program) {
  std::uint64_t bad = 0, steps = 0;
  int views = 0, rounds = 0, refused = 0, left_behind = 0, late = 0;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    const AgreementCase drawn = draw_agreement(seed);
    if (!many) std::printf("%s\n", drawn.describe().c_str());
    const AgreementOutcome outcome = run_agreement(drawn, !many);
    for (const std::string& wrong : outcome.wrong)
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), wrong.c_str());
    if (!outcome.wrong.empty())
      std::printf("  (%s)\n  replay: %s agreement %llu\n", drawn.describe().c_str(), program,
                  static_cast<unsigned long long>(seed));
    bad += outcome.wrong.empty() ? 0 : 1;
    steps += outcome.steps;
    views += outcome.num_views, rounds += outcome.num_rounds, refused += outcome.num_refused;
    left_behind += outcome.num_left_behind, late += outcome.num_late;
  }
  std::printf("%d views, %d rounds finished by a rank\n", views, rounds);
  std::printf(
      "%d ranks were in a part that may not go on, %d were left behind, %d calls of survive() "
      "reached their deadline\n",
      refused, left_behind, late);
  return end(bad, runs, steps);
}

}  // namespace

int main(int argc, char** argv) {
  use_one_processor();
  const char* const program = argv[0];
  const bool views = argc > 1 && std::string_view(argv[1]) == "views";
  const bool agreement = argc > 1 && std::string_view(argv[1]) == "agreement";
  if (views || agreement) ++argv, --argc;
  const bool many = argc > 2;
  const std::uint64_t first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const std::uint64_t runs = many ? std::strtoull(argv[2], nullptr, 10) : 1;
  if (views) return simulate_views(first, runs, many, program);
  if (agreement) return simulate_agreement(first, runs, many, program);
  std::map<Fault, Tally> tallies;
  std::uint64_t bad = 0, steps = 0;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    const Case drawn = draw_case(seed);
    if (!many) std::printf("%s\n", drawn.describe().c_str());
    const Outcome outcome = run_case(drawn, !many);
    if (!many) tell_ranks(outcome);
    bad += tell(drawn, outcome, program) ? 0 : 1;
    steps += outcome.steps;
    count(drawn, outcome, tallies);
  }
  for (const auto& [fault, tally] : tallies)
    std::printf("%-10s %7d runs, %7d struck, %7d with an error told\n", name_of(fault), tally.runs,
                tally.struck, tally.told);
  return end(bad, runs, steps);
}
