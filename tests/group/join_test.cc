// How a new group finds its rendezvous: topology, secret, and a caller's own all-gather, on one
// host, and across user namespaces, which ferry treats as several hosts because processes in them
// may not share memory.
#include "group/join.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstring>
#include <thread>

#include "bootstrap/forked.h"
#include "bootstrap/meeting.h"
#include "bootstrap/tcp.h"
#include "group/state.h"
#include "network/local_transport.h"
#include "network/passing_transport.h"

namespace ferry::internal {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kSize = 3;

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

GroupOptions with_topology(const std::string& topology) {
  GroupOptions options;
  options.deadline = std::chrono::seconds(20);
  options.topology = topology;
  return options;
}

TEST(Join, TopologySplitsRanksIntoNodes) {
  EXPECT_THAT(split_nodes(with_topology(""), 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(split_nodes(with_topology("host:2,rank:1+2"), 3), ElementsAre(0, 1, 1));
  setenv("FERRY_TOPOLOGY", "host:3,rank:1", 1);
  EXPECT_THAT(split_nodes(with_topology(""), 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(split_nodes(with_topology("host:2,rank:1+2"), 3), ElementsAre(0, 1, 1));
  unsetenv("FERRY_TOPOLOGY");
}

TEST(Join, TopologyOfAnotherSizeNamesBoth) {
  EXPECT_THAT(refusal([] { split_nodes(with_topology("host:2,rank:4"), 7); }),
              AllOf(HasSubstr("\"host:2,rank:4\" has 8 ranks"), HasSubstr("the group has 7")));
}

TEST(Join, TopologyOfAGroupComesFromTheOptionsTheEnvironmentOrTheHosts) {
  GroupOptions options;
  EXPECT_EQ(topology_of(options, {0, 1}).to_text(), "host:2,rank:1");
  setenv("FERRY_TOPOLOGY", "host:2@10GB/s,rank:1", 1);
  EXPECT_EQ(topology_of(options, {0, 1}).to_text(), "host:2@10GB/s,rank:1");
  options.topology = "host:2@20GB/s,rank:1";
  EXPECT_EQ(topology_of(options, {0, 1}).to_text(), "host:2@20GB/s,rank:1");
  unsetenv("FERRY_TOPOLOGY");
}

TEST(Join, TopologyThatPutsTwoHostsIntoOneNamesTwoOfTheirRanks) {
  GroupOptions options;
  options.topology = "numa:2,rank:2";
  EXPECT_EQ(topology_of(options, {0, 0, 0, 0}).num_nodes(), 1);
  EXPECT_THAT(
      [&] {
        topology_of(options, {0, 0, 1, 1});
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("ranks 0 and 2"), HasSubstr("\"host\""))));
}

TEST(Join, TcpNeedsASecretAndSaysHowToMakeOne) {
  const JoinAddress at_address{"tcp://127.0.0.1:1", "job", 0, 2};
  unsetenv("FERRY_SECRET");
  EXPECT_THAT(refusal([&] { join_at_address(at_address, {}, soon()); }),
              AllOf(HasSubstr("needs FERRY_SECRET"), HasSubstr("16 or more characters"),
                    HasSubstr("ferry launch")));
  setenv("FERRY_SECRET", "short", 1);
  EXPECT_THAT(refusal([&] { join_at_address(at_address, {}, soon()); }),
              AllOf(HasSubstr("FERRY_SECRET has 5 characters"), testing::Not(HasSubstr("short"))));
  unsetenv("FERRY_SECRET");
}

TEST(Join, AtAnAddressOverTcp) {
  setenv("FERRY_SECRET", "sixteen or more characters", 1);
  const int port = port_of(tcp_listen("", 0));
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const JoinAddress at{fmt::format("tcp://{}:{}", host, port), "job"};
    const auto results = in_processes({0, 1, 2}, [&](int rank) {
      const auto met = join_at_address({at.address, at.job, rank, kSize},
                                       with_topology("host:2,rank:1+2"), soon());
      met->all_gather("", Deadline::after(std::chrono::seconds(20)));
      return fmt::format("{}", fmt::join(met->nodes(), " "));
    });
    EXPECT_THAT(results, Each("0 1 1"));
  }
  unsetenv("FERRY_SECRET");
}

// An all-gather in memory that children inherit: what MPI or a store is to a caller.
struct Board {
  std::atomic<int> came[2];  // in each round
  char records[2][kSize][1024];

  static Board* shared() {
    void* memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return new (memory) Board{};
  }
  bool gather(int round, int rank, const void* mine, void* all, std::size_t bytes) {
    std::memcpy(records[round][rank], mine, bytes);
    came[round].fetch_add(1, std::memory_order_acq_rel);
    // Acquire: the records of those that came. Partner: the line above.
    while (came[round].load(std::memory_order_acquire) < kSize) usleep(500);
    for (int peer = 0; peer < kSize; ++peer)
      std::memcpy(static_cast<char*>(all) + peer * bytes, records[round][peer], bytes);
    return true;
  }
};

// "<nodes>; <all-gathers>; <pids known>", when all ranks hear each other.
std::string meet_by(Board& board, int rank) {
  int round = 0;
  const AllGather gather = [&](const void* mine, void* all, std::size_t bytes) {
    return board.gather(round++, rank, mine, all, bytes);
  };
  std::optional<Deadline> by;
  const auto met = join_by_all_gather(rank, kSize, gather, with_topology(""), by).first;
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  if (met->all_gather(std::to_string(rank), deadline)[2] != "2") return "mixed";
  if (!met->share_segment(4096, deadline)) return "no segment";
  std::string seen;
  for (int peer = 0; peer < kSize; ++peer) {
    seen += met->pid(peer) == 0 ? '-' : '+';
    if (!met->alive(peer)) return "dead";
  }
  met->all_gather("", deadline);
  return fmt::format("{}; {}; {}", fmt::join(met->nodes(), " "), round, seen);
}

// A record of rank 0 that somebody else made: no text in it ends, and 0x41414141 is no port.
TEST(Join, ByAllGatherOfBytesThatAreNoRecordsIsRefused) {
  const AllGather gather = [](const void* mine, void* all, std::size_t bytes) {
    std::memset(all, 'A', 2 * bytes);
    std::memcpy(static_cast<char*>(all) + bytes, mine, bytes);
    return true;
  };
  for (const char* secret : {"", "AAAAAAAAAAAAAAAAA"}) {
    setenv("FERRY_SECRET", secret, 1);
    std::optional<Deadline> by;
    EXPECT_THAT(refusal([&] { join_by_all_gather(1, 2, gather, with_topology(""), by); }),
                testing::AnyOf(HasSubstr("rank 0's port is 1094795585"),
                               HasSubstr("set the same on all ranks or on none")));
  }
  unsetenv("FERRY_SECRET");
}

TEST(Join, ByAllGatherOnOneHost) {
  Board* board = Board::shared();
  const auto results = in_processes({0, 1, 2}, [&](int rank) { return meet_by(*board, rank); });
  EXPECT_THAT(results, Each("0 0 0; 1; +++"));
}

// A host without UCX, say.
TEST(Join, ATransportThatOneRankCannotMakeIsReportedToAll) {
  const test::LocalNetwork network;
  auto met = thread_rendezvous({0, 1, 1});
  std::vector<std::string> told(kSize);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto make_transport = [&network, rank]() -> std::unique_ptr<Transport> {
        if (rank == 2) throw Error(Code::kSystem, "no such library");
        return network.transport();
      };
      told[rank] =
          refusal([&] { GroupState group(std::move(met[rank]), {}, {}, soon(), make_transport); });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(told, Each("rank 2: no such library"));
}

// A transport whose peer 2 is unconnected for the first `looks` looks.
class SlowTransport final : public test::PassingTransport {
 public:
  SlowTransport(std::unique_ptr<Transport> transport, int looks)
      : PassingTransport(std::move(transport)), looks_(looks) {}
  std::map<int, std::string> unconnected() const override {
    if (looks_ == 0) return {};
    --looks_;
    return {{2, "port 4712 of 10.0.0.2"}};
  }

 private:
  mutable int looks_;
};

// What each rank of {0, 1, 1} is told when rank 0's transport is connected only after `looks`
// looks.
std::vector<std::string> told_of(int looks, const GroupOptions& options) {
  const test::LocalNetwork network;
  auto met = thread_rendezvous({0, 1, 1});
  std::vector<std::string> told(kSize);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto make_transport = [&, rank] {
        return std::make_unique<SlowTransport>(network.transport(), rank == 0 ? looks : 0);
      };
      const auto by = Deadline::after(options.deadline, &options.interrupted);
      told[rank] =
          refusal([&] { GroupState group(std::move(met[rank]), options, {}, by, make_transport); });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return told;
}

TEST(Join, WaitsForPeersThatDoNotAnswerAtOnce) {
  EXPECT_THAT(told_of(40, with_topology("host:2,rank:1+2")), Each("accepted"));
}

TEST(Join, PeerThatDoesNotAnswerIsToldToAllBeforeTheDeadline) {
  GroupOptions options = with_topology("host:2,rank:1+2");
  options.deadline = std::chrono::seconds(1);
  const std::int64_t began_ns = now_ns();
  EXPECT_THAT(told_of(1 << 30, options),
              Each(AllOf(HasSubstr("rank 0: rank 2 does not answer at port 4712 of 10.0.0.2"),
                         HasSubstr("UCX_TCP_PORT_RANGE"), HasSubstr("deadline 1 s"))));
  EXPECT_LT(now_ns() - began_ns, 5'000'000'000);
}

TEST(Join, WaitForAPeerThatDoesNotAnswerCanBeInterrupted) {
  GroupOptions options = with_topology("host:2,rank:1+2");
  const std::int64_t began_ns = now_ns();
  options.interrupted = [=] { return now_ns() - began_ns > 300'000'000; };
  EXPECT_THAT(told_of(1 << 30, options), Each(HasSubstr("was interrupted")));
}

// A transport that refuses to connect to the first of its peers.
class RefusingTransport final : public test::PassingTransport {
 public:
  using PassingTransport::PassingTransport;
  void connect(const std::map<int, std::string>& addresses) override {
    const int peer = addresses.begin()->first;
    throw Error(Code::kSystem, fmt::format("cannot reach rank {}", peer), peer);
  }
};

// Rank 0 cannot reach rank 1, which may have been killed: all ranks name rank 1, not rank 0.
TEST(Join, PeerThatCannotBeReachedIsTheCulpritOnAllRanks) {
  const test::LocalNetwork network;
  auto met = thread_rendezvous({0, 1, 1});
  std::vector<std::string> ends(kSize);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto make_transport = [&]() -> std::unique_ptr<Transport> {
        if (rank == 0) return std::make_unique<RefusingTransport>(network.transport());
        return network.transport();
      };
      try {
        GroupState group(std::move(met[rank]), {}, {}, soon(), make_transport);
      } catch (const Error& error) {
        ends[rank] = fmt::format("{} {} {}", code_name(error.code()), error.culprit(),
                                 std::string(error.what()).substr(0, 27));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(ends, Each("peer_lost 1 rank 0: cannot reach rank 1"));
}

bool namespaces_are_allowed() {
  return Forked([] { return unshare(CLONE_NEWUSER) == 0 ? "yes" : "no"; }).result() == "yes";
}

TEST(Join, ByAllGatherAcrossHosts) {
  if (!namespaces_are_allowed()) GTEST_SKIP() << "NOT TESTED: user namespaces are not allowed here";
  const auto with_rank_apart = [](int apart) {
    Board* board = Board::shared();
    return in_processes({0, 1, 2}, [&](int rank) -> std::string {
      if (rank == apart && unshare(CLONE_NEWUSER) != 0) return "refused";
      return meet_by(*board, rank);
    });
  };
  EXPECT_THAT(with_rank_apart(2), ElementsAre("0 0 1; 2; ++-", "0 0 1; 2; ++-", "0 0 1; 2; --+"));
  EXPECT_THAT(with_rank_apart(0), ElementsAre("0 1 1; 2; +--", "0 1 1; 2; -++", "0 1 1; 2; -++"));
}

// The longest run of hexadecimal digits in all that crossed the caller's all-gather in the second
// round.
std::size_t longest_number(const Board& board) {
  std::size_t longest = 0, now = 0;
  for (const char c : std::string_view(&board.records[1][0][0], sizeof board.records[1])) {
    now = std::isxdigit(static_cast<unsigned char>(c)) ? now + 1 : 0;
    longest = std::max(longest, now);
  }
  return longest;
}

TEST(Join, ByAllGatherAcrossHostsASecretOfAllRanksIsProvenAndNoneIsSent) {
  if (!namespaces_are_allowed()) GTEST_SKIP() << "NOT TESTED: user namespaces are not allowed here";
  const auto meet = [](Board& board, const std::vector<std::string>& secrets) {
    return in_processes({0, 1, 2}, [&](int rank) -> std::string {
      setenv("FERRY_SECRET", secrets[rank].c_str(), 1);
      if (rank == 2 && unshare(CLONE_NEWUSER) != 0) return "refused";
      std::string met;
      const std::string refused = refusal([&] { met = meet_by(board, rank); });
      return met.empty() ? refused : met;
    });
  };
  const std::string secret = "sixteen or more characters";
  Board* board = Board::shared();
  EXPECT_THAT(meet(*board, {secret, secret, secret}), Each(HasSubstr("0 0 1; 2; ")));
  EXPECT_LT(longest_number(*board), 16);
  board = Board::shared();
  EXPECT_THAT(meet(*board, {"", "", ""}), Each(HasSubstr("0 0 1; 2; ")));
  EXPECT_EQ(longest_number(*board), 64);  // open to whoever reads the all-gather
  EXPECT_THAT(meet(*Board::shared(), {secret, "", secret}),
              Each(HasSubstr("set the same on all ranks or on none")));
}

}  // namespace
}  // namespace ferry::internal
