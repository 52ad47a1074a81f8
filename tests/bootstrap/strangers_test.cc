// Other processes at the address of a group: old listeners, other users, garbage, other versions.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "bootstrap/connection.h"
#include "bootstrap/forked.h"
#include "bootstrap/hello.h"
#include "bootstrap/meeting.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/socket.h"

namespace ferry::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

Descriptor connect_patiently(const std::string& name) {
  const Deadline deadline = soon();
  while (!deadline.passed()) {
    if (Descriptor socket = connect_to(name)) return socket;
    usleep(1000);
  }
  return {};
}

// The failure that arrives on a connection, as "<code>: <message>".
std::string failure_of(Connection& connection) {
  const Deadline deadline = soon();
  while (!deadline.passed()) {
    if (const auto frame = connection.take()) {
      const Error error = failure_in(frame->payload);
      return fmt::format("{}: {}", code_name(error.code()), error.what());
    }
    if (connection.closed()) return "closed";
    service({&connection}, 100);
  }
  return "nothing";
}

TEST(Strangers, GarbageAndSilenceHoldUpNobody) {
  const std::string at = address("garbage"), name = socket_name(at, 2);
  Forked coordinator([&] {
    return process_rendezvous(at, 0, one_node(2), soon())->all_gather("", soon()).size() == 2
               ? "met"
               : "no";
  });
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(connect_patiently(name));
  write_to(strangers[0], "GET / HTTP/1.1\r\n\r\n");
  write_to(strangers[1], "fer");  // only the beginning of a frame
  write_to(strangers[2],
           std::string("ferry/u\n") + std::string(16, '\xff'));  // a frame of 2^64 bytes
  write_to(strangers[3],
           std::string("ferry/u\n\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24));  // an empty hello
  shutdown(strangers[4].fd(), SHUT_RDWR);
  Forked peer([&] {
    return process_rendezvous(at, 1, one_node(2), soon())->all_gather("", soon()).size() == 2
               ? "met"
               : "no";
  });
  EXPECT_EQ(peer.result(), "met");
  EXPECT_EQ(coordinator.result(), "met");
}

TEST(Strangers, OtherVersionsAreNamedToBothSides) {
  const std::string at = address("version");
  Forked coordinator([&] {
    process_rendezvous(at, 0, one_node(2), soon());
    return "met";
  });
  Connection connection(connect_patiently(socket_name(at, 2)));
  Hello hello = own_hello(at, 1, one_node(2));
  const std::string version = hello.version;
  hello.version = "7.7.7";
  connection.send(FrameKind::kHello, 0, encode(hello));
  const auto named = AllOf(StartsWith("mismatch: different versions of ferry: rank 0"),
                           HasSubstr("has " + version), HasSubstr("has 7.7.7"));
  EXPECT_THAT(failure_of(connection), named);
  EXPECT_THAT(coordinator.result(), named);
}

TEST(Strangers, AllThatComeSoonHearWhyThereIsNoGroup) {
  const std::string at = address("build");
  Forked coordinator([&] {
    process_rendezvous(at, 0, one_node(3), soon());
    return "met";
  });
  Connection connection(connect_patiently(socket_name(at, 3)));
  Hello hello = own_hello(at, 1, one_node(3));
  hello.build = "another";
  connection.send(FrameKind::kHello, 0, encode(hello));
  usleep(200'000);
  Forked late([&] {
    process_rendezvous(at, 2, one_node(3), soon());
    return "met";
  });
  EXPECT_THAT(late.result(), StartsWith("mismatch: different builds of ferry"));
  EXPECT_THAT(coordinator.result(), StartsWith("mismatch: different builds of ferry"));
}

TEST(Strangers, RankThatEndsBeforeAllHaveComeIsNamed) {
  const std::string at = address("ends");
  Forked coordinator([&] {
    process_rendezvous(at, 0, one_node(3), soon());
    return "met";
  });
  Forked victim([&] {
    process_rendezvous(at, 1, one_node(3), soon());
    return "met";
  });
  usleep(300'000);
  kill(victim.pid(), SIGKILL);
  EXPECT_THAT(coordinator.result(),
              AllOf(StartsWith("peer_lost: rank 1 (pid "), HasSubstr("rank 2 had not come")));
}

TEST(Strangers, AnAbandonedListenerIsWaitedOut) {
  const std::string at = address("abandoned");
  Forked holder([&] {
    const Descriptor listener = listen_at(socket_name(at, 2));
    usleep(400'000);  // never accepts; connections wait in its queue and end with it
    return "gone";
  });
  usleep(100'000);
  const auto results = in_processes({0, 1}, [&](int rank) {
    return process_rendezvous(at, rank, one_node(2), soon())->all_gather("", soon()).size() == 2
               ? "met"
               : "no";
  });
  EXPECT_THAT(results, Each("met"));
}

TEST(Strangers, AListenerThatStaysIsNamed) {
  const std::string at = address("squatted");
  const Descriptor listener = listen_at(socket_name(at, 2));
  const auto results = in_processes({0, 1}, [&](int rank) {
    process_rendezvous(at, rank, one_node(2), soon(milliseconds(300)));
    return "met";
  });
  EXPECT_THAT(results,
              Each(AllOf(StartsWith("timeout: "), HasSubstr(fmt::format("pid {}", getpid())))));
}

// Another user holds the name: rank 0 listens beside it, and its ranks find it there, however many
// decoys there are.
TEST(Strangers, ANameThatAnotherUserHoldsStopsNobody) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: only root can play two users";
  for (const bool listens : {true, false}) {
    const std::string at = address("squatter"), name = socket_name(at, 3);
    Forked holder([&] {
      if (setuid(65534) != 0) return "no";
      const Descriptor decoy = listen_at(name + "-0123456789abcdef");
      Descriptor listener = listen_at(name);
      if (!listens) shutdown(listener.fd(), SHUT_RDWR);  // so that its process is not known
      pause();
      return "";
    });
    usleep(200'000);
    const auto results = in_processes({0, 1, 2}, [&](int rank) {
      return process_rendezvous(at, rank, one_node(3), soon())->all_gather("", soon()).size() == 3
                 ? "met"
                 : "no";
    });
    EXPECT_THAT(results, Each("met"));
  }
}

// Another user may have tens of thousands of names: ranks connect to none of them.
TEST(Strangers, NamesOfAnotherUserBesideTheHeldOneAreNotTried) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: only root can play two users";
  const std::string at = address("crowd"), name = socket_name(at, 2);
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  Forked holder([&]() -> std::string {
    if (setuid(65534) != 0) return "no";
    const Descriptor held = listen_at(name);
    std::vector<Descriptor> beside;
    for (int i = 0; i < 500; ++i) beside.push_back(listen_at(fmt::format("{}-{:016x}", name, i)));
    if (write(ready[1], "1", 1) != 1) return "no pipe";
    while (true) {
      usleep(10'000);
      for (const Descriptor& one : beside) {
        if (accept_from(one)) return "tried";
      }
    }
  });
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const auto results = in_processes({0, 1}, [&](int rank) {
    return process_rendezvous(at, rank, one_node(2), soon())->all_gather("", soon()).size() == 2
               ? "met"
               : "no";
  });
  EXPECT_THAT(results, Each("met"));
  usleep(200'000);
  kill(holder.pid(), SIGKILL);
  EXPECT_EQ(holder.result(), "");
}

TEST(Strangers, AHolderOfAnotherUserIsNamedAtTheDeadline) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: only root can play two users";
  const std::string at = address("false-zero"), name = socket_name(at, 2);
  Forked holder([&] {
    if (setuid(65534) != 0) return "no";
    const Descriptor listener = listen_at(name);
    pause();
    return "";
  });
  usleep(200'000);
  const auto results = in_processes({1}, [&](int rank) {
    process_rendezvous(at, rank, one_node(2), soon(milliseconds(700)));
    return "met";
  });
  EXPECT_THAT(results[0], AllOf(StartsWith("timeout: "), HasSubstr("of uid 65534"),
                                HasSubstr("uid 0"), testing::EndsWith("(culprit 0)")));
}

// 200 silent strangers, more than the process may have descriptors.
TEST(Strangers, AreDroppedFirstWhereDescriptorsAreFew) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "NOT TESTED: the sanitizer needs descriptors for itself";
#endif
  const std::string at = address("few"), name = socket_name(at, 4);
  Forked coordinator([&] {
    const rlimit few{64, 64};
    setrlimit(RLIMIT_NOFILE, &few);
    return process_rendezvous(at, 0, one_node(4), soon())->all_gather("", soon()).size() == 4
               ? "met"
               : "no";
  });
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 200; ++i) strangers.push_back(connect_patiently(name));
  const auto results = in_processes({1, 2, 3}, [&](int rank) {
    return process_rendezvous(at, rank, one_node(4), soon())->all_gather("", soon()).size() == 4
               ? "met"
               : "no";
  });
  EXPECT_THAT(results, Each("met"));
  EXPECT_EQ(coordinator.result(), "met");
}

TEST(Strangers, ARankZeroThatEndsWhileJoiningIsToldWithinASecond) {
  const std::string at = address("zero-ends");
  Forked coordinator([&] {
    process_rendezvous(at, 0, one_node(3), soon());
    return "met";
  });
  Forked member([&] {
    process_rendezvous(at, 1, one_node(3), soon());
    return "met";
  });
  usleep(300'000);
  kill(coordinator.pid(), SIGKILL);
  const std::int64_t begin = now_ns();
  EXPECT_THAT(member.result(), AllOf(StartsWith("peer_lost: rank 0 (pid "),
                                     HasSubstr("ended or left while others had not come"),
                                     testing::EndsWith("(culprit 0)")));
  EXPECT_LT(now_ns() - begin, 1'500'000'000);
}

TEST(Strangers, ARankZeroThatIsStartedAgainAtOnceIsFound) {
  const std::string at = address("zero-again");
  const auto join_as = [&](int rank) {
    return process_rendezvous(at, rank, one_node(2), soon())->all_gather("", soon()).size() == 2
               ? "met"
               : "no";
  };
  Forked first([&] {  // accepts its member, and ends
    const Descriptor listener = listen_at(socket_name(at, 2));
    Descriptor accepted;
    while (!(accepted = accept_from(listener))) usleep(1000);
    Connection connection(std::move(accepted));
    connection.send(FrameKind::kAccepted, 0, "");
    usleep(200'000);
    return "gone";
  });
  usleep(100'000);
  Forked member([&] { return join_as(1); });
  EXPECT_EQ(first.result(), "gone");
  Forked second([&] { return join_as(0); });
  EXPECT_EQ(member.result(), "met");
  EXPECT_EQ(second.result(), "met");
}

TEST(Strangers, AnotherUserIsRefusedAndTheGroupGoesOn) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: only root can play two users";
  const std::string at = address("user"), name = socket_name(at, 2);
  Forked coordinator([&] {
    return process_rendezvous(at, 0, one_node(2), soon())->all_gather("", soon()).size() == 2
               ? "met"
               : "no";
  });
  Forked stranger([&]() -> std::string {
    if (setuid(65534) != 0) return "no";
    Connection connection(connect_patiently(name));
    connection.send(FrameKind::kHello, 0, encode(own_hello(at, 1, one_node(2))));
    return failure_of(connection);
  });
  EXPECT_THAT(stranger.result(), AllOf(HasSubstr("uid 65534"), HasSubstr("as uid 0")));
  Forked peer([&] {
    return process_rendezvous(at, 1, one_node(2), soon())->all_gather("", soon()).size() == 2
               ? "met"
               : "no";
  });
  EXPECT_EQ(peer.result(), "met");
  EXPECT_EQ(coordinator.result(), "met");
}

TEST(Hello, SurvivesItsText) {
  Hello hello = own_hello("an address\nof two lines\\n with = and \\", 3, one_node(8));
  const auto read = decode_hello(encode(hello));
  ASSERT_TRUE(read);
  EXPECT_EQ(disagreement_on_host(hello, *read), "");
  EXPECT_EQ(read->rank, 3);
  EXPECT_EQ(read->pid, getpid());
  EXPECT_FALSE(decode_hello(""));
  EXPECT_FALSE(decode_hello("rank=1\nsize=2\n"));
}

TEST(Hello, RanksOfTwoHostsAreNamed) {
  Hello a = own_hello("x", 0, one_node(4)), b = own_hello("x", 3, one_node(4));
  a.host = "alpha";
  b.host = "beta";
  EXPECT_EQ(disagreement_on_host(a, b), "") << "the name of a host is not its identity";
  b.boot_id = "another";
  EXPECT_THAT(disagreement_on_host(a, b),
              AllOf(HasSubstr("rank 0 is on host alpha"), HasSubstr("rank 3 on host beta"),
                    HasSubstr("needs an address tcp://")));
}

TEST(Hello, RanksOfTwoPidNamespacesAreNamed) {
  const Hello a = own_hello("x", 0, one_node(4));
  Hello b = own_hello("x", 3, one_node(4));
  b.pid_namespace = "pid:[1]";
  EXPECT_THAT(disagreement_on_host(a, b), AllOf(HasSubstr("different pid namespaces"),
                                                HasSubstr("pid:[1]"), HasSubstr(a.pid_namespace)));
}

}  // namespace
}  // namespace ferry::internal
