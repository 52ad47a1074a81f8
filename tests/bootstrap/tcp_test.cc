// The rendezvous over TCP, between real processes. They are of one host, so one node unless the
// topology splits them; two hosts are in tests/hosts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <signal.h>

#include <array>
#include <list>

#include "bootstrap/forked.h"
#include "bootstrap/tcp_endpoint.h"

// A resolver that is slow to reply for one name, and does not know another (the linker's --wrap).
constexpr std::string_view kResolvedLate = "slow-to-resolve", kNotResolved = "unknown-host";

extern "C" {

int __real_getaddrinfo(const char*, const char*, const addrinfo*, addrinfo**);
int __wrap_getaddrinfo(const char* name, const char* port, const addrinfo* hints,
                       addrinfo** addresses) {
  if (name == kResolvedLate && (hints->ai_flags & AI_NUMERICHOST) == 0) sleep(5);
  if (name == kNotResolved) return EAI_NONAME;
  return __real_getaddrinfo(name, port, hints, addresses);
}

}  // extern "C"

namespace ferry::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Tcp : public testing::TestWithParam<int> {};

TEST_P(Tcp, AllGatherKeepsRankOrderForTextsOfAnyLength) {
  const int size = GetParam();
  const TcpEndpoint endpoint = endpoint_at(free_port());
  const auto text = [](int rank) {
    return std::string(static_cast<std::size_t>(rank) * 300'000, char('a' + rank % 26));
  };
  const auto results = in_processes(ranks(size), [&](int rank) -> std::string {
    const auto rendezvous = tcp_rendezvous(endpoint, rank, one_node(size), soon());
    if (rendezvous->nodes() != one_node(size)) return "wrong nodes";
    for (int round = 0; round < 3; ++round) {
      const auto texts = rendezvous->all_gather(text(rank), soon());
      for (int peer = 0; peer < size; ++peer) {
        if (texts[static_cast<std::size_t>(peer)] != text(peer)) return "wrong text";
      }
    }
    return "ok";
  });
  EXPECT_THAT(results, Each("ok"));
}

TEST_P(Tcp, TopologySplitsIntoNodesWithSegmentsOfTheirOwn) {
  const int size = GetParam();
  const TcpEndpoint endpoint = endpoint_at(free_port());
  std::vector<int> split(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) split[rank] = rank < (size + 1) / 2 ? 0 : 1;
  const auto results = in_processes(ranks(size), [&](int rank) -> std::string {
    const auto rendezvous = tcp_rendezvous(endpoint, rank, split, soon());
    if (rendezvous->nodes() != split) return "wrong nodes";
    const auto segment = rendezvous->share_segment(4096, soon());
    if (!segment->commit(0, 4096)) return "refused";
    rendezvous->all_gather("", soon());
    segment->data()[rank] = std::byte(rank + 1);
    rendezvous->all_gather("", soon());
    for (int peer = 0; peer < size; ++peer) {
      const auto expected = std::byte(split[peer] == split[rank] ? peer + 1 : 0);
      if (segment->data()[peer] != expected) return "wrong segment";
      if (!rendezvous->alive(peer) || rendezvous->pid(peer) == 0) return "not seen";
    }
    rendezvous->all_gather("", soon());  // all have looked
    return "ok";
  });
  EXPECT_THAT(results, Each("ok"));
}

TEST_P(Tcp, TwentyGroupsOfOnePortOneAfterAnotherLeakNothing) {
  const int size = GetParam();
  const TcpEndpoint endpoint = endpoint_at(free_port());
  const auto results = in_processes(ranks(size), [&](int rank) -> std::string {
    const int before = open_descriptors();
    for (int group = 0; group < 20; ++group) {
      const auto rendezvous = tcp_rendezvous(endpoint, rank, one_node(size), soon());
      rendezvous->share_segment(4096, soon());
    }
    const int leaked = open_descriptors() - before;
    return leaked == 0 ? "ok" : fmt::format("{} descriptors leaked", leaked);
  });
  EXPECT_THAT(results, Each("ok"));
  EXPECT_TRUE(tcp_listen("lo", endpoint.address.port)) << "the port is free again";
}

INSTANTIATE_TEST_SUITE_P(Ranks, Tcp, testing::Values(1, 2, 3, 8));

TEST(TcpRendezvous, PortIsFreeOnceAllHaveMet) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  const auto results = in_processes({0, 1}, [&](int rank) -> std::string {
    const auto rendezvous = tcp_rendezvous(endpoint, rank, one_node(2), soon());
    const bool is_free = rank != 0 || bool(tcp_listen("lo", endpoint.address.port));
    rendezvous->all_gather("", soon());
    return is_free ? "free" : "held";
  });
  EXPECT_THAT(results, Each("free"));
}

