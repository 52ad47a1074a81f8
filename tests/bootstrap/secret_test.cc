// Proofs between hosts: what convinces, and what does not.
#include "bootstrap/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ferry/status.h"

namespace ferry::internal {
namespace {

using Side = Handshake::Side;

const Secret kOurs("sixteen or more characters");
const Secret kTheirs("another secret of the kind");

struct Meeting {
  Handshake hub, spoke;
  explicit Meeting(const Secret& secret = kOurs) { spoke.challenged(hub.challenge(secret)); }
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
  const std::string said = meeting.spoke.prove(Side::kSpoke, kOurs, "I am rank 1");
  EXPECT_EQ(meeting.hub.proven(Side::kSpoke, kOurs, said), "I am rank 1");
  const std::string back = meeting.hub.prove(Side::kHub, kOurs, "I am rank 0");
  EXPECT_EQ(meeting.spoke.proven(Side::kHub, kOurs, back), "I am rank 0");
}

TEST(Handshake, AnotherSecretAndEveryChangedByteAreFound) {
  Meeting meeting;
  std::string said = meeting.spoke.prove(Side::kSpoke, kOurs, "I am rank 1");
  EXPECT_FALSE(Handshake(meeting.hub).proven(Side::kSpoke, kTheirs, said));
  for (std::size_t at = 0; at < said.size(); ++at) {
    said[at] = static_cast<char>(said[at] ^ 1);
    EXPECT_FALSE(Handshake(meeting.hub).proven(Side::kSpoke, kOurs, said)) << at;
    said[at] = static_cast<char>(said[at] ^ 1);
  }
  EXPECT_FALSE(meeting.hub.proven(Side::kSpoke, kOurs, said.substr(0, 63)));
}

TEST(Handshake, ProofsOfOneConnectionServeInNoOther) {
  Meeting first, second;
  const std::string said = first.spoke.prove(Side::kSpoke, kOurs, "I am rank 1");
  EXPECT_FALSE(second.hub.proven(Side::kSpoke, kOurs, said)) << "replayed";
  EXPECT_FALSE(first.spoke.proven(Side::kHub, kOurs, said)) << "reflected";
}

TEST(Handshake, WhatIsNoChallengeIsFound) {
  Handshake spoke;
  EXPECT_FALSE(spoke.challenged(""));
  EXPECT_FALSE(spoke.challenged(std::string(40, 'x')));
  EXPECT_EQ(spoke.challenged(std::string(32, 'x') + "0123abcd"), "0123abcd");
}

}  // namespace
}  // namespace ferry::internal
