// Whole runs from seeds: waiting, protocol, control messages, forwarding and leaving on virtual
// time and a virtual network. docs/protocol.md, "Whole runs from a seed", says how.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "exchange/frame.h"
#include "simulator/agreement.h"
#include "simulator/one_processor.h"
#include "simulator/run.h"
#include "simulator/views.h"

namespace ferry::test {
namespace {

[[maybe_unused]] const bool kOneProcessor = (use_one_processor(), true);

// Twenty thousand are in `make check` (simulate.cc).
constexpr std::uint64_t kSeeds = kSanitized ? 60 : 600;

void expect_right(const Outcome& outcome, const std::string& context) {
  for (const std::string& wrong : outcome.wrong) ADD_FAILURE() << context << ": " << wrong;
}

TEST(Simulator, EverySeedEndsAsItMust) {
  std::map<Fault, int> told;  // of each fault, the runs in which a rank was told an error
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Case drawn = draw_case(seed);
    const Outcome outcome = run_case(drawn);
    expect_right(outcome, "replay with: build/<preset>/tests/simulator/simulate " +
                              std::to_string(seed) + " (" + drawn.describe() + ")");
    for (const RankOutcome& rank : outcome.ranks) {
      if (rank.status.ok()) continue;
      ++told[drawn.fault];
      break;
    }
  }
  for (const Fault fault :
       {Fault::kNoMemory, Fault::kStop, Fault::kDeath, Fault::kCut, Fault::kPartition})
    EXPECT_GT(told[fault], 0) << "no " << name_of(fault) << " had a consequence";
}

// Each seed went wrong once. A rank was stuck while ranks joined, made an exchange or waited for
// room, and nobody, or a rank that waited, was named for it. A rank that gave up was named in place
// of one that had died. A rank waited for one that had left. A rank gave up twice. Or no rank
// checked whether its mate of the second way was there.
TEST(Simulator, SeedsThatWereWrongOnceEndAsTheyMust) {
  for (const std::uint64_t seed :
       {6132,  8067,  8563,  10032, 12331, 12701, 20585, 21498, 30399, 32014, 33466,
        35029, 36633, 37849, 40415, 40880, 43641, 46043, 49486, 50738, 50954, 51973,
        55590, 55697, 56048, 56251, 56847, 60605, 64676, 66384, 74854, 75292, 78326,
        79127, 80160, 84146, 85738, 85806, 88543, 88732, 89318, 89552, 98015})
    expect_right(run_case(draw_case(seed, /*sequences=*/false)), "seed " + std::to_string(seed));
}

// Each seed went wrong once. A rank waited a second for a rank that had departed or had read,
// because a rank that outlived its exchange forgot who sends to it. A rank that only waited
// patiently was named. A rank read the record of a combine from a rank that had departed before the
// combine (3313292). A rank left while messages were under way to a rank that had departed and
// still passed them on (3322595). A rank that saw a lost link left a meeting without a report, and
// was named in place of the rank that had died (3331, 3364, 6237, 6626, 15559). A coordinator sent
// a reply to ranks that had given up, and did not look at the group (12442).
TEST(Simulator, RunsWithSetsThatWereWrongOnceEndAsTheyMust) {
  for (const std::uint64_t seed :
       {3050442, 3102899, 3112813, 3113160, 3313292, 3322595, 3331, 3364, 6237, 6626, 12442, 15559})
    expect_right(run_case(draw_case(seed)), "seed " + std::to_string(seed));
}

TEST(Simulator, TheSameSeedIsTheSameRun) {
  std::map<std::uint64_t, int> digests;
  constexpr std::uint64_t kTwice = kSeeds / 12;
  for (std::uint64_t seed = 0; seed < kTwice; ++seed) {
    const std::uint64_t digest = run_case(draw_case(seed)).digest;
    EXPECT_EQ(run_case(draw_case(seed)).digest, digest) << "seed " << seed;
    ++digests[digest];
  }
  EXPECT_EQ(digests.size(), kTwice) << "two seeds were the same run";
}

// Groups that lose ranks and go on.
TEST(SimulatedViews, EverySeedEndsAsItMust) {
  int views = 0, remade = 0, admitted = 0, joins = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const ViewsCase drawn = draw_views(seed);
    const ViewsOutcome outcome = run_views(drawn);
    for (const std::string& wrong : outcome.wrong)
      ADD_FAILURE() << "replay with: build/<preset>/tests/simulator/simulate views " << seed << " ("
                    << drawn.describe() << "): " << wrong;
    views += outcome.num_views;
    remade += outcome.num_remade;
    admitted += outcome.num_admitted;
    joins += outcome.num_joins;
  }
  EXPECT_GT(views, static_cast<int>(kSeeds)) << "no group went on";
  EXPECT_GT(remade, 0) << "no exchange was made in a later view";
  EXPECT_GT(admitted, 0) << "no rank came back";
  EXPECT_GT(joins, 0) << "no rank that came back joined an exchange";
}

