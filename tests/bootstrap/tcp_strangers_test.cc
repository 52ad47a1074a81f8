// Other processes at the port of a group: wrong secrets, other jobs, garbage, silence.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "bootstrap/connection.h"
#include "bootstrap/forked.h"
#include "bootstrap/hello.h"
#include "bootstrap/meeting.h"
#include "bootstrap/tcp_endpoint.h"

namespace ferry::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr auto kMember = Handshake::Side::kMember;

Descriptor connect_patiently(const TcpEndpoint& endpoint) {
  const Deadline deadline = soon();
  while (!deadline.passed()) {
    if (Attempt attempt = tcp_connect(endpoint.address, deadline); attempt.socket)
      return std::move(attempt.socket);
    usleep(1000);
  }
  return {};
}

std::optional<Frame> frame_of(Connection& connection) {
  const Deadline deadline = soon();
  while (!deadline.passed() && !connection.closed()) {
    if (auto frame = connection.take()) return frame;
    service({&connection}, 100);
  }
  return connection.take();
}

TEST(TcpStrangers, GarbageAndSilenceHoldUpNobody) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  Forked coordinator([&] { return meet_over_tcp(endpoint, 0, one_node(2)); });
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(connect_patiently(endpoint));
  const std::string magic = "ferry/u\n";
  write_to(strangers[0], "GET / HTTP/1.1\r\n\r\n");
  write_to(strangers[1], "fer");                              // only the beginning of a frame
  write_to(strangers[2], magic + std::string(16, '\xff'));    // a frame of 2^64 bytes
  write_to(strangers[3], magic + '\1' + std::string(15, 0));  // an empty hello
  shutdown(strangers[4].fd(), SHUT_RDWR);
  for (std::size_t i = 5; i < 20; ++i) write_to(strangers[i], std::string(100'000, 'x'));
  Forked peer([&] { return meet_over_tcp(endpoint, 1, one_node(2)); });
  EXPECT_EQ(peer.result(), "met");
  EXPECT_EQ(coordinator.result(), "met");
}

TEST(TcpStrangers, HelloWithoutAProofIsNotBelieved) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  Forked coordinator([&] { return meet_over_tcp(endpoint, 0, one_node(2), soon(seconds(2))); });
  const std::string share = Handshake(Secret("a guess of the secret"), kMember).share();
  for (const std::string& prefix : {std::string(), std::string(64, 'x'), share}) {
    Connection stranger(connect_patiently(endpoint));
    stranger.send(FrameKind::kHello, 0, prefix + encode(own_hello(endpoint.group, 1, one_node(2))));
    const auto frame = frame_of(stranger);
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->kind, FrameKind::kChallenge);
    EXPECT_FALSE(frame_of(stranger)) << "closed, without a failure";
  }
  EXPECT_THAT(coordinator.result(), AllOf(StartsWith("timeout: rank 1 of 2 did not come"),
                                          HasSubstr("3 connections failed authentication")));
}

// A stranger gets a share that another secret could have made as well, and nothing else.
TEST(TcpStrangers, WhoHasProvedNothingIsToldNothing) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  Forked coordinator([&] { return meet_over_tcp(endpoint, 0, one_node(2), soon(seconds(2))); });
  std::vector<std::string> shares;
  for (int i = 0; i < 2; ++i) {
    Connection stranger(connect_patiently(endpoint));
    const auto frame = frame_of(stranger);
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->payload.size(), Handshake::kShareBytes);
    EXPECT_TRUE(Handshake(Secret("another guess at it"), kMember).take_share(frame->payload));
    shares.push_back(frame->payload);
  }
  EXPECT_NE(shares[0].substr(1, 32), shares[1].substr(1, 32));
  EXPECT_NE(shares[0].substr(33), shares[1].substr(33));
}

// The secret may have been changed since: the rank looks again until its deadline.
TEST(TcpStrangers, AnotherSecretIsNamedAtTheDeadlineAndTheRightOneIsWaitedFor) {
  const TcpEndpoint endpoint = endpoint_at(free_port()),
                    wrong = endpoint_at(endpoint.address.port, "X");
  Forked coordinator([&] { return meet_over_tcp(endpoint, 0, one_node(2)); });
  Forked impostor([&] { return meet_over_tcp(wrong, 1, one_node(2), soon(milliseconds(700))); });
  EXPECT_THAT(impostor.result(), AllOf(StartsWith("timeout: rank 0 of 2 did not come"),
                                       HasSubstr("another FERRY_SECRET")));
  Forked peer([&] { return meet_over_tcp(endpoint, 1, one_node(2)); });
  EXPECT_EQ(peer.result(), "met");
  EXPECT_EQ(coordinator.result(), "met");
}

