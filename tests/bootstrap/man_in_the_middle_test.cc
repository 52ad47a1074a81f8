// A process between the hosts that changes the bytes of ranks while they meet: each change is an
// error of the rank that it reaches, and no text can be read on the way.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bootstrap/forked.h"
#include "bootstrap/hello.h"
#include "bootstrap/man_in_the_middle.h"

namespace ferry::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using Kind = Tamper::Kind;

constexpr int kSize = 3, kAttacked = 1;  // the rank whose connection to rank 0 is attacked
constexpr Direction kDirections[] = {Direction::kToCoordinator, Direction::kToMember};
constexpr Kind kKinds[] = {Kind::kFlip, Kind::kDrop,   Kind::kRepeat,
                           Kind::kSwap, Kind::kInsert, Kind::kCut};

// The result of one rank: "met", unless a text differs from the one that its rank sent.
std::string converse(const TcpEndpoint& endpoint, int rank, int size, const Deadline& deadline) {
  const auto rendezvous = tcp_rendezvous(endpoint, rank, one_node(size), deadline);
  const auto text = [](int of, int round) { return fmt::format("round {} of rank {}", round, of); };
  for (int round = 0; round < 3; ++round) {
    const auto texts = rendezvous->all_gather(text(rank, round), deadline);
    for (int peer = 0; peer < size; ++peer) {
      if (texts.at(static_cast<std::size_t>(peer)) != text(peer, round)) return "mixed";
    }
  }
  return "met";
}

struct Meeting {
  std::vector<std::string> results;  // by rank; empty: it crashed
  std::array<std::size_t, 2> bytes;  // by direction
  std::int64_t ns;
};

Meeting meet_with(const Tamper& tamper, milliseconds span, int size = kSize) {
  const int port = free_port();
  const Descriptor listener = tcp_listen("lo", 0);
  Traffic& traffic = shared_traffic();
  Forked proxy([&]() -> std::string { Proxy(listener, port, tamper, traffic).run(); });
  const std::int64_t begin = now_ns();
  Meeting meeting;
  meeting.results = in_processes(ranks(size), [&](int rank) {
    const TcpEndpoint endpoint = endpoint_at(rank == kAttacked ? port_of(listener) : port);
    return converse(endpoint, rank, size, soon(span));
  });
  meeting.ns = now_ns() - begin;
  meeting.bytes = {traffic[0], traffic[1]};
  munmap(&traffic, sizeof traffic);
  return meeting;
}

std::string named(const Tamper& tamper, const Meeting& meeting) {
  return fmt::format(
      "kind {}, {} bytes at {} of {}, {}: {}", static_cast<int>(tamper.kind), tamper.bytes,
      tamper.at, meeting.bytes[static_cast<int>(tamper.direction)],
      tamper.direction == Direction::kToMember ? "to the member" : "to the coordinator",
      fmt::join(meeting.results, " | "));
}

// Hellos have process ids, whose lengths may differ by this many digits.
constexpr std::size_t kPidDigits = 7;
// How many bytes are dropped, repeated or swapped. The record of a header has as many.
constexpr std::size_t kSpan = 40;
// Changes begin at least so many bytes before the end, so that all bytes that they affect arrive.
constexpr std::size_t kLastBytes = 2 * kSpan + kPidDigits;

// The bytes of the handshake: both sides send a share and a hello, of this length on this host;
// then all frames are sealed. The coordinator sends two frames for that.
std::size_t handshake_bytes(Direction direction) {
  constexpr std::size_t kHeaderBytes = 24;
  const TcpEndpoint endpoint = endpoint_at(1);
  const int rank = direction == Direction::kToMember ? 0 : kAttacked;
  const std::size_t hello = encode(own_hello(endpoint.group, rank, one_node(kSize))).size();
  const std::size_t frames = direction == Direction::kToMember ? 2 : 1;
  return frames * kHeaderBytes + Handshake::kShareBytes + hello + RecordCipher::kTagBytes;
}

// No rank crashes, accepts a changed text or waits past the deadline; the rank that the change
// reaches reports it.
void expect_found(const Tamper& tamper, milliseconds span) {
  const Meeting meeting = meet_with(tamper, span);
  const bool is_sealed = tamper.at >= handshake_bytes(tamper.direction) + kPidDigits;
  SCOPED_TRACE(named(tamper, meeting));
  const int reached = tamper.direction == Direction::kToMember ? kAttacked : 0;
  for (const std::string& result : meeting.results)
    EXPECT_THAT(result, AnyOf("met", StartsWith("peer_lost: "), StartsWith("timeout: ")));
  EXPECT_NE(meeting.results[reached], "met");
  if (is_sealed && tamper.kind == Kind::kFlip) {
    EXPECT_THAT(meeting.results[reached], HasSubstr("was changed on the way"));
  }
  EXPECT_LT(meeting.ns, 10'000'000'000 + std::chrono::nanoseconds(span).count());
}

// The bytes of a meeting without an attack.
std::array<std::size_t, 2> undisturbed() {
  const Meeting meeting = meet_with({}, seconds(20));
  EXPECT_THAT(meeting.results, Each("met"));
  return meeting.bytes;
}

TEST(ManInTheMiddle, WhoOnlyListensChangesNothing) {
  const auto bytes = undisturbed();
  for (const Direction direction : kDirections)
    EXPECT_GT(bytes[static_cast<int>(direction)], handshake_bytes(direction));
}

// Every byte with FERRY_EVERY_BYTE, else some.
std::size_t stride(std::size_t usual) { return getenv("FERRY_EVERY_BYTE") ? 1 : usual; }

TEST(ManInTheMiddle, AChangeOfTheHandshakeIsNotBelieved) {
  for (const Direction direction : kDirections) {
    for (std::size_t at = 0; at < handshake_bytes(direction) - kPidDigits; at += stride(97))
      expect_found({.kind = Kind::kFlip, .direction = direction, .at = at}, milliseconds(400));
  }
}

TEST(ManInTheMiddle, AChangeAfterTheHandshakeIsFound) {
  const auto bytes = undisturbed();
  for (const Direction direction : kDirections) {
    const std::size_t begin = handshake_bytes(direction) + kPidDigits;
    const std::size_t end = bytes[static_cast<int>(direction)] - kLastBytes;
    int kind = 0;
    for (std::size_t at = begin; at < end; at += stride(43))
      expect_found({kKinds[kind++ % std::size(kKinds)], direction, at, kSpan}, milliseconds(600));
  }
}

// An attack that made ferry 0.2 crash: a rank that received another place of itself found no rank
// on its host, not even itself.
TEST(ManInTheMiddle, CannotReadOrChangeWhereRanksAre) {
  const std::string text = boot_id();
  std::string by = text;
  by[0] = by[0] == '0' ? '1' : '0';
  for (const Direction direction : kDirections) {
    const Tamper tamper{.kind = Kind::kReplace, .direction = direction, .text = text, .by = by};
    for (const int size : {2, 3}) {
      const Meeting meeting = meet_with(tamper, seconds(5), size);
      EXPECT_THAT(meeting.results, Each("met")) << named(tamper, meeting);
    }
  }
}

}  // namespace
}  // namespace ferry::internal
