// The comparisons of the frame: their messages, and no message where nothing differs.
#include <gmock/gmock.h>

#include <array>

#include "frame.h"

namespace ferry::test {
namespace {

TEST(Comparisons, TextsAreMadeWhereSomethingDiffers) {
  int made = 0;
  const auto what = [&] { return "row " + std::to_string(++made); };
  const std::array<std::uint8_t, 2> seen = {1, 2}, expected = {1, 3};
  require_same_bytes(seen.data(), seen.data(), seen.size(), what);
  require_equal<std::uint8_t>(seen, seen, what);
  EXPECT_EQ(made, 0);
  EXPECT_THAT([&] { require_same_bytes(seen.data(), expected.data(), seen.size(), what); },
              testing::ThrowsMessage<Failure>("row 1: byte 1 of 2 is 2 instead of 3"));
  EXPECT_THAT([&] { require_equal<std::uint8_t>(seen, expected, what); },
              testing::ThrowsMessage<Failure>("row 2: element 1 is 2 instead of 3"));
  EXPECT_THAT([&] { require_equal<std::uint8_t>(seen, std::span(expected).first(1), "a text"); },
              testing::ThrowsMessage<Failure>("a text: 2 elements instead of 1"));
}

}  // namespace
}  // namespace ferry::test