TEST(TcpStrangers, FailedProofsAreCountedWhenRanksAreMissing) {
  const TcpEndpoint endpoint = endpoint_at(free_port()),
                    wrong = endpoint_at(endpoint.address.port, "X");
  Forked coordinator([&] { return meet_over_tcp(endpoint, 0, one_node(3), soon(seconds(2))); });
  Forked impostor([&] { return meet_over_tcp(wrong, 1, one_node(3), soon(milliseconds(700))); });
  Forked peer([&] { return meet_over_tcp(endpoint, 2, one_node(3)); });
  EXPECT_THAT(impostor.result(), HasSubstr("another FERRY_SECRET"));
  const auto verdict = AllOf(StartsWith("timeout: rank 1 of 3 did not come"),
                             HasSubstr("failed authentication"), EndsWith("(culprit 1)"));
  EXPECT_THAT(coordinator.result(), verdict);
  EXPECT_THAT(peer.result(), verdict);
}

TEST(TcpStrangers, TwoJobsOnOnePortMeetOneAfterTheOther) {
  const TcpEndpoint endpoint = endpoint_at(free_port()),
                    other = endpoint_at(endpoint.address.port, "B");
  Forked coordinator([&] { return meet_over_tcp(endpoint, 0, one_node(2)); });
  usleep(300'000);
  std::vector<Forked> others;
  for (const int rank : {0, 1})
    others.emplace_back([&, rank] { return meet_over_tcp(other, rank, one_node(2)); });
  Forked late([&] { return meet_over_tcp(other, 0, one_node(2), soon(milliseconds(400))); });
  EXPECT_THAT(late.result(), AllOf(StartsWith("timeout: rank 0 cannot listen at tcp://"),
                                   HasSubstr("rank 0 of another job"), HasSubstr("FERRY_PORT")));
  Forked peer([&] { return meet_over_tcp(endpoint, 1, one_node(2)); });
  EXPECT_EQ(peer.result(), "met");
  EXPECT_EQ(coordinator.result(), "met");
  for (Forked& one : others) EXPECT_EQ(one.result(), "met");
}

TEST(TcpStrangers, ARankZeroThatEndsWhileJoiningIsToldWithinASecond) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  Forked coordinator([&] { return meet_over_tcp(endpoint, 0, one_node(3)); });
  Forked member([&] { return meet_over_tcp(endpoint, 1, one_node(3)); });
  usleep(700'000);
  kill(coordinator.pid(), SIGKILL);
  const std::int64_t begin = now_ns();
  EXPECT_THAT(member.result(),
              AllOf(StartsWith("peer_lost: rank 0 (pid "), EndsWith("(culprit 0)")));
  EXPECT_LT(now_ns() - begin, 1'500'000'000);
}

// Descriptors are few and strangers many: they are dropped, ranks are not.
TEST(TcpStrangers, AreDroppedFirstWhereDescriptorsAreFew) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "NOT TESTED: the sanitizer needs descriptors for itself";
#endif
  const TcpEndpoint endpoint = endpoint_at(free_port());
  Forked coordinator([&] {
    const rlimit few{64, 64};
    setrlimit(RLIMIT_NOFILE, &few);
    return meet_over_tcp(endpoint, 0, one_node(4));
  });
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 200; ++i) strangers.push_back(connect_patiently(endpoint));
  const auto results =
      in_processes({1, 2, 3}, [&](int rank) { return meet_over_tcp(endpoint, rank, one_node(4)); });
  EXPECT_THAT(results, Each("met"));
  EXPECT_EQ(coordinator.result(), "met");
}

TEST(TcpStrangers, AnotherProgramAtThePortIsNamedAtTheDeadline) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  const Descriptor squatter = tcp_listen("lo", endpoint.address.port);  // never accepts
  const auto results = in_processes({0, 1}, [&](int rank) {
    return meet_over_tcp(endpoint, rank, one_node(2), soon(milliseconds(1500)));
  });
  EXPECT_THAT(results[0], AllOf(StartsWith("timeout: rank 0 cannot listen at tcp://"),
                                HasSubstr("not rank 0 of a group of ferry")));
  EXPECT_THAT(results[1], AllOf(StartsWith("timeout: rank 0 of 2 did not come"),
                                HasSubstr("is not rank 0 of this job")));
}