TEST(TcpRendezvous, GroupsOfOneJobMeetAtOnePortOneByOne) {
  TcpEndpoint first = endpoint_at(free_port()), second = first;
  second.group = "another group";
  const auto results = in_processes(ranks(6), [&](int i) {
    return meet_over_tcp(i % 2 == 0 ? first : second, i / 2, one_node(3));
  });
  EXPECT_THAT(results, Each("met"));
}

TEST(TcpRendezvous, LateRanksAreWaitedFor) {
  for (const int late : {0, 2}) {
    const TcpEndpoint endpoint = endpoint_at(free_port());
    const auto results = in_processes(ranks(3), [&](int rank) {
      if (rank == late) usleep(700'000);
      return meet_over_tcp(endpoint, rank, {0, 0, 1});
    });
    EXPECT_THAT(results, Each("met"));
  }
}

TEST(TcpRendezvous, MissingRanksAreNamedToAllAtTheDeadline) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  const std::int64_t begin = now_ns();
  const auto results = in_processes({0, 1, 3}, [&](int rank) {
    return meet_over_tcp(endpoint, rank, one_node(6), soon(seconds(1)));
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("timeout: "),
                                  HasSubstr("ranks 2, 4 and 5 of 6 did not come to tcp://"))));
  EXPECT_LT(now_ns() - begin, 5'000'000'000);
}

TEST(TcpRendezvous, RankZeroIsNamedWhenItIsMissing) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  const auto results = in_processes({1, 2}, [&](int rank) {
    return meet_over_tcp(endpoint, rank, one_node(3), soon(milliseconds(300)));
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("timeout: rank 0 of 3 did not come to tcp://"),
                                  HasSubstr("127.0.0.1: Connection refused"))));
}

TEST(TcpRendezvous, RankKilledBeforeAllHaveComeIsNamed) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  Forked coordinator([&] { return meet_over_tcp(endpoint, 0, one_node(3)); });
  Forked victim([&] { return meet_over_tcp(endpoint, 1, one_node(3)); });
  usleep(700'000);
  kill(victim.pid(), SIGKILL);
  EXPECT_THAT(coordinator.result(), AllOf(StartsWith("peer_lost: rank 1 (pid "),
                                          HasSubstr(", host "), HasSubstr("rank 2 had not come")));
}

TEST(TcpRendezvous, RankKilledInACollectiveIsNamedAtOnce) {
  for (const int victim : {0, 2}) {
    const TcpEndpoint endpoint = endpoint_at(free_port());
    const std::int64_t begin = now_ns();
    const auto results = in_processes(ranks(3), [&](int rank) -> std::string {
      const auto rendezvous = tcp_rendezvous(endpoint, rank, std::vector{0, 0, 1}, soon());
      if (rank == victim) {
        usleep(100'000);
        raise(SIGKILL);
      }
      rendezvous->share_segment(4096, soon());
      return "shared";
    });
    const auto named =
        AllOf(StartsWith("peer_lost: "), HasSubstr(fmt::format("rank {} (pid ", victim)));
    EXPECT_THAT(results[1], named);
    EXPECT_THAT(results[static_cast<std::size_t>(2 - victim)], named);
    EXPECT_LT(now_ns() - begin, 5'000'000'000);
  }
}

TEST(TcpRendezvous, RefusedSegmentIsAnErrorOnAllRanksAndTheGroupGoesOn) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  const auto results = in_processes(ranks(3), [&](int rank) -> std::string {
    const auto rendezvous = tcp_rendezvous(endpoint, rank, std::vector{0, 0, 1}, soon());
    return refused_segment(*rendezvous, soon());
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("rank 0: "), HasSubstr("1152921504606846976 bytes"))));
}

TEST(TcpRendezvous, ResolverThatDoesNotAnswerDoesNotOutlastTheDeadline) {
  TcpEndpoint endpoint = endpoint_at(4711);
  endpoint.address.hosts = {std::string(kResolvedLate)};
  Forked member([&] { return meet_over_tcp(endpoint, 1, one_node(2), soon(milliseconds(20))); });
  EXPECT_THAT(member.result(),
              AllOf(StartsWith("timeout: rank 0 of 2 did not come to tcp://slow-to-resolve:4711"),
                    HasSubstr("(cannot resolve slow-to-resolve: no answer before the deadline)")));
}