// Each seed went wrong once. A member reached its deadline, though all had come, or all but the
// coordinator, and no rank was named.
TEST(SimulatedViews, SeedsThatWereWrongOnceEndAsTheyMust) {
  for (const std::uint64_t seed : {28437, 51844}) {
    for (const std::string& wrong : run_views(draw_views(seed)).wrong)
      ADD_FAILURE() << "seed " << seed << ": " << wrong;
  }
}

TEST(SimulatedViews, TheSameSeedIsTheSameRun) {
  for (std::uint64_t seed = 0; seed < kSeeds / 12; ++seed) {
    const ViewsCase drawn = draw_views(seed);
    EXPECT_EQ(run_views(drawn).digest, run_views(drawn).digest) << "seed " << seed;
  }
}

// The same with groups of several nodes.
TEST(SimulatedAdmissions, EverySeedEndsAsItMust) {
  int admitted = 0, joins = 0, ended = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const ViewsCase drawn = draw_admissions(seed);
    const ViewsOutcome outcome = run_views(drawn);
    for (const std::string& wrong : outcome.wrong)
      ADD_FAILURE() << "replay with: build/<preset>/tests/simulator/simulate admissions " << seed
                    << " (" << drawn.describe() << "): " << wrong;
    admitted += outcome.num_admitted;
    joins += outcome.num_joins;
    ended += outcome.num_ended;
  }
  EXPECT_GT(admitted, static_cast<int>(kSeeds) / 20) << "few ranks came back";
  EXPECT_GT(joins, 0) << "no rank that came back joined an exchange";
  EXPECT_GT(ended, 0) << "no part had too few votes";
}

// Each seed went wrong once. Ranks waited for sums that the predecessor of a newcomer had ended
// (117, 133, 149). A member that gave up in the handshake was taken for lost (3997, 4473, 9553).
// A rank reported a death, and ranks of another node raised an error of the system (9295, 33689).
// A newcomer that gave up did not leave, and one of its node that had begun the view waited for it
// (13017, 13533, 17490, 31507, 32621). A rank did not learn that another one had called survive(),
// as the rank that passed on its messages had died (36364). A rank whose links were lost waited for
// one that had given up (98515).
TEST(SimulatedAdmissions, SeedsThatWereWrongOnceEndAsTheyMust) {
  for (const std::uint64_t seed : {117, 133, 149, 3997, 4473, 9553, 9295, 33689, 13017, 13533,
                                   17490, 31507, 32621, 36364, 98515}) {
    for (const std::string& wrong : run_views(draw_admissions(seed)).wrong)
      ADD_FAILURE() << "seed " << seed << ": " << wrong;
  }
}

TEST(SimulatedAdmissions, TheSameSeedIsTheSameRun) {
  for (std::uint64_t seed = 0; seed < kSeeds / 12; ++seed) {
    const ViewsCase drawn = draw_admissions(seed);
    EXPECT_EQ(run_views(drawn).digest, run_views(drawn).digest) << "seed " << seed;
  }
}

