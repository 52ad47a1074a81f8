// No count of a large group grows faster than its law (laws.cc), from 64 ranks to 256 and where one
// other size grows. docs/scale.md has the laws, docs/lab/scale.md the counts.
#include <gtest/gtest.h>

#include <map>

#include "base/names.h"
#include "simulator/counts.h"
#include "simulator/one_processor.h"

namespace ferry::test {
namespace {

[[maybe_unused]] const bool kOneProcessor = (use_one_processor(), true);

// How much more than its law a count may grow: pages are whole, and a message has a head.
constexpr double kSlack = 1.2;

Shape shape_of(const std::string& topology, int num_experts) {
  return {.topology = topology, .num_experts = num_experts};
}

const std::vector<Count>& counted(const Shape& shape) {
  static std::map<std::string, std::vector<Count>> known;
  const std::string name = shape.topology + " " + std::to_string(shape.num_experts) + " " +
                           std::to_string(shape.tokens) + layout_name(shape.layout);
  if (known.contains(name)) return known[name];
  const ScaleCounts counts = count(shape);
  for (const std::string& wrong : counts.wrong) ADD_FAILURE() << shape.topology << ": " << wrong;
  return known[name] = counts_of(shape, counts);
}

void expect_laws(const Shape& small, const Shape& large) {
  const std::vector<Count>&before = counted(small), &after = counted(large);
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    ASSERT_EQ(before[i].name, after[i].name);
    EXPECT_LE(after[i].value, before[i].value * after[i].law / before[i].law * kSlack)
        << before[i].name << " is " << before[i].value << " on " << small.topology
        << ", and grows faster than " << before[i].law_name;
  }
}

TEST(Scale, MoreRanksOnEachHost) {
  expect_laws(shape_of("host:8,rank:8", 256), shape_of("host:8,rank:32", 256));
}

TEST(Scale, MoreHosts) {
  expect_laws(shape_of("host:8,rank:8", 256), shape_of("host:32,rank:8", 256));
}

// A rank has mates in the other racks and on the other hosts of its own.
TEST(Scale, MoreRacksAndHosts) {
  expect_laws(shape_of("rack:4,host:2,rank:8", 256), shape_of("rack:8,host:4,rank:8", 256));
}

TEST(Scale, SecondWays) {
  expect_laws(shape_of("host:8@also1xor,rank:8", 256), shape_of("host:16@also1xor,rank:8", 256));
}

TEST(Scale, MoreExperts) {
  expect_laws(shape_of("host:8,rank:8", 64), shape_of("host:8,rank:8", 1024));
}

TEST(Scale, MoreTokens) {
  Shape small = shape_of("host:8,rank:8", 256), large = small;
  small.tokens = 4;
  large.tokens = 32;
  expect_laws(small, large);
}

TEST(Scale, RankMajor) {
  Shape small = shape_of("host:8,rank:4", 256), large = shape_of("host:8,rank:16", 256);
  small.layout = large.layout = Layout::kRankMajor;
  expect_laws(small, large);
}

}  // namespace
}  // namespace ferry::test
