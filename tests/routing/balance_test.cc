// Balance: the example of EPLB's page, packs of one item, and refused arguments.
#include "routing/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ferry/status.h"

namespace ferry::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<float> kLoads[] = {{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
                                     {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}};

TEST(Balance, HasTheResultOfThePublishedExample) {
  const BalanceShape shape{.num_slots = 16, .num_groups = 4, .num_nodes = 2, .num_ranks = 8};
  EXPECT_THAT(balance(kLoads[0], shape).expert,
              ElementsAre(5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1));
  EXPECT_THAT(balance(kLoads[1], shape).expert,
              ElementsAre(7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1));
}

TEST(Balance, PacksOfOneItemKeepTheirOrder) {
  const Packed packed = pack_evenly(std::vector<float>{1, 5, 3}, 3);
  EXPECT_THAT(packed.pack, ElementsAre(0, 1, 2));
  EXPECT_THAT(packed.position, ElementsAre(0, 0, 0));
}

TEST(Balance, RefusesCountsThatDoNotDivide) {
  const auto refusal = [](const BalanceShape& shape) {
    try {
      static_cast<void>(balance(kLoads[0], shape));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(refusal({.num_slots = 15, .num_ranks = 4}), HasSubstr("15 is not divisible by 4"));
  EXPECT_THAT(refusal({.num_slots = 8, .num_ranks = 4}), HasSubstr("8 replicas of 12 experts"));
  EXPECT_THAT(refusal({.num_slots = 16, .num_groups = 5}), HasSubstr("12 is not divisible by 5"));
}

}  // namespace
}  // namespace ferry::internal