// Groups of several nodes that are cut apart, and lose single links.
TEST(SimulatedAgreement, EverySeedEndsAsItMust) {
  int views = 0, remade = 0, refused = 0, left_behind = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const AgreementCase drawn = draw_agreement(seed);
    const AgreementOutcome outcome = run_agreement(drawn);
    for (const std::string& wrong : outcome.wrong)
      ADD_FAILURE() << "replay with: build/<preset>/tests/simulator/simulate agreement " << seed
                    << " (" << drawn.describe() << "): " << wrong;
    views += outcome.num_views;
    remade += outcome.num_remade;
    refused += outcome.num_refused;
    left_behind += outcome.num_left_behind;
  }
  EXPECT_GT(views, static_cast<int>(kSeeds)) << "no group went on";
  EXPECT_GT(remade, 0) << "no exchange was made in a later view";
  EXPECT_GT(refused, 0) << "no part had too few votes";
  EXPECT_GT(left_behind, 0) << "no rank was left behind";
}

// Each seed went wrong once. A rank that joined waited twice for a message after its deadline
// (9873). A link was lost between two ranks of nodes that other links still join, and views ended
// as soon as they began (103), or the agreement waited for a rank that is not the speaker of its
// node (191, 263). Nodes that could go on were left out (1397). A rank waited for a rank that had
// given up a later view (4016), or that had left (39137). A rank that had left wrote late messages
// over those of the next view (31828). A node was left out because of a lost link to a rank that
// had died (13977, 34189). A rank did not see a loss while it connected to meet the others (8336),
// or after they had met (36275). A node went on although it had told a rank that it may not
// (18618). No rank could tell that a rank had left (44172). A node gave up a view that was decided
// with that node in it, and the others waited for it in the next view (63422).
TEST(SimulatedAgreement, SeedsThatWereWrongOnceEndAsTheyMust) {
  const auto expect = [](const AgreementCase& drawn) {
    for (const std::string& wrong : run_agreement(drawn).wrong)
      ADD_FAILURE() << "seed " << drawn.seed << ": " << wrong;
  };
  expect(draw_agreement(9873, /*more=*/false));
  for (const std::uint64_t seed :
       {103, 191, 263, 1397, 4016, 8336, 13977, 18618, 31828, 34189, 36275, 39137, 44172, 63422})
    expect(draw_agreement(seed));
}

// One link between two nodes is lost while all ranks live: the link of the speakers, of two other
// ranks, or of a speaker and another rank. One node goes on alone, and only one view begins.
TEST(SimulatedAgreement, OfTwoNodesThatLoseALinkOneGoesOn) {
  struct Link {
    std::vector<int> sizes;  // of the nodes
    int rank, peer, outside;
  };
  for (const auto& [sizes, rank, peer, outside] :
       {Link{{2, 2}, 0, 2, 2}, Link{{2, 2}, 1, 3, 2}, Link{{1, 2}, 0, 2, 1}}) {
    for (const bool one_way : {false, true}) {
      AgreementCase drawn{.seed = 1, .nodes = nodes_of_sizes(sizes)};
      drawn.config = {.max_tokens = 2, .hidden = 4, .num_experts = 12, .top_k = 2};
      drawn.num_rounds = 30;
      drawn.whims = false;
      drawn.blows = {{.fault = Fault::kCut, .rank = rank, .turns = 150, .peer = peer}};
      drawn.blows[0].one_way = one_way;
      const AgreementOutcome outcome = run_agreement(drawn);
      for (const std::string& wrong : outcome.wrong)
        ADD_FAILURE() << drawn.describe() << ": " << wrong;
      EXPECT_EQ(outcome.num_left_behind + outcome.num_refused, outside) << drawn.describe();
      EXPECT_EQ(outcome.num_views, 2) << drawn.describe();
    }
  }
}

TEST(SimulatedAgreement, TheSameSeedIsTheSameRun) {
  for (std::uint64_t seed = 0; seed < kSeeds / 12; ++seed) {
    const AgreementCase drawn = draw_agreement(seed);
    EXPECT_EQ(run_agreement(drawn).digest, run_agreement(drawn).digest) << "seed " << seed;
  }
}

// ---- every run of a small case that leaves the ordinary course a few times: packets that come
// late, ranks that lose the processor, and a rank that dies, where they may

