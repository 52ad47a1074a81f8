// simulate <seed>: one run with its trace, and the errors of its ranks. simulate <first> <count>:
// many runs; each that fails is printed with the command that replays it. With one of these words
// before the numbers the runs are others. views: groups that lose ranks and go on (views.h);
// admissions: the same on several nodes; agreement: groups of several nodes that may be cut apart
// (agreement.h). FERRY_LOG prints more.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "simulator/agreement.h"
#include "simulator/one_processor.h"
#include "simulator/run.h"
#include "simulator/views.h"

namespace {

using namespace ferry::test;

// For each fault: the runs, those in which it struck, and those in which a rank was told an error.
struct Tally {
  int runs = 0, struck = 0, told = 0;
};

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

// The seeds to run, and the command that runs one of them again.
struct Seeds {
  std::uint64_t first, runs;
  bool many;  // else one, with its trace
  std::string replay;
};

// Runs each seed: `draw` makes its case, `run` plays it, and `add` takes case and outcome. Prints
// what went wrong. Returns (seeds that went wrong, turns).
template <typename Draw, typename Run, typename Add>
std::pair<std::uint64_t, std::uint64_t> play(const Seeds& seeds, const Draw& draw, const Run& run,
                                             const Add& add) {
  std::uint64_t bad = 0, steps = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.runs; ++seed) {
    const auto drawn = draw(seed);
    if (!seeds.many) std::printf("%s\n", drawn.describe().c_str());
    const auto outcome = run(drawn, !seeds.many);
    add(drawn, outcome);
    const auto number = static_cast<unsigned long long>(seed);
    for (const std::string& wrong : outcome.wrong)
      std::printf("seed %llu: %s\n", number, wrong.c_str());
    if (!outcome.wrong.empty())
      std::printf("  (%s)\n  replay: %s %llu\n", drawn.describe().c_str(), seeds.replay.c_str(),
                  number);
    bad += outcome.wrong.empty() ? 0 : 1;
    steps += outcome.steps;
  }
  return {bad, steps};
}

int simulate_cases(const Seeds& seeds) {
  std::map<Fault, Tally> tallies;
  const auto [bad, steps] = play(
      seeds, [](std::uint64_t seed) { return draw_case(seed); },
      [](const Case& drawn, bool trace) { return run_case(drawn, trace); },
      [&](const Case& drawn, const Outcome& outcome) {
        if (!seeds.many) tell_ranks(outcome);
        count(drawn, outcome, tallies);
      });
  for (const auto& [fault, tally] : tallies)
    std::printf("%-10s %7d runs, %7d struck, %7d with an error told\n", name_of(fault), tally.runs,
                tally.struck, tally.told);
  return end(bad, seeds.runs, steps);
}

int simulate_views(const Seeds& seeds, ViewsCase (*draw)(std::uint64_t seed)) {
  int views = 0, rounds = 0, remade = 0, returns = 0, admitted = 0, joins = 0, refused = 0,
      ended = 0;
  const auto [bad, steps] =
      play(seeds, draw, run_views, [&](const ViewsCase& /*drawn*/, const ViewsOutcome& one) {
        views += one.num_views, rounds += one.num_rounds, remade += one.num_remade;
        returns += one.num_returns, admitted += one.num_admitted;
        joins += one.num_joins, refused += one.num_refused, ended += one.num_ended;
      });
  std::printf(
      "%d views, %d rounds finished by a rank, %d exchanges made by a rank in a later view\n",
      views, rounds, remade);
  std::printf(
      "%d processes came to take a place, %d were admitted, %d of them joined an exchange; admit() "
      "ended %d times with an error on a rank; %d ranks were in a part that may not go on\n",
      returns, admitted, joins, refused, ended);
  return end(bad, seeds.runs, steps);
}

int simulate_agreement(const Seeds& seeds) {
  int views = 0, rounds = 0, remade = 0, refused = 0, left_behind = 0, late = 0;
  const auto [bad, steps] = play(
      seeds, [](std::uint64_t seed) { return draw_agreement(seed); }, run_agreement,
      [&](const AgreementCase& /*drawn*/, const AgreementOutcome& one) {
        views += one.num_views, rounds += one.num_rounds, remade += one.num_remade,
            refused += one.num_refused;
        left_behind += one.num_left_behind, late += one.num_late;
      });
  std::printf(
      "%d views, %d rounds finished by a rank, %d exchanges made by a rank in a later view\n",
      views, rounds, remade);
  std::printf(
      "%d ranks were in a part that may not go on, %d were left behind, %d calls of survive() "
      "reached their deadline\n",
      refused, left_behind, late);
  return end(bad, seeds.runs, steps);
}

}  // namespace

int main(int argc, char** argv) {
  use_one_processor();
  std::string program = argv[0];
  const std::string_view kind = argc > 1 ? argv[1] : "";
  const bool named = kind == "views" || kind == "admissions" || kind == "agreement";
  if (named) {
    program += " " + std::string(kind);
    ++argv, --argc;
  }
  const bool many = argc > 2;
  const Seeds seeds{.first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0,
                    .runs = many ? std::strtoull(argv[2], nullptr, 10) : 1,
                    .many = many,
                    .replay = program};
  if (kind == "views") return simulate_views(seeds, draw_views);
  if (kind == "admissions") return simulate_views(seeds, draw_admissions);
  return kind == "agreement" ? simulate_agreement(seeds) : simulate_cases(seeds);
}
