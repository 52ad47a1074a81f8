// What `ferry bench` says in words.
#include <gmock/gmock.h>

#include "bench/measure.h"

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

}  // namespace
}  // namespace ferry::bench
