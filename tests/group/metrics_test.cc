// FERRY_METRICS at a port: a client that reads slowly, and the end of a job. Counters that are read
// while they grow.
#include "group/metrics.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "bootstrap/tcp.h"

namespace ferry::internal {
namespace {

constexpr int kManyRanks = 500;  // that all have waited for each other: 16 MB of text
constexpr std::size_t kPiece = 64 << 10;
constexpr useconds_t kPieceUs = 100'000;

NodeCounters node_of_many_waits() {
  const std::size_t rows = 4096, row_bytes = RankCounters::row_bytes(kManyRanks);
  NodeCounters node{.segment = Segment::create(rows + kManyRanks * row_bytes),
                    .ranks = std::vector<int>(kManyRanks)};
  EXPECT_TRUE(node.segment->commit(0, rows + kManyRanks * row_bytes));
  auto& head = *reinterpret_cast<CountersHead*>(node.segment->data());
  head.num_ranks = kManyRanks;
  head.rows_offset = rows;
  head.row_bytes = row_bytes;
  std::iota(node.ranks.begin(), node.ranks.end(), 0);
  for (const int rank : node.ranks) {
    for (const int peer : node.ranks) node.of(rank).waited(peer, 1'000'000'000);
  }
  return node;
}

// Returns when the first bytes have come, so that the rest is on its way.
Descriptor scrape(int port) {
  Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int small = 64 << 10;  // so that the other socket keeps what does not fit
  setsockopt(client.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<in_port_t>(port));
  EXPECT_EQ(connect(client.fd(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  EXPECT_EQ(send(client.fd(), "GET", 3, 0), 3);
  char byte;
  EXPECT_EQ(recv(client.fd(), &byte, 1, MSG_PEEK), 1);
  return client;
}

// The bytes of a client that reads a piece, and pauses, until the job has ended.
std::size_t read_slowly(const Descriptor& client, const std::atomic<bool>& ended) {
  std::string piece(kPiece, '\0');
  std::size_t all = 0;
  while (!ended) {
    const ssize_t got = recv(client.fd(), piece.data(), piece.size(), 0);
    if (got <= 0) break;
    all += static_cast<std::size_t>(got);
    usleep(kPieceUs);
  }
  return all;
}

TEST(Metrics, ClientThatReadsSlowlyDoesNotHoldUpTheEndOfAJob) {
  const int port = port_of(tcp_listen("lo", 0));
  setenv("FERRY_METRICS", fmt::format("port:{}", port).c_str(), 1);
  const NodeCounters node = node_of_many_waits();
  const std::size_t whole = metrics_text({&node}).size();
  ASSERT_GT(whole, std::size_t{8} << 20) << "more than the sockets keep";
  std::size_t received = 0;
  std::atomic<bool> ended = false;
  std::thread client;
  {
    Metrics metrics;
    metrics.show(node);
    client = std::thread([&, socket = scrape(port)] { received = read_slowly(socket, ended); });
  }
  ended = true;
  client.join();
  EXPECT_LT(received, whole / 2) << "the end of the job waited for the client";
  unsetenv("FERRY_METRICS");
}

// Calls with even numbers are of kind 2, those with odd numbers of kind 1.
TEST(Counters, TheNumberOfTheLatestCollectiveIsReadWithItsKind) {
  constexpr std::uint64_t kCalls = 3'000'000;
  std::vector<std::uint64_t> row(RankCounters::row_bytes(1) / sizeof(std::uint64_t));
  RankCounters counters(reinterpret_cast<std::byte*>(row.data()));
  std::jthread caller([&] {
    for (std::uint64_t i = 1; i <= kCalls; ++i) counters.begin_collective(i % 2 == 0 ? 2 : 1);
  });
  LatestCollective latest;
  for (int wrong = 0; latest.number < kCalls && wrong == 0;) {
    latest = LatestCollective::of(counters.value(static_cast<int>(Counter::kLatestCollective)));
    wrong = latest.number > 0 && latest.kind != (latest.number % 2 == 0 ? 2 : 1);
    EXPECT_FALSE(wrong) << "call " << latest.number << " is of kind " << int{latest.kind};
  }
}

// Of two threads that begin calls, the one with the smaller number may publish it last.
TEST(Counters, TheNumberOfTheLatestCollectiveNeverFalls) {
  std::vector<std::uint64_t> row(RankCounters::row_bytes(1) / sizeof(std::uint64_t));
  RankCounters counters(reinterpret_cast<std::byte*>(row.data()));
  counters.began({.number = 8, .kind = 2});
  counters.began({.number = 7, .kind = 3});
  const int index = static_cast<int>(Counter::kLatestCollective);
  const LatestCollective latest = LatestCollective::of(counters.value(index));
  EXPECT_EQ(latest.number, 8u);
  EXPECT_EQ(latest.kind, 2);
}

}  // namespace
}  // namespace ferry::internal
