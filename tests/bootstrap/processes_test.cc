// The rendezvous of processes, between real processes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <atomic>
#include <new>
#include <thread>

#include "bootstrap/collectives.h"
#include "bootstrap/forked.h"
#include "bootstrap/meeting.h"
#include "bootstrap/rendezvous.h"

namespace ferry::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class Processes : public testing::TestWithParam<int> {};

TEST_P(Processes, AllGatherKeepsRankOrderForTextsOfAnyLength) {
  const int size = GetParam();
  const std::string at = address("gather");
  // Rank 0 sends nothing, the others up to megabytes: more than a socket holds.
  const auto text = [](int rank) {
    return std::string(static_cast<std::size_t>(rank) * 300'000, char('a' + rank % 26));
  };
  const auto results = in_processes(ranks(size), [&](int rank) -> std::string {
    const auto rendezvous = process_rendezvous(at, rank, one_node(size), soon());
    for (int round = 0; round < 3; ++round) {
      const auto texts = rendezvous->all_gather(text(rank), soon());
      if (texts.size() != static_cast<std::size_t>(size)) return "wrong number";
      for (int peer = 0; peer < size; ++peer) {
        if (texts[static_cast<std::size_t>(peer)] != text(peer))
          return fmt::format("wrong text of rank {}", peer);
      }
    }
    return "ok";
  });
  EXPECT_THAT(results, Each("ok"));
}

// Rank 0 sends every text to every rank, so that equal ones may not be there once for each.
TEST(BootstrapCollectives, EqualTextsOfNeighboursAreSentOnce) {
  const std::vector<std::string> equal(4096, std::string(600, 'c'));
  EXPECT_LT(pack(equal).size(), 1000U);
  std::vector<std::string> mixed = equal;
  mixed[0] = "";
  mixed[2000] = "d";
  EXPECT_LT(pack(mixed).size(), 2000U);
  for (const auto& texts : {equal, mixed, {}, {"a", "b", "", "", "b"}})
    EXPECT_EQ(unpack(pack(texts), texts.size()), texts);
}

TEST(BootstrapCollectives, TextsOfFewerOrMoreRanksAreRefused) {
  const std::string three = pack({"a", "a", "b"});
  for (const std::size_t size : {2U, 4U}) EXPECT_THROW(unpack(three, size), Error);
  for (std::size_t size = 0; size < three.size(); ++size)
    EXPECT_THROW(unpack(std::string_view(three).substr(0, size), 3), Error) << size;
  std::string many = pack({"a"});
  many[7] = '\xff';  // more than there are ranks
  EXPECT_THROW(unpack(many, 1), Error);
}

TEST_P(Processes, SegmentIsTheSameMemoryEverywhere) {
  const int size = GetParam();
  const std::string at = address("segment");
  const auto results = in_processes(ranks(size), [&](int rank) -> std::string {
    const auto rendezvous = process_rendezvous(at, rank, one_node(size), soon());
    const auto first = rendezvous->share_segment(1000, soon());
    const auto segment = rendezvous->share_segment(std::size_t{8} << 20, soon());
    if (!segment->commit(static_cast<std::size_t>(rank) * 4096, 4096)) return "refused";
    segment->data()[rank * 4096] = std::byte(rank + 1);
    first->data()[rank] = std::byte(rank + 101);
    rendezvous->all_gather("", soon());
    for (int peer = 0; peer < size; ++peer) {
      if (segment->data()[peer * 4096] != std::byte(peer + 1)) return "not shared";
      if (first->data()[peer] != std::byte(peer + 101)) return "not shared";
    }
    return "ok";
  });
  EXPECT_THAT(results, Each("ok"));
}

TEST_P(Processes, FiftyGroupsOfOneAddressOneAfterAnotherLeakNoDescriptor) {
  const int size = GetParam();
  const std::string at = address("again");
  const auto results = in_processes(ranks(size), [&](int rank) -> std::string {
    const int before = open_descriptors();
    for (int group = 0; group < 50; ++group) {
      const auto rendezvous = process_rendezvous(at, rank, one_node(size), soon());
      rendezvous->share_segment(4096, soon());
      const auto texts = rendezvous->all_gather(fmt::format("{}", group), soon());
      if (texts !=
          std::vector<std::string>(static_cast<std::size_t>(size), fmt::format("{}", group)))
        return "mixed";
    }
    const int leaked = open_descriptors() - before;
    return leaked == 0 ? "ok" : fmt::format("{} descriptors leaked", leaked);
  });
  EXPECT_THAT(results, Each("ok"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Processes, testing::Values(1, 2, 3, 8));

TEST(Rendezvous, SixtyFourRanksMeet) {
  const std::string at = address("many");
  const auto results = in_processes(ranks(64), [&](int rank) {
    const auto rendezvous = process_rendezvous(at, rank, one_node(64), soon(seconds(50)));
    return fmt::format("{}", rendezvous->all_gather("x", soon()).size());
  });
  EXPECT_THAT(results, Each("64"));
}

TEST(Rendezvous, TwoAddressesAtOnceDoNotMix) {
  const std::string base = address("two");
  const auto results = in_processes(ranks(8), [&](int i) {
    const std::string at = base + (i % 2 == 0 ? "even" : "odd");
    return joined(
        process_rendezvous(at, i / 2, one_node(4), soon())->all_gather(std::to_string(i), soon()));
  });
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(results[static_cast<std::size_t>(i)], i % 2 == 0 ? "0,2,4,6" : "1,3,5,7");
}

TEST(Rendezvous, LongAddressesThatDifferAtTheEndDoNotMix) {
  const std::string base = address("long") + std::string(300, 'x');
  const auto results = in_processes(ranks(4), [&](int i) {
    const std::string at = base + (i % 2 == 0 ? "a" : "b");
    return joined(
        process_rendezvous(at, i / 2, one_node(2), soon())->all_gather(std::to_string(i), soon()));
  });
  EXPECT_THAT(results, testing::ElementsAre("0,2", "1,3", "0,2", "1,3"));
}

TEST(Rendezvous, LateRanksAreWaitedFor) {
  for (const int late : {0, 2}) {
    const std::string at = address("late");
    const auto results = in_processes(ranks(3), [&](int rank) {
      if (rank == late) usleep(300'000);
      return joined(process_rendezvous(at, rank, one_node(3), soon())
                        ->all_gather(std::to_string(rank), soon()));
    });
    EXPECT_THAT(results, Each("0,1,2"));
  }
}

// All that have come are stopped for longer than the deadline; the last comes when they go on.
TEST(Rendezvous, AJobThatIsStoppedWhileItJoinsGoesOnAsIfNothingHadBeen) {
  const std::string at = address("stopped-job");
  const auto join = [&](int rank) {
    return [&at, rank]() -> std::string {
      const Deadline by = soon(seconds(3));
      return process_rendezvous(at, rank, one_node(3), by)->all_gather("", by).empty() ? "" : "met";
    };
  };
  std::vector<Forked> ranks;
  for (const int rank : {0, 1}) ranks.emplace_back(join(rank));
  usleep(100'000);  // they wait for rank 2
  for (const Forked& rank : ranks) kill(rank.pid(), SIGSTOP);
  usleep(3'300'000);
  for (const Forked& rank : ranks) kill(rank.pid(), SIGCONT);
  ranks.emplace_back(join(2));
  for (Forked& rank : ranks) EXPECT_EQ(rank.result(), "met");
}

TEST(Rendezvous, MissingRanksAreNamedToAllAtTheDeadline) {
  const std::string at = address("missing");
  const std::int64_t begin = now_ns();
  const auto results = in_processes({0, 1, 3}, [&](int rank) {
    process_rendezvous(at, rank, one_node(6), soon(milliseconds(400)));
    return "met";
  });
  EXPECT_THAT(results,
              Each(AllOf(StartsWith("timeout: "), HasSubstr("ranks 2, 4 and 5 of 6 did not come"),
                         EndsWith("(culprit 2)"))));
  EXPECT_LT(now_ns() - begin, 3'000'000'000);
}

TEST(Rendezvous, RankZeroIsNamedWhenItIsMissing) {
  const std::string at = address("headless");
  const auto results = in_processes({1, 2}, [&](int rank) {
    process_rendezvous(at, rank, one_node(3), soon(milliseconds(300)));
    return "met";
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("timeout: "), HasSubstr("rank 0 of 3 did not come"),
                                  EndsWith("(culprit 0)"))));
}

TEST(Rendezvous, ARankThatGivesUpEarlyHearsWhoIsMissing) {
  const std::string at = address("early");
  const std::int64_t begin = now_ns();
  const auto results = in_processes({0, 1}, [&](int rank) {
    process_rendezvous(at, rank, one_node(3),
                       rank == 1 ? soon(milliseconds(300)) : soon(seconds(30)));
    return "met";
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("timeout: "), HasSubstr("rank 1 reached its deadline"),
                                  HasSubstr("rank 2 of 3 did not come"), EndsWith("(culprit 2)"))));
  EXPECT_LT(now_ns() - begin, 5'000'000'000);
}

// Ranks 0 and 2 check for an error of the collectives while they wait for something else.
TEST(Rendezvous, WhereAMemberGivesUpTheCoordinatorIsNotAbsent) {
  const std::string at = address("looks");
  const auto results = in_processes({0, 1, 2}, [&](int rank) -> std::string {
    const Roster roster{unix_endpoint(at, 3), own_hello(at, rank, one_node(3)), ranks(3)};
    const auto collectives = join(roster, soon());
    if (rank == 1) collectives->all_gather("", soon(milliseconds(300)));
    for (const Deadline by = soon(); !by.passed(); usleep(1000)) collectives->look();
    return "received no error";
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("timeout: rank 1 reached its deadline"),
                                  HasSubstr("; rank 2 had not come"), EndsWith("(culprit 2)"))));
}

// Rank 2 comes first and reaches its deadline. By the time the coordinator comes, so has rank 1:
// the gather is complete, and rank 2 takes its reply.
TEST(Rendezvous, AGatherThatAllHaveJoinedDoesNotEndByADeadline) {
  const std::string at = address("complete");
  void* const shared =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& phase = *new (shared) std::atomic<int>{0};  // 1: rank 2 has sent its text; 2: rank 1 comes
  const auto results = in_processes({0, 1, 2}, [&](int rank) -> std::string {
    const Roster roster{unix_endpoint(at, 3), own_hello(at, rank, one_node(3)), ranks(3)};
    const auto collectives = join(roster, soon());
    const auto await = [&](int number) {
      while (phase.load(std::memory_order_acquire) < number) usleep(1000);
    };
    if (rank == 0) {
      usleep(100'000);
      collectives->look();  // takes the text of rank 2, and not yet its failure
      phase.store(1, std::memory_order_release);
      await(2);
      usleep(50'000);
    } else if (rank == 1) {
      await(1);
      usleep(250'000);
      phase.store(2, std::memory_order_release);
    }
    return fmt::format(
        "{}", collectives->all_gather("x", soon(milliseconds(rank == 2 ? 250 : 20'000))).size());
  });
  munmap(shared, 4096);
  EXPECT_THAT(results, Each("3"));
}

// Rank 3 never comes; the coordinator is interrupted meanwhile, or a member is.
TEST(Rendezvous, ARankInterruptedWhileTheyMeetIsNamed) {
  for (const int victim : {0, 1}) {
    const std::string at = address("interrupted");
    const auto results = in_processes({0, 1, 2}, [&](int rank) -> std::string {
      const Deadline hit = soon(milliseconds(200));
      const std::function<bool()> interrupted = [&] { return rank == victim && hit.passed(); };
      process_rendezvous(at, rank, one_node(4), Deadline::after(seconds(20), &interrupted));
      return "met";
    });
    const std::string named = fmt::format("rank {} was interrupted", victim);
    EXPECT_THAT(results, Each(AllOf(StartsWith("interrupted: "), HasSubstr(named),
                                    EndsWith(fmt::format("(culprit {})", victim)))));
  }
}

TEST(Rendezvous, DifferentSizesNeverMeetAndTheMessageSaysSo) {
  const std::string at = address("sizes");
  const auto results = in_processes({0, 1}, [&](int rank) {
    process_rendezvous(at, rank, one_node(2 + rank), soon(milliseconds(300)));
    return "met";
  });
  EXPECT_THAT(results,
              Each(AllOf(StartsWith("timeout: "), HasSubstr("the same address and size"))));
}

TEST(Rendezvous, TwoProcessesOfOneRankAreNamed) {
  const std::string at = address("twins");
  const auto results = in_processes({0, 1, 1}, [&](int rank) {
    process_rendezvous(at, rank, one_node(3), soon());
    return "met";
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("invalid_argument: "),
                                  HasSubstr("two processes claim to be rank 1: pid "))));
}

TEST(Rendezvous, TwoRanksZeroAreNamedLongBeforeTheDeadline) {
  const std::string at = address("two-zeros");
  const auto results = in_processes({0, 0, 1}, [&](int rank) {
    process_rendezvous(at, rank, one_node(3), soon(seconds(40)));
    return "met";
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("invalid_argument: "),
                                  HasSubstr("two processes claim to be rank 0: pid "))));
}

// As two containers with networks of their own: neither can know of the other.
TEST(Rendezvous, RanksOfSeparateNetworksAreToldHowToMeet) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: only root can make a network namespace";
  const std::string at = address("networks");
  const auto results = in_processes({0, 1}, [&](int rank) -> std::string {
    if (rank == 1 && unshare(CLONE_NEWNET) != 0) return "no namespace";
    process_rendezvous(at, rank, one_node(2), soon(milliseconds(500)));
    return "met";
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("timeout: "), HasSubstr("network namespace (net:["),
                                  HasSubstr("meet at tcp://host:port"))));
}

TEST(Rendezvous, RanksOutsideOfTheGroupAreRefused) {
  EXPECT_THROW(process_rendezvous("x", 2, one_node(2), soon()), Error);
  EXPECT_THROW(process_rendezvous("x", -1, one_node(2), soon()), Error);
  EXPECT_THROW(process_rendezvous("x", 0, one_node(0), soon()), Error);
}

TEST(Rendezvous, KilledRankIsFoundDeadAndNamed) {
  const std::string at = address("killed");
  const auto results = in_processes(ranks(4), [&](int rank) -> std::string {
    const auto rendezvous = process_rendezvous(at, rank, one_node(4), soon());
    const int victim = rendezvous->pid(2);
    rendezvous->all_gather("", soon());
    if (rank == 2) pause();
    if (!rendezvous->alive(2)) return "dead too early";
    usleep(100'000);  // all have looked
    if (rank == 1) kill(victim, SIGKILL);
    const std::int64_t begin = now_ns();
    while (rendezvous->alive(2)) {
      if (now_ns() - begin > 1'000'000'000) return "still alive after a second";
      usleep(500);
    }
    if (!rendezvous->alive(0) || !rendezvous->alive(3)) return "others died";
    usleep(100'000);
    for (int again = 0; again < 2; ++again) {
      try {
        rendezvous->all_gather("", soon());
        return "gathered";
      } catch (const Error& error) {
        if (again == 1) throw;
      }
    }
    return "";
  });
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(results[static_cast<std::size_t>(rank)],
                AllOf(StartsWith("peer_lost: "), HasSubstr("rank 2 (pid ")));
  }
}

TEST(Rendezvous, RankKilledInACollectiveIsNamedAtOnce) {
  for (const int victim : {0, 2}) {
    const std::string at = address("killed-inside");
    const std::int64_t begin = now_ns();
    const auto results = in_processes(ranks(3), [&](int rank) {
      const auto rendezvous = process_rendezvous(at, rank, one_node(3), soon());
      if (rank == victim) {
        usleep(100'000);
        raise(SIGKILL);
      }
      return joined(rendezvous->all_gather("", soon()));
    });
    const std::string named = fmt::format("rank {} (pid ", victim);
    const auto culprit = EndsWith(fmt::format("(culprit {})", victim));
    for (const std::string& result : {results[1], results[static_cast<std::size_t>(2 - victim)]})
      EXPECT_THAT(result, AllOf(StartsWith("peer_lost: "), HasSubstr(named), culprit));
    EXPECT_LT(now_ns() - begin, 3'000'000'000);
  }
}

TEST(Rendezvous, ALeavingRankFailsTheNextCollectiveOfTheOthers) {
  const std::string at = address("leaves");
  const auto results = in_processes(ranks(3), [&](int rank) -> std::string {
    auto rendezvous = process_rendezvous(at, rank, one_node(3), soon());
    rendezvous->all_gather("", soon());
    if (rank == 1) {
      rendezvous.reset();
      usleep(200'000);
      return "left";
    }
    return joined(rendezvous->all_gather("", soon()));
  });
  EXPECT_THAT(results[0], AllOf(StartsWith("peer_lost: rank 1 (pid "), HasSubstr("ended or left")));
  EXPECT_EQ(results[1], "left");
  EXPECT_EQ(results[2], results[0]);
}

TEST(Rendezvous, StoppedRankIsAliveAndNamedAtTheDeadline) {
  const std::string at = address("stopped");
  std::vector<Forked> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.emplace_back([&at, rank]() -> std::string {
      const auto rendezvous = process_rendezvous(at, rank, one_node(3), soon());
      if (rank == 2) raise(SIGSTOP);
      usleep(50'000);
      if (!rendezvous->alive(2)) return "dead";
      return joined(rendezvous->all_gather("", soon(milliseconds(400))));
    });
  }
  for (const std::size_t rank : {0, 1}) {
    EXPECT_THAT(children[rank].result(), AllOf(StartsWith("timeout: "), HasSubstr("rank 2")));
  }
}

TEST(Rendezvous, SignalsWithoutRestartDoNoHarm) {
  const std::string at = address("signals");
  const auto results = in_processes(ranks(3), [&](int rank) -> std::string {
    struct sigaction action {};
    action.sa_handler = [](int) {};  // no SA_RESTART: calls end with EINTR
    sigaction(SIGALRM, &action, nullptr);
    const itimerval often{{0, 700}, {0, 700}};
    setitimer(ITIMER_REAL, &often, nullptr);
    for (int group = 0; group < 10; ++group) {
      const auto rendezvous = process_rendezvous(at, rank, one_node(3), soon());
      if (!rendezvous->share_segment(1 << 20, soon())->commit(0, 1 << 20)) return "refused";
      for (int i = 0; i < 20; ++i) rendezvous->all_gather(std::string(100'000, 'x'), soon());
    }
    return "ok";
  });
  EXPECT_THAT(results, Each("ok"));
}

TEST(Rendezvous, RefusedSegmentIsAnErrorOnAllRanksAndTheGroupGoesOn) {
  const std::string at = address("refused");
  const auto results = in_processes(ranks(3), [&](int rank) -> std::string {
    const auto rendezvous = process_rendezvous(at, rank, one_node(3), soon());
    return refused_segment(*rendezvous, soon());
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("rank 0: "), HasSubstr("1152921504606846976 bytes"))));
}

TEST(Rendezvous, RanksThatAskForDifferentSegmentsAreNamedAndTheGroupGoesOn) {
  const std::string at = address("mismatch");
  const auto results = in_processes(ranks(2), [&](int rank) -> std::string {
    const auto rendezvous = process_rendezvous(at, rank, one_node(2), soon());
    std::string why;
    try {
      rendezvous->share_segment(rank == 0 ? 4096 : 8192, soon());
    } catch (const Error& error) {
      why = error.what();
    }
    rendezvous->share_segment(4096, soon());
    return why;
  });
  EXPECT_THAT(results,
              Each(AllOf(HasSubstr("rank 0 of 4096 bytes"), HasSubstr("rank 1 of 8192 bytes"))));
}

TEST(Rendezvous, TooFewDescriptorsForAllRanksIsAnErrorThatSaysSo) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "NOT TESTED: the sanitizer needs descriptors for itself";
#endif
  const std::string at = address("no-descriptors");
  const auto results = in_processes(ranks(8), [&](int rank) -> std::string {
    const rlimit few{8, 8};
    if (rank == 0) setrlimit(RLIMIT_NOFILE, &few);
    process_rendezvous(at, rank, one_node(8), soon(seconds(1)));
    return "met";
  });
  EXPECT_THAT(results[0],
              AllOf(StartsWith("system: rank 0 cannot accept"), HasSubstr("ulimit -n")));
}

// One descriptor for each absent rank is kept from the rest of the process, strangers included.
TEST(Rendezvous, DescriptorsForRanksAreReservedBeforeTheyCome) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "NOT TESTED: the sanitizer needs descriptors for itself";
#endif
  const std::string at = address("reserved");
  const auto results = in_processes(ranks(8), [&](int rank) -> std::string {
    if (rank == 0) {
      const rlimit few{32, 32};
      setrlimit(RLIMIT_NOFILE, &few);
      std::thread([] {  // opens all descriptors that it can while ranks connect
        usleep(200'000);
        while (open("/dev/null", O_RDONLY) >= 0) continue;
      })
          .detach();
    } else {
      usleep(400'000);
    }
    const Roster roster{unix_endpoint(at, 8), own_hello(at, rank, one_node(8)), ranks(8)};
    return fmt::format("{}", join(roster, soon())->all_gather("x", soon()).size());
  });
  EXPECT_THAT(results, Each("8"));
}

TEST(Rendezvous, DeathIsFoundWithoutPidfdsToo) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "NOT TESTED: the sanitizer needs descriptors for itself";
#endif
  const std::string at = address("few-descriptors");
  void* const shared =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& looked = *new (shared) std::atomic<int>{0};
  const auto results = in_processes(ranks(3), [&](int rank) -> std::string {
    const rlimit few{11, 11};  // not four times the ranks
    setrlimit(RLIMIT_NOFILE, &few);
    const auto rendezvous = process_rendezvous(at, rank, one_node(3), soon());
    rendezvous->all_gather("", soon());
    if (rank == 1) raise(SIGKILL);
    const std::int64_t begin = now_ns();
    while (rendezvous->alive(1) && now_ns() - begin < 1'000'000'000) usleep(500);
    const std::string seen =
        fmt::format("{} {}", rendezvous->alive(1), rendezvous->alive(2 - rank));
    looked.fetch_add(1, std::memory_order_relaxed);
    const auto both = [&] { return looked.load(std::memory_order_relaxed) == 2; };
    while (!both() && now_ns() - begin < 10'000'000'000) usleep(500);  // both need this process
    return seen;
  });
  munmap(shared, 4096);
  EXPECT_EQ(results[0], "false true");
  EXPECT_EQ(results[2], "false true");
}

}  // namespace
}  // namespace ferry::internal
