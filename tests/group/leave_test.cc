// A rank that leaves acknowledges, as its last message, whatever may still come from ranks of other
// nodes that have not left: they would wait for it when they leave.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "bootstrap/rendezvous.h"
#include "group/state.h"
#include "network/local_transport.h"
#include "network/passing_transport.h"

namespace ferry::internal {
namespace {

constexpr std::uint8_t kAcknowledgement = 2;  // as in GroupMessage

// Counts the acknowledgements that are sent.
class CountingTransport final : public test::PassingTransport {
 public:
  CountingTransport(std::unique_ptr<Transport> transport, std::atomic<int>& sent)
      : PassingTransport(std::move(transport)), sent_(sent) {}
  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) override {
    const bool taken = PassingTransport::send(peer, head, body, ticket);
    if (taken) count({head, body});
    return taken;
  }

 private:
  // A packet is a message, or a bundle of some (MessageChannel).
  void count(const Packet& packet) {
    sent_ += is_acknowledgement(packet.body);
    ByteReader bundle(packet.body);
    while (bundle.ok() && bundle.remaining() > 0)
      sent_ += is_acknowledgement(bundle.take(bundle.get<std::uint64_t>()));
  }
  static bool is_acknowledgement(std::span<const std::byte> message) {
    ByteReader reader(message);
    const auto head = reader.get<MessageHead>();
    return reader.ok() && head.channel == 0 && head.kind == kAcknowledgement;
  }

  std::atomic<int>& sent_;
};

TEST(Leave, FirstRankAcknowledgesWhatMayStillCome) {
  const test::LocalNetwork network;
  std::array<std::atomic<int>, 2> sent = {};
  std::array<std::unique_ptr<GroupState>, 2> states;
  auto met = thread_rendezvous({0, 1});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto by = Deadline::after(std::chrono::seconds(60));
      const auto make = [&, rank] {
        return std::make_unique<CountingTransport>(network.transport(), sent[rank]);
      };
      const GroupOptions options = {.topology = "host:2,rank:1"};
      states[rank] =
          std::make_unique<GroupState>(std::move(met[rank]), options, GroupOrigin{}, by, make);
      EXPECT_TRUE(states[rank]->barrier().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sent[0], 0);
  states[0]->leave();
  EXPECT_EQ(sent[1], 1);  // acknowledges the last message of rank 0
  EXPECT_EQ(sent[0], 1);  // acknowledges a message that has not come
  states[1]->leave();
}

}  // namespace
}  // namespace ferry::internal
