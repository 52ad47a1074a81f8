// Sealed connections: records that are changed, repeated, omitted, reordered or taken from another
// connection are found, each at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "bootstrap/connection.h"
#include "bootstrap/handshake.h"
#include "bootstrap/meeting.h"

namespace ferry::internal {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

using Side = Handshake::Side;

constexpr std::size_t kHeaderBytes = 24 + RecordCipher::kTagBytes;
constexpr std::size_t kPieceBytes = (64 << 10) + RecordCipher::kTagBytes;

struct Keys {
  Keys() {
    const Secret secret("sixteen or more characters");
    Handshake one(secret, Side::kMember), other(secret, Side::kCoordinator);
    EXPECT_TRUE(one.take_share(other.share()) && other.take_share(one.share()));
    member = one.record_keys();
    coordinator = other.record_keys();
  }
  RecordKeys member, coordinator;
};

std::array<int, 2> socket_pair() {
  std::array<int, 2> ends{-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  return ends;
}

// A connection, and the end of its socket that the test holds.
struct End {
  explicit End(const std::array<int, 2>& ends = socket_pair())
      : socket(ends[0]), connection(Descriptor(ends[1])) {}
  explicit End(const RecordKeys& keys) : End() {
    connection.protect(keys);
    connection.trust();
  }

  std::string sent() {
    std::string bytes(1 << 20, '\0');
    std::size_t count = 0;
    do {
      const ssize_t got = recv(socket.fd(), bytes.data() + count, bytes.size() - count, 0);
      count += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
      connection.advance();
    } while (connection.unsent());
    const ssize_t got = recv(socket.fd(), bytes.data() + count, bytes.size() - count, 0);
    return bytes.substr(0, count + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  // The payloads of the frames that come with these bytes.
  std::vector<std::string> received(const std::string& bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += 100'000) {
      write_to(socket, bytes.substr(at, 100'000));
      connection.advance();
    }
    std::vector<std::string> payloads;
    while (auto frame = connection.take()) payloads.push_back(std::move(frame->payload));
    return payloads;
  }

  Descriptor socket;
  Connection connection;
};

std::string records_of(const RecordKeys& keys, const std::vector<std::string>& payloads) {
  End end(keys);
  for (const std::string& payload : payloads)
    end.connection.send(FrameKind::kGather, 1, std::string(payload));
  return end.sent();
}

// The records of frames of three bytes: a header and a payload each.
constexpr std::size_t kFrameBytes = kHeaderBytes + 3 + RecordCipher::kTagBytes;

TEST(SealedConnection, FramesOfAnyLengthCross) {
  const Keys keys;
  const std::string large(300'000, 'x');
  const std::string records = records_of(keys.member, {"one", "", large, "two"});
  EXPECT_THAT(records, Not(testing::HasSubstr("xxxxxxxx")));  // three may be there by chance
  EXPECT_EQ(records.size(), 4 * kHeaderBytes + 2 * (3 + 16) + large.size() + 5 * 16);
  End whole(keys.coordinator), pieces(keys.coordinator);
  EXPECT_THAT(whole.received(records), ElementsAre("one", "", large, "two"));
  EXPECT_FALSE(whole.connection.closed());
  std::vector<std::string> frames;
  for (std::size_t at = 0; at < records.size(); at += 977)
    for (std::string& payload : pieces.received(records.substr(at, 977)))
      frames.push_back(std::move(payload));
  EXPECT_THAT(frames, ElementsAre("one", "", large, "two"));
}

TEST(SealedConnection, EveryChangedBitIsFoundAndWhatCameBeforeIsKept) {
  const Keys keys;
  const std::string records = records_of(keys.member, {"one", "two"});
  ASSERT_EQ(records.size(), 2 * kFrameBytes);
  for (std::size_t bit = 0; bit < 8 * records.size(); ++bit) {
    std::string changed = records;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    End end(keys.coordinator);
    const auto frames = end.received(changed);
    EXPECT_EQ(frames.size(), bit / 8 < kFrameBytes ? 0u : 1u) << bit;
    EXPECT_TRUE(end.connection.tampered()) << bit;
    EXPECT_TRUE(end.connection.closed()) << bit;
    EXPECT_THAT(end.received(records), IsEmpty()) << "nothing is read after that";
  }
}

TEST(SealedConnection, RecordsInAnotherOrderRepeatedOrLeftOutAreFound) {
  const Keys keys, others;
  const std::string large(100'000, 'x');
  const auto record = records_of(keys.member, {"one", "two", large});
  const std::string one = record.substr(0, kFrameBytes);
  const std::string two = record.substr(kFrameBytes, kFrameBytes);
  const std::string header = record.substr(2 * kFrameBytes, kHeaderBytes);
  const std::string first = record.substr(2 * kFrameBytes + kHeaderBytes, kPieceBytes);
  const std::string second = record.substr(2 * kFrameBytes + kHeaderBytes + kPieceBytes);
  const std::string reflected = records_of(keys.coordinator, {"one", "two"});
  const std::string elsewhere = records_of(others.member, {"one", "two"});
  for (const std::string& records :
       {two + one, one + one, two, one + header + first + second,
        one + two + header + second + first, one + two + header + first + first,
        one + two + first + second, one.substr(kHeaderBytes) + two,
        one + reflected.substr(kFrameBytes), reflected, elsewhere,
        one + elsewhere.substr(kFrameBytes), "x" + one, one + "x" + two,
        one + std::string(kHeaderBytes, '\0'),
        one + two + header + std::string(kPieceBytes, 'x')}) {
    End end(keys.coordinator);
    for (const std::string& payload : end.received(records))
      EXPECT_THAT(payload, testing::AnyOf("one", "two"));
    EXPECT_TRUE(end.connection.tampered()) << records.size();
  }
}

// An attacker can end the connection, in the middle of a frame too: no other frame comes of it.
TEST(SealedConnection, CutAnywhereGivesWholeFramesOnly) {
  const Keys keys;
  const std::string records = records_of(keys.member, {"one", "two"});
  for (std::size_t bytes = 0; bytes < records.size(); ++bytes) {
    End end(keys.coordinator);
    auto frames = end.received(records.substr(0, bytes));
    EXPECT_EQ(frames.size(), bytes / kFrameBytes) << bytes;
    EXPECT_FALSE(end.connection.closed()) << bytes;
    shutdown(end.socket.fd(), SHUT_WR);
    EXPECT_THAT(end.received(""), IsEmpty());
    end.connection.advance();
    EXPECT_TRUE(end.connection.closed()) << bytes;
  }
}

TEST(SealedConnection, AFailureCanStillBeSentWhereNothingMoreIsHeard) {
  const Keys keys;
  End end(keys.coordinator), other(keys.member);
  end.received(std::string(kFrameBytes, 'x'));
  ASSERT_TRUE(end.connection.tampered());
  end.connection.send_failure(Error(Code::kPeerLost, "why", 1));
  EXPECT_THAT(other.received(end.sent()), ElementsAre(testing::EndsWith("why")));
}

TEST(SealedConnection, FramesInClearBehindTheHandshakeAreNotHeard) {
  const Keys keys;
  End clear, before, member;
  clear.connection.send(FrameKind::kGather, 1, std::string("one"));
  clear.connection.send(FrameKind::kGather, 1, std::string("two"));
  const std::string frames = clear.sent();
  before.connection.advance();
  write_to(before.socket, frames);
  before.connection.advance();
  before.connection.protect(keys.coordinator);
  EXPECT_TRUE(before.connection.tampered());

  End coordinator;
  coordinator.connection.send(FrameKind::kProof, 0, std::string("proof"));
  EXPECT_THAT(member.received(coordinator.sent() + frames), ElementsAre("proof"));
  member.connection.protect(keys.member);
  EXPECT_TRUE(member.connection.tampered());
  EXPECT_THAT(member.received(""), IsEmpty());
}

// The last frames of a peer may come with its proof, and the end of the connection behind them.
TEST(SealedConnection, WhatCameWithTheProofIsHeardAfterTheEnd) {
  const Keys keys;
  End coordinator, member;
  coordinator.connection.send(FrameKind::kProof, 0, std::string("proof"));
  coordinator.connection.protect(keys.coordinator);
  coordinator.connection.send(FrameKind::kFailure, 0, std::string("why"));
  write_to(member.socket, coordinator.sent());
  shutdown(member.socket.fd(), SHUT_WR);
  member.connection.advance();
  EXPECT_THAT(member.received(""), ElementsAre("proof"));
  member.connection.protect(keys.member);
  EXPECT_THAT(member.received(""), ElementsAre("why"));
}

// A member may give up before it has the proof. Its error comes with its hello.
TEST(SealedConnection, AnErrorBehindTheHelloIsHeard) {
  const Keys keys;
  End coordinator, member;
  coordinator.connection.await_keys_behind(FrameKind::kHello);
  member.connection.send(FrameKind::kHello, 0, std::string("hello"));
  member.connection.seal(keys.member.seal);
  member.connection.send(FrameKind::kFailure, 0, std::string("why"));
  EXPECT_THAT(coordinator.received(member.sent()), ElementsAre("hello"));
  coordinator.connection.protect(keys.coordinator);
  EXPECT_FALSE(coordinator.connection.tampered());
  EXPECT_THAT(coordinator.received(""), ElementsAre("why"));
}

}  // namespace
}  // namespace ferry::internal