// The attempt that the deadline ends says nothing in place of the ones that were refused.
TEST(TcpRendezvous, RefusedConnectionsToANameAreTheReasonAtTheDeadline) {
  for (const int span_ms : {2000, 2010, 2050}) {
    TcpEndpoint endpoint = endpoint_at(free_port());
    endpoint.address.hosts = {"localhost", "127.0.0.2"};
    Forked member(
        [&] { return meet_over_tcp(endpoint, 1, one_node(2), soon(milliseconds(span_ms))); });
    EXPECT_THAT(
        member.result(),
        AllOf(StartsWith("timeout: rank 0 of 2 did not come to tcp://localhost,127.0.0.2:"),
              HasSubstr("localhost (127.0.0.1): Connection refused"),
              HasSubstr(", 127.0.0.2: Connection refused"), Not(HasSubstr("cannot resolve"))));
  }
}

// Each with the address of the first: at its port, and on another host, where the port is free.
TEST(TcpRendezvous, TwoRanksZeroAreNamedLongBeforeTheDeadline) {
  for (const bool own_port : {false, true}) {
    const TcpEndpoint endpoint = endpoint_at(free_port());
    const auto results = in_processes({0, 1, 2}, [&](int process) {
      TcpEndpoint mine = endpoint;
      if (process == 1) usleep(300'000);  // the first listens
      if (process == 1 && own_port)
        mine.listener = std::make_shared<Descriptor>(tcp_listen("lo", 0));
      return meet_over_tcp(mine, process / 2, one_node(3), soon(seconds(40)));
    });
    EXPECT_THAT(results,
                Each(AllOf(StartsWith("invalid_argument: two processes claim to be rank 0"),
                           HasSubstr(", host "))));
  }
}

TEST(TcpRendezvous, AnAddressThatDoesNotLeadToRankZeroIsNamedLongBeforeTheDeadline) {
  constexpr std::array kHosts = {"127.0.0.2", "unknown-host"};
  std::list<Forked> zeros;  // at the same time, as they wait
  for (const char* host : kHosts) {
    TcpEndpoint endpoint = endpoint_at(free_port());
    endpoint.address.hosts = {host};
    zeros.emplace_back([&] { return meet_over_tcp(endpoint, 0, one_node(2), soon(seconds(40))); });
  }
  const std::array reasons = {"127.0.0.2: Connection refused", "cannot resolve unknown-host: "};
  for (std::size_t i = 0; i < kHosts.size(); ++i, zeros.pop_front()) {
    EXPECT_THAT(zeros.front().result(),
                AllOf(StartsWith("invalid_argument: rank 0 listens on host "),
                      HasSubstr(std::string("its address tcp://") + kHosts[i] + ":"),
                      HasSubstr("does not lead there"), HasSubstr(reasons[i])));
  }
}

TEST(TcpRendezvous, RankZeroThatWaitsFindsItselfAtItsAddress) {
  const TcpEndpoint endpoint = endpoint_at(free_port());
  const auto results = in_processes({0, 1}, [&](int rank) {
    if (rank == 1) usleep(8'000'000);
    return meet_over_tcp(endpoint, rank, one_node(2), soon(seconds(40)));
  });
  EXPECT_THAT(results, Each("met"));
}

TEST(TcpAddress, IsReadAndWritten) {
  EXPECT_EQ(parse_tcp("tcp://node01:29501").text(), "tcp://node01:29501");
  const TcpAddress address = parse_tcp("tcp://[fe80::1]:1");
  EXPECT_THAT(address.hosts, ElementsAre("fe80::1"));
  EXPECT_EQ(address.port, 1);
  EXPECT_EQ(address.text(), "tcp://[fe80::1]:1");
  const TcpAddress several = parse_tcp("tcp://a,[fe80::1],10.0.0.1:29501");
  EXPECT_THAT(several.hosts, ElementsAre("a", "fe80::1", "10.0.0.1"));
  EXPECT_EQ(several.text(), "tcp://a,[fe80::1],10.0.0.1:29501");
  for (const char* bad : {"tcp://", "tcp://a,:1", "tcp://,a:1", "tcp://a", "tcp://a:", "tcp://:1",
                          "tcp://a:0", "tcp://a:65536", "tcp://a:1x", "tcp://fe80::1:1",
                          "tcp://a/b:1", "udp://a:1", "a:1", "tcp://a b:1", "tcp://[]:1"}) {
    EXPECT_THROW(parse_tcp(bad), Error) << bad;
  }
}

TEST(TcpAddress, InterfacesThatAreNotThereAreNamed) {
  try {
    tcp_listen("nothing0,nothing1", 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("FERRY_SOCKET_IFNAME=\"nothing0,nothing1\""));
  }
}

}  // namespace
}  // namespace ferry::internal
