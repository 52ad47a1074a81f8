// Handshakes between hosts: which proofs are accepted, and which are not.
#include "bootstrap/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ferry/status.h"

namespace ferry::internal {
namespace {

using Side = Handshake::Side;

const Secret kOurs("sixteen or more characters");
const Secret kTheirs("another secret of the kind");

// Both sides of one connection; the member's secret may be another.
struct Sides {
  explicit Sides(const Secret& members = kOurs) : member(members, Side::kMember) {
    EXPECT_TRUE(coordinator.take_share(member.share()));
    EXPECT_TRUE(member.take_share(coordinator.share()));
  }
  Handshake coordinator{kOurs, Side::kCoordinator}, member;
};

TEST(Secret, ThatIsShortIsRefusedWithoutBeingNamed) {
  try {
    Secret("fifteen letters");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "FERRY_SECRET has 15 characters, need 16 or more");
  }
}

TEST(Secret, OfBlanksOrFewCharactersIsRefused) {
  for (const std::string& text :
       {std::string(16, ' '), std::string(40, 'x'), std::string(" \t \n \t  abc       ")}) {
    try {
      Secret{text};
      FAIL() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("different characters without blanks, need 4"),
                std::string::npos)
          << error.what();
    }
  }
  Secret("1234 of other things");
}

TEST(Handshake, BothSidesAreConvinced) {
  const Sides sides;
  EXPECT_EQ(sides.coordinator.open(sides.member.seal("I am rank 1")), "I am rank 1");
  EXPECT_EQ(sides.member.open(sides.coordinator.seal("")), "");
}

TEST(Handshake, WhatIsSaidIsNotReadOnTheWay) {
  const Sides sides;
  const std::string sealed = sides.member.seal("the host is alpha");
  EXPECT_THAT(sealed, testing::Not(testing::HasSubstr("alpha")));
  EXPECT_THAT(sealed, testing::Not(testing::HasSubstr("host")));
}

TEST(Handshake, AnotherSecretAndEveryChangedByteAreFound) {
  const Sides sides, strange(kTheirs);
  EXPECT_FALSE(strange.coordinator.open(strange.member.seal("I am rank 1")));
  EXPECT_FALSE(strange.member.open(strange.coordinator.seal("I am rank 0")));
  std::string sealed = sides.member.seal("I am rank 1");
  for (std::size_t at = 0; at < sealed.size(); ++at) {
    sealed[at] = static_cast<char>(sealed[at] ^ 1);
    EXPECT_FALSE(sides.coordinator.open(sealed)) << at;
    sealed[at] = static_cast<char>(sealed[at] ^ 1);
  }
  EXPECT_FALSE(sides.coordinator.open(sealed.substr(0, 15)));
  EXPECT_TRUE(sides.coordinator.open(sealed));
}

TEST(Handshake, WhatIsSaidOnOneConnectionServesOnNoOther) {
  const Sides first, second;
  const std::string sealed = first.member.seal("I am rank 1");
  EXPECT_FALSE(second.coordinator.open(sealed)) << "replayed";
  EXPECT_FALSE(first.member.open(sealed)) << "reflected";
  Handshake third(kOurs, Side::kCoordinator);
  EXPECT_FALSE(third.open(sealed)) << "no share has come";
  EXPECT_TRUE(third.take_share(first.member.share()));
  EXPECT_FALSE(third.open(sealed)) << "replayed with its share";
}

// A side that pretends to be the other, with that side's own share and text.
TEST(Handshake, AReflectedShareConvincesNobody) {
  Handshake member(kOurs, Side::kMember);
  ASSERT_TRUE(member.take_share(member.share()));
  EXPECT_FALSE(member.open(member.seal("I am rank 1")));
}

TEST(Handshake, SharesOfOneSecretHaveNothingInCommon) {
  const Handshake first(kOurs, Side::kCoordinator), second(kOurs, Side::kCoordinator);
  ASSERT_EQ(first.share().size(), Handshake::kShareBytes);
  int equal = 0;
  for (std::size_t at = 1; at < Handshake::kShareBytes; ++at)
    equal += first.share()[at] == second.share()[at] ? 1 : 0;
  EXPECT_LT(equal, 8) << "of 64 random bytes";
}

TEST(Handshake, WhatIsNoShareIsFound) {
  Handshake member(kOurs, Side::kMember);
  EXPECT_FALSE(member.take_share(""));
  EXPECT_FALSE(member.take_share(std::string(65, '\0')));
  EXPECT_FALSE(member.take_share(std::string(64, 'x')));
  std::string off_the_curve = member.share();
  off_the_curve.back() = static_cast<char>(off_the_curve.back() ^ 1);
  EXPECT_FALSE(member.take_share(off_the_curve));
  EXPECT_FALSE(member.open(std::string(32, 'x')));
}

}  // namespace
}  // namespace ferry::internal
