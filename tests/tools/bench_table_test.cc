// What `ferry bench` says in words.
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

}  // namespace
}  // namespace ferry::bench