TEST(TcpStrangers, AListenerThatGoesIsWaitedOut) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  Forked holder([&] {
    const Descriptor listener = tcp_listen("lo", endpoint.address.port);
    usleep(600'000);
    return "gone";
  });
  usleep(100'000);
  const auto results =
      in_processes({0, 1}, [&](int rank) { return meet_over_tcp(endpoint, rank, one_node(2)); });
  EXPECT_THAT(results, Each("met"));
}

// The process that holds the port pretends to be rank 0, with a share of its own and the member's
// own text; once it has ended, the ranks meet.
TEST(TcpStrangers, ARankZeroWithoutTheSecretIsNotBelievedAndTheRealOneIsFound) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  Forked peer([&] { return meet_over_tcp(endpoint, 1, one_node(2)); });
  Descriptor listener = tcp_listen("lo", endpoint.address.port);
  for (int attempt = 0; attempt < 3; ++attempt) {
    Descriptor accepted;
    while (!(accepted = accept_from(listener))) usleep(1000);
    Connection connection(std::move(accepted));
    const Handshake handshake(Secret("a guess of the secret"), Handshake::Side::kCoordinator);
    connection.send(FrameKind::kChallenge, 0, handshake.share());
    const auto hello = frame_of(connection);
    ASSERT_TRUE(hello);
    for (const std::string& secret : {endpoint.secret, endpoint.group, boot_id()})
      EXPECT_THAT(hello->payload, testing::Not(HasSubstr(secret)));
    connection.send(FrameKind::kProof, 0, hello->payload);  // reflected
    connection.send(FrameKind::kWelcome, 0, "");
    EXPECT_FALSE(frame_of(connection)) << "closed";
  }
  listener = {};
  Forked coordinator([&] { return meet_over_tcp(endpoint, 0, one_node(2)); });
  EXPECT_EQ(peer.result(), "met");
  EXPECT_EQ(coordinator.result(), "met");
}

TEST(TcpStrangers, MisfitsAreNamedToBothSides) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  const auto results = in_processes(
      {0, 1}, [&](int rank) { return meet_over_tcp(endpoint, rank, one_node(2 + rank)); });
  EXPECT_THAT(results, Each(AllOf(StartsWith("mismatch: different group sizes: rank 0"),
                                  HasSubstr("has 2"), HasSubstr("has 3"))));
}

// A rank with another protocol reads no sealed frames: the error is sent unsealed, once the rank
// has proved that it knows the secret.
TEST(TcpStrangers, ARankOfAnotherProtocolIsToldSo) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  Forked coordinator([&] { return meet_over_tcp(endpoint, 0, one_node(2)); });
  Descriptor socket = connect_patiently(endpoint);
  const Descriptor same(dup(socket.fd()));
  Connection old(std::move(socket));
  const auto challenge = frame_of(old);
  ASSERT_TRUE(challenge);
  Handshake handshake(Secret(endpoint.secret), kMember);
  ASSERT_TRUE(handshake.take_share(challenge->payload));
  Hello hello = own_hello(endpoint.group, 1, one_node(2));
  --hello.protocol;
  old.send(FrameKind::kHello, 0, handshake.share() + handshake.seal(encode(hello)));
  EXPECT_THAT(coordinator.result(), StartsWith("mismatch: different protocols of ferry: rank 0"));
  std::string received(1 << 16, '\0');
  ASSERT_GT(recv(same.fd(), received.data(), received.size(), 0), 0);
  EXPECT_THAT(received, HasSubstr("different protocols of ferry: rank 0"));
}

TEST(TcpStrangers, ARankZeroOfAnotherProtocolIsNamed) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  const Descriptor listener = tcp_listen("lo", endpoint.address.port);
  Forked peer([&] { return meet_over_tcp(endpoint, 1, one_node(2)); });
  Descriptor accepted;
  while (!(accepted = accept_from(listener))) usleep(1000);
  Connection old(std::move(accepted));
  Handshake handshake(Secret(endpoint.secret), Handshake::Side::kCoordinator);
  old.send(FrameKind::kChallenge, 0, handshake.share());
  const auto frame = frame_of(old);
  ASSERT_TRUE(frame && handshake.take_share(frame->payload.substr(0, Handshake::kShareBytes)));
  Hello hello = own_hello(endpoint.group, 0, one_node(2));
  --hello.protocol;
  old.send(FrameKind::kProof, 0, handshake.seal(encode(hello)));
  EXPECT_THAT(peer.result(), StartsWith("mismatch: different protocols of ferry: rank 0"));
}

TEST(TcpStrangers, TwoProcessesOfOneRankAreNamed) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  const auto results =
      in_processes({0, 1, 1}, [&](int rank) { return meet_over_tcp(endpoint, rank, one_node(3)); });
  EXPECT_THAT(results, Each(AllOf(StartsWith("invalid_argument: "),
                                  HasSubstr("two processes claim to be rank 1: pid "))));
}

}  // namespace
}  // namespace ferry::internal
