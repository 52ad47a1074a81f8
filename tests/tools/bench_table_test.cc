// The tables and sentences that `ferry bench` prints.
#include <gmock/gmock.h>

#include "tools/bench/measure.h"

namespace ferry::bench {
namespace {

std::string line_of(std::vector<double> rounds_us) {
  Measurement measurement;
  measurement.limit.rounds_us = std::move(rounds_us);
  return table_line({}, measurement);
}

TEST(Table, SaysThatTheMemoryChangedItsSpeed) {
  using ::testing::HasSubstr;
  using ::testing::Not;
  EXPECT_THAT(line_of({100, 130}), HasSubstr("known took 100 us before the ranks ran and 130 us"));
  EXPECT_THAT(line_of({130, 100}), HasSubstr("changed its speed"));
  EXPECT_THAT(line_of({100, 120}), Not(HasSubstr("changed its speed")));
  EXPECT_THAT(line_of({}), Not(HasSubstr("changed its speed")));  // ranks of several hosts
}

TEST(Table, SaysThatTheCoresWereMoved) {
  using ::testing::HasSubstr;
  Measurement measurement;
  measurement.limit.rounds_us = {100, 150};
  measurement.limit.flags_ns = {26, 27, 160, 161};
  EXPECT_THAT(table_line({}, measurement),
              HasSubstr("the cores were moved while this ran: a flag took 26 to 161 ns"));
  measurement.limit.flags_ns = {26, 27, 30, 31};
  EXPECT_THAT(table_line({}, measurement), HasSubstr("the memory changed its speed"));
}

TEST(Table, NamesTheStoresOfEachRank) {
  const auto text = [](std::vector<StoreCounts> ranks) {
    Measurement measurement;
    measurement.rows.stores = std::move(ranks);
    const std::string all = table_line({}, measurement);
    return all.substr(all.find('\n') + 1);
  };
  const StoreCounts cached{.cached = 100}, streaming{.streaming = 100}, trying{.trials = 100};
  EXPECT_EQ(text({}), "");
  EXPECT_EQ(text({{}, {}}), "");  // no timed pairs
  EXPECT_EQ(text({cached, cached}), "#   stores: cached on all ranks\n");
  EXPECT_EQ(text({cached, streaming, cached}),
            "#   stores: cached on ranks 0 2, streaming on rank 1\n"
            "#   The ranks chose differently. Compare runs with the same stores.\n");
  EXPECT_EQ(text({trying, trying}),
            "#   stores: trying on all ranks; 100 of 100 timed pairs were a trial\n");
  EXPECT_EQ(text({{.cached = 50, .streaming = 34, .trials = 16}}),
            "#   stores: both on all ranks; 16 of 100 timed pairs were a trial\n");
}

TEST(Table, CountsTheStoresOfDispatches) {
  StoreCounts counts;
  const auto add = [&](bool streaming, bool trial) {
    OperationTimes dispatch;
    dispatch.streaming_stores = streaming;
    dispatch.store_trial = trial;
    counts.add(dispatch);
  };
  add(true, true);
  add(false, true);
  EXPECT_STREQ(counts.name(), "trying");
  add(true, false);
  EXPECT_STREQ(counts.name(), "streaming");
  add(false, false);
  EXPECT_EQ(counts, (StoreCounts{.cached = 1, .streaming = 1, .trials = 2}));
}

TEST(Table, SaysThatLinesOfRebalanceUsedDifferentStores) {
  using ::testing::HasSubstr;
  using ::testing::Not;
  std::vector<Measurement> lines(3);
  for (Measurement& line : lines) line.rows.stores = {{.cached = 1}};
  EXPECT_THAT(rebalance_footer({}, lines), Not(HasSubstr("different stores")));
  lines[1].rows.stores = {{.streaming = 1}};
  EXPECT_THAT(rebalance_footer({}, lines), HasSubstr("The lines used different stores"));
}

}  // namespace
}  // namespace ferry::bench
