// Between nodes, too, all workers of a rank move its rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "exchange/internode/message_layout.h"
#include "network/passing_transport.h"
#include "seat.h"

namespace ferry::test {
namespace {

// The threads that sent rows, of each rank.
struct Senders {
  std::mutex mutex;
  std::map<int, std::set<std::thread::id>> of_rank;
};

// UCX, and a note of which threads send rows: a message leaves by the thread that wrote its last
// row. Messages count as under way until this rank waits, so that room is short.
class NotingTransport final : public PassingTransport {
 public:
  explicit NotingTransport(Senders& senders)
      : PassingTransport(internal::ucx_transport()), senders_(senders) {}

  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) override {
    internal::ByteReader reader(body);
    const auto message = reader.get<internal::MessageHead>();
    if (reader.ok() && message.channel == 1 && message.kind == internal::kRows) {
      const std::lock_guard lock(senders_.mutex);
      senders_.of_rank[message.source].insert(std::this_thread::get_id());
    }
    if (PassingTransport::send(peer, head, body, ticket)) under_way_.push_back(ticket);
    return false;
  }
  bool progress(const PacketReader& read, Events& events) override {
    const std::vector<void*> left = std::exchange(under_way_, {});
    events.sent.insert(events.sent.end(), left.begin(), left.end());
    return PassingTransport::progress(read, events) || !left.empty();
  }
  bool arm() override { return under_way_.empty() && PassingTransport::arm(); }

 private:
  Senders& senders_;
  std::vector<void*> under_way_;
};

// Returns how many threads sent rows of a rank, at most.
std::size_t play(const std::string& topology, int ranks, const ExchangeConfig& config, int rounds) {
  const Scenario scenario = plain_scenario(ranks, config, rounds, 91);
  Senders senders;
  const FrameTransports transports(
      [&senders] { return std::make_unique<NotingTransport>(senders); });
  const auto body = [&](Group group) {
    Seat seat(group, scenario);
    for (int round = 0; round < rounds; ++round) seat.play(round);
  };
  run_ranks(Mode::kThreads, ranks, body, topology, {.topology = topology});
  std::size_t most = 0;
  for (const auto& [rank, threads] : senders.of_rank) most = std::max(most, threads.size());
  return most;
}

// Half of 300 rows of 8 KiB leave a rank: about 20 messages.
TEST(WorkersBetweenNodes, PackRows) {
  ExchangeConfig config = {.max_tokens = 300,
                           .hidden = 4096,
                           .num_experts = 4,
                           .top_k = 1,
                           .node_sums = NodeSums::kExact};  // as the oracle's one node
  EXPECT_EQ(play("host:2,rank:1", 2, config, 3), 1u);
  config.workers = 3;
  EXPECT_GT(play("host:2,rank:1", 2, config, 3), 1u);
}

TEST(WorkersBetweenNodes, WaitForRoom) {
  ExchangeConfig config = {
      .num_experts = 8, .top_k = 4, .workers = 3, .node_sums = NodeSums::kExact};
  const auto play_rows = [&](int tokens, std::int64_t hidden) {
    config.max_tokens = tokens;
    config.hidden = hidden;
    play("host:2,rank:2", 4, config, 1);
  };
  for (const Algorithm algorithm : {Algorithm::kHierarchical, Algorithm::kFullmesh}) {
    config.algorithm = algorithm;
    play_rows(48, 7168);
    play_rows(9, 60000);   // a message for each row
    play_rows(5, 140000);  // of more than a buffer
  }
}

}  // namespace
}  // namespace ferry::test
