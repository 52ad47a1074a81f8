// The rank that is named when a wait fails: one row for each state that a waiting rank may see.
#include "group/blame.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace ferry::internal {
namespace {

// Rank 0 of four ranks waits. Ranks 0 and 1 are its node; the flags of ranks 2 and 3 come by way of
// rank 1.
Seen four_ranks() {
  Seen seen{.rank = 0, .ranks = std::vector<RankSeen>(4)};
  for (int rank = 0; rank < 4; ++rank)
    seen.ranks[rank] = {.here = rank < 2, .last_hop = rank < 2 ? rank : 1, .flag = 8};
  return seen;
}

struct BlameCase {
  std::string name;
  std::function<void(Seen&)> change;
  int culprit;
};

std::ostream& operator<<(std::ostream& out, const BlameCase& one) { return out << one.name; }

std::string name_of_case(const testing::TestParamInfo<BlameCase>& info) { return info.param.name; }

class LostCulprit : public testing::TestWithParam<BlameCase> {};

TEST_P(LostCulprit, IsGoneAndHasNotGivenUp) {
  Seen seen = four_ranks();
  GetParam().change(seen);
  EXPECT_EQ(lost_culprit(seen), GetParam().culprit);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, LostCulprit,
    testing::Values(
        BlameCase{"NobodyGone", [](Seen& seen) { seen.ranks[3].missing = true; }  // namespace
                  ,
                  -1}  // namespace ferry::internal
        ,
        BlameCase{
            "MissingRankGone",
            [](Seen& seen) { seen.ranks[3] = {.missing = true, .gone = true, .last_hop = 3}; }, 3},
        BlameCase{"GoneRankThatIsNotMissing", [](Seen& seen) { seen.ranks[3].gone = true; }, -1},
        BlameCase{
            "GaveUpBeforeItWent",
            [](Seen& seen) {
              seen.ranks[1] = {
                  .missing = true, .here = true, .gone = true, .gave_up = true, .last_hop = 1};
            },
            -1},
        BlameCase{"LastHopGone",
                  [](Seen& seen) {
                    seen.ranks[3].missing = true;
                    seen.ranks[1].gone = true;
                  },
                  1},
        BlameCase{"LastHopMissingOnly",
                  [](Seen& seen) {
                    seen.ranks[3].missing = true;
                    seen.ranks[3].gone = true;
                    seen.ranks[1].missing = true;
                  },
                  -1},
        BlameCase{"LastHopThatGaveUp",
                  [](Seen& seen) {
                    seen.ranks[3].missing = true;
                    seen.ranks[1].gone = true;
                    seen.ranks[1].gave_up = true;
                  },
                  -1},
        BlameCase{"SecondMissingRankGone",
                  [](Seen& seen) {
                    seen.ranks[1].missing = true;
                    seen.ranks[2] = {.missing = true, .gone = true, .last_hop = 2};
                  },
                  2}),
    name_of_case);

class LateCulprit : public testing::TestWithParam<BlameCase> {};

TEST_P(LateCulprit, HoldsUpTheOthers) {
  Seen seen = four_ranks();
  seen.saw_waits = true;
  GetParam().change(seen);
  EXPECT_EQ(late_culprit(seen), GetParam().culprit);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, LateCulprit,
    testing::Values(BlameCase{"OneMissing", [](Seen& seen) { seen.ranks[1].missing = true; }, 1},
                    BlameCase{"RankHereThatDoesNotWait",
                              [](Seen& seen) {
                                seen.ranks[1].missing = seen.ranks[2].missing = true;
                                seen.ranks[2].flag = 4;
                              },
                              1},
                    BlameCase{"FurthestBehind",
                              [](Seen& seen) {
                                seen.ranks[1].waits_for = 0;
                                seen.ranks[2].missing = seen.ranks[3].missing = true;
                                seen.ranks[3].flag = 4;
                              },
                              3},
                    BlameCase{"WhomAWaitingRankWaitsFor",
                              [](Seen& seen) {
                                seen.ranks[1].missing = true;
                                seen.ranks[1].waits_for = 2;
                                seen.ranks[2].last_hop = 2;
                              },
                              2},
                    BlameCase{"WaitsForTheWaitingRank",
                              [](Seen& seen) {
                                seen.ranks[1].missing = true;
                                seen.ranks[1].waits_for = 0;
                              },
                              1},
                    BlameCase{"WaitsForTheNetwork",
                              [](Seen& seen) {
                                seen.ranks[1].missing = true;
                                seen.ranks[1].waits_for = 1;
                              },
                              1},
                    BlameCase{"StuckLastHop", [](Seen& seen) { seen.ranks[3].missing = true; }, 1},
                    BlameCase{"LastHopThatWaits",
                              [](Seen& seen) {
                                seen.ranks[3].missing = true;
                                seen.ranks[1].waits_for = 3;
                              },
                              3},
                    BlameCase{"ThreadPassesOn",
                              [](Seen& seen) {
                                seen.ranks[3].missing = true;
                                seen.ranks_pass_messages = false;
                              },
                              3},
                    BlameCase{"NobodyLooked",
                              [](Seen& seen) {
                                seen.ranks[3].missing = true;
                                seen.saw_waits = false;
                              },
                              3}),
    name_of_case);

struct PatientCase {
  std::string name;
  std::function<void(Seen&)> change;
  std::vector<bool> needed;
  int culprit;
};

std::ostream& operator<<(std::ostream& out, const PatientCase& one) { return out << one.name; }

class PatientWait : public testing::TestWithParam<PatientCase> {};

TEST_P(PatientWait, NamesARankThatIsNeededOrNobodyElseIsLeft) {
  Seen seen = four_ranks();
  GetParam().change(seen);
  EXPECT_EQ(lost_culprit(seen, GetParam().needed), GetParam().culprit);
}

INSTANTIATE_TEST_SUITE_P(Cases, PatientWait,
                         testing::Values(PatientCase{"NeededRankGone",
                                                     [](Seen& seen) {
                                                       seen.ranks[1].gone = true;
                                                       seen.ranks[3].missing = true;
                                                     },
                                                     {true, true, false, false},
                                                     1},
                                         PatientCase{"NeededRankGaveUp",
                                                     [](Seen& seen) {
                                                       seen.ranks[1].gone = seen.ranks[1].gave_up =
                                                           true;
                                                       seen.ranks[3].missing = true;
                                                     },
                                                     {true, true, false, false},
                                                     -1},
                                         PatientCase{"OneOfTheMissingRanksGone",
                                                     [](Seen& seen) {
                                                       seen.ranks[2].missing =
                                                           seen.ranks[3].missing =
                                                               seen.ranks[2].gone = true;
                                                     },
                                                     {true, true, false, false},
                                                     -1},
                                         PatientCase{"AllMissingRanksGone",
                                                     [](Seen& seen) {
                                                       seen.ranks[2].missing =
                                                           seen.ranks[3].missing =
                                                               seen.ranks[2].gone =
                                                                   seen.ranks[3].gone = true;
                                                     },
                                                     {true, true, false, false},
                                                     2}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ferry::internal
