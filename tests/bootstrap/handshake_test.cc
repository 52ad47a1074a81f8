// Proofs between hosts: what convinces, and what does not.
#include "bootstrap/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ferry/status.h"

namespace ferry::internal {
namespace {

using Side = Handshake::Side;

const Secret kOurs("sixteen or more characters");
const Secret kTheirs("another secret of the kind");

struct Meeting {
  Handshake coordinator, member;
  explicit Meeting(const Secret& secret = kOurs) {
    member.challenged(coordinator.challenge(secret));
  }
};

TEST(Secret, IsHmacSha256) {
  // RFC 4231, test case 3: a key of 20 bytes 0xaa, 50 bytes 0xdd.
  const Secret secret(std::string(20, '\xaa'));
  EXPECT_EQ(hex(secret.sign(std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
}

TEST(Secret, ThatIsShortIsRefusedWithoutBeingNamed) {
  try {
    Secret("fifteen letters");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "FERRY_SECRET has 15 characters, need 16 or more");
  }
}

TEST(Secret, DigestsTellSecretsApart) {
  EXPECT_EQ(kOurs.digest().size(), 8u);
  EXPECT_NE(kOurs.digest(), kTheirs.digest());
}

TEST(Handshake, BothSidesAreConvinced) {
  Meeting meeting;
  const std::string said = meeting.member.prove(Side::kMember, kOurs, "I am rank 1");
  EXPECT_EQ(meeting.coordinator.proven(Side::kMember, kOurs, said), "I am rank 1");
  const std::string back = meeting.coordinator.prove(Side::kCoordinator, kOurs, "I am rank 0");
  EXPECT_EQ(meeting.member.proven(Side::kCoordinator, kOurs, back), "I am rank 0");
}

TEST(Handshake, AnotherSecretAndEveryChangedByteAreFound) {
  Meeting meeting;
  std::string said = meeting.member.prove(Side::kMember, kOurs, "I am rank 1");
  EXPECT_FALSE(Handshake(meeting.coordinator).proven(Side::kMember, kTheirs, said));
  for (std::size_t at = 0; at < said.size(); ++at) {
    said[at] = static_cast<char>(said[at] ^ 1);
    EXPECT_FALSE(Handshake(meeting.coordinator).proven(Side::kMember, kOurs, said)) << at;
    said[at] = static_cast<char>(said[at] ^ 1);
  }
  EXPECT_FALSE(meeting.coordinator.proven(Side::kMember, kOurs, said.substr(0, 63)));
}

TEST(Handshake, ProofsOfOneConnectionServeInNoOther) {
  Meeting first, second;
  const std::string said = first.member.prove(Side::kMember, kOurs, "I am rank 1");
  EXPECT_FALSE(second.coordinator.proven(Side::kMember, kOurs, said)) << "replayed";
  EXPECT_FALSE(first.member.proven(Side::kCoordinator, kOurs, said)) << "reflected";
}

TEST(Handshake, WhatIsNoChallengeIsFound) {
  Handshake member;
  EXPECT_FALSE(member.challenged(""));
  EXPECT_FALSE(member.challenged(std::string(40, 'x')));
  EXPECT_EQ(member.challenged(std::string(32, 'x') + "0123abcd"), "0123abcd");
}

}  // namespace
}  // namespace ferry::internal