// Two ranks on one node and one on another.
Nodes two_and_one() { return nodes_of_sizes({2, 1}); }

ExchangeConfig small_config(Algorithm algorithm) {
  ExchangeConfig config;
  config.max_tokens = 2;
  config.hidden = 3;
  config.num_experts = 3;
  config.top_k = 2;
  config.depth = 1;
  config.workers = 1;
  config.dtype = DataType::kFp32;
  config.algorithm = algorithm;
  return config;
}

constexpr int kVictims = kSanitized ? 1 : 3;

// One dispatch and one combine: two epochs.
Case small_case(const Nodes& nodes, Algorithm algorithm, Fault fault) {
  ScenarioLimits limits{.max_rounds = 1, .max_tokens = 2, .max_hidden = 3, .wide_rows = false};
  limits.adjust = [algorithm](ExchangeConfig& config) { config = small_config(algorithm); };
  Case drawn;
  for (std::uint64_t seed = 0; drawn.scenario.rounds.empty(); ++seed) {
    Scenario scenario = make_scenario(nodes, seed, limits);
    if (scenario.plain && scenario.rounds[0].combines.size() == 1 &&
        !scenario.rounds[0].combines[0].from_tensors)
      drawn.scenario = std::move(scenario);
  }
  drawn.fault = fault;
  drawn.turns = -1;
  drawn.split_host = true;
  return drawn;
}

// One, or as many as FERRY_SIMULATOR_DEVIATIONS says.
int most_deviations() {
  const char* const text = std::getenv("FERRY_SIMULATOR_DEVIATIONS");
  return text == nullptr ? 1 : std::atoi(text);
}

std::uint64_t run_all(const Case& drawn) {
  BoundedChoices choices(most_deviations());
  std::uint64_t runs = 0;
  do {
    expect_right(run_case(drawn, choices), "run " + std::to_string(runs));
    ++runs;
  } while (choices.next() && !testing::Test::HasFailure());
  return runs;
}

TEST(SimulatorInFull, LateOrAwayAnywhere) {
  for (const Algorithm algorithm : {Algorithm::kFullmesh, Algorithm::kHierarchical}) {
    const std::uint64_t runs = run_all(small_case(two_and_one(), algorithm, Fault::kNone));
    EXPECT_GT(runs, 50U);
    std::cout << name_of(algorithm) << ": " << runs << " runs\n";
  }
}

TEST(SimulatorInFull, EachRankDiesAnywhere) {
  for (int victim = 0; victim < kVictims; ++victim) {
    Case drawn = small_case(two_and_one(), Algorithm::kHierarchical, Fault::kDeath);
    drawn.victim = victim;
    const std::uint64_t runs = run_all(drawn);
    EXPECT_GT(runs, 50U);
    std::cout << "rank " << victim << ": " << runs << " runs\n";
  }
}

// One rank on one host and two on another.
TEST(SimulatorInFull, EachRankRunsOutOfDescriptorsAnywhere) {
  for (int victim = 0; victim < kVictims; ++victim) {
    Case drawn =
        small_case(nodes_of_sizes({1, 2}), Algorithm::kHierarchical, Fault::kNoDescriptors);
    drawn.split_host = false;
    drawn.victim = victim;
    const std::uint64_t runs = run_all(drawn);
    EXPECT_GT(runs, 50U);
    std::cout << "rank " << victim << ": " << runs << " runs\n";
  }
}

TEST(SimulatorInFull, EachConnectionIsCutAnywhere) {
  for (int victim = 0; victim < kVictims; ++victim) {
    Case drawn = small_case(nodes_of_sizes({1, 1, 1}), Algorithm::kFullmesh, Fault::kCut);
    drawn.victim = victim;
    drawn.peer = (victim + 1) % 3;
    const std::uint64_t runs = run_all(drawn);
    EXPECT_GT(runs, 50U);
    std::cout << "ranks " << victim << " and " << drawn.peer << ": " << runs << " runs\n";
  }
}

}  // namespace
}  // namespace ferry::test
