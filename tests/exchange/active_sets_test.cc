// Sets of active ranks that change between nodes: with them the ways of messages change, so flags
// of one set might overtake rows of another.
#include <gtest/gtest.h>

#include <atomic>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "exchange/internode/forwarder.h"
#include "network/link.h"
#include "seat.h"

namespace ferry::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kLonger = 1500;  // ms: than ranks that are left out are waited for

// Rows of operation 1 that lie somewhere.
struct HeldRows {
  std::uint16_t origin;
  // Release by the rank that lets them go, acquire in HoldingLink.
  std::atomic<bool> held{true};
};

// UCX, where such rows are kept when they have come.
class HoldingLink final : public internal::Link {
 public:
  explicit HoldingLink(const HeldRows& rows) : link_(internal::ucx_link()), rows_(rows) {}

  std::string address() const override { return link_->address(); }
  void let_in(const std::vector<std::string>& addresses) override { link_->let_in(addresses); }
  void connect(const std::map<int, std::string>& addresses) override { link_->connect(addresses); }
  std::size_t max_body_bytes() override { return link_->max_body_bytes(); }
  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) override {
    return link_->send(peer, head, body, ticket);
  }
  bool progress(Events& events) override {
    Sieve sieve(*this, events);
    const bool moved = link_->progress(sieve);
    if (kept_.empty() || holds()) return moved;
    for (const auto& [head, body] : std::exchange(kept_, {})) events.arrived(head, body);
    return true;
  }
  bool arm() override { return link_->arm(); }
  void sleep(int wait_us) override { link_->sleep(wait_us); }
  void wake() override { link_->wake(); }
  std::string describe() const override { return link_->describe(); }

 private:
  struct Sieve final : Events {
    Sieve(HoldingLink& link, Events& events) : link(link), events(events) {}
    void arrived(std::span<const std::byte> head, std::span<const std::byte> body) override {
      if (link.holds() && link.concerned(body)) {
        link.kept_.emplace_back(Bytes(head.begin(), head.end()), Bytes(body.begin(), body.end()));
      } else {
        events.arrived(head, body);
      }
    }
    void sent(void* ticket) override { events.sent(ticket); }
    void lost(int peer, const std::string& why) override { events.lost(peer, why); }

    HoldingLink& link;
    Events& events;
  };

  bool holds() const { return rows_.held.load(std::memory_order_acquire); }
  // A packet is a message, or a bundle of some (MessageChannel).
  bool concerned(std::span<const std::byte> packet) const {
    if (are_rows(packet)) return true;
    internal::ByteReader bundle(packet);
    while (bundle.ok() && bundle.left() > 0)
      if (are_rows(bundle.take(bundle.get<std::uint64_t>()))) return true;
    return false;
  }
  bool are_rows(std::span<const std::byte> message) const {
    internal::ByteReader reader(message);
    const auto head = reader.get<internal::MessageHead>();
    return reader.ok() && head.channel != 0 && head.kind == internal::Forwarder::kRows &&
           head.number == 1 && head.origin == rows_.origin;
  }

  const std::unique_ptr<internal::Link> link_;
  const HeldRows& rows_;
  std::vector<std::pair<Bytes, Bytes>> kept_;
};

// Two rounds, each with its active ranks.
Scenario scenario_of(const Nodes& nodes, const std::vector<std::vector<int>>& active) {
  const ExchangeConfig config = {
      .max_tokens = 16, .hidden = 64, .num_experts = 12, .top_k = 2, .depth = 1};
  Scenario scenario = plain_scenario(static_cast<int>(nodes.of_rank.size()), config, 2, 82);
  for (std::size_t round = 0; round < active.size(); ++round) {
    for (internal::RankInput& input : scenario.rounds[round].inputs)
      input.active_ranks = active[round];
    expect_dispatch(config, scenario.rounds[round]);
  }
  return scenario;
}

void run_while_held(const Nodes& nodes, HeldRows& rows, const Body& body) {
  const FrameLinks links([&rows] { return std::make_unique<HoldingLink>(rows); });
  run_ranks(Mode::kThreads, static_cast<int>(nodes.of_rank.size()), body, nodes.topology,
            {.topology = nodes.topology});
}

// The rows of rank 1 come to the other node by rank 3, where they lie for a while. Rank 3 is left
// out of the next operation, in which rank 1 speaks to that node by rank 2.
TEST(ActiveSets, FlagsOfANewSetDoNotOvertakeRowsOfTheLast) {
  const Nodes nodes = nodes_of_sizes({2, 2});
  const Scenario scenario = scenario_of(nodes, {{}, {0, 1, 2}});
  HeldRows rows{.origin = 1};
  run_while_held(nodes, rows, [&](Group group) {
    Seat seat(group, scenario);
    const Operation sent = seat.dispatch_send(0);
    if (group.rank() == 3) {
      nap(kLonger);
      rows.held.store(false, std::memory_order_release);
    }
    seat.dispatch_recv(0, sent);
    seat.dispatch(1);
    require_ok(group.barrier(), "barrier");
  });
}

// Rank 2 takes the place of rank 1, which is stuck: what it tells their node of rank 0 is of an
// operation that comes after that whose rows rank 1 has not read.
TEST(ActiveSets, RankThatIsLeftBehindIsToldSo) {
  const Nodes nodes = nodes_of_sizes({1, 2});
  const Scenario scenario = scenario_of(nodes, {{0, 1}, {0, 2}});
  HeldRows rows{.origin = 0};
  run_while_held(nodes, rows, [&](Group group) {
    Seat seat(group, scenario);
    const Operation sent = seat.dispatch_send(0);
    if (group.rank() == 1) {
      nap(kLonger);
      Received received;
      const Status status = seat.exchange().dispatch_recv(sent, received);
      rows.held.store(false, std::memory_order_release);
      require_status(status, Code::kMismatch, {"others went on without rank 1"}, "receive half");
      require(status.culprit() == 1 && received.data == nullptr, status.message());
    } else {
      seat.dispatch_recv(0, sent);
    }
    seat.dispatch(1);
    require_ok(group.barrier(), "barrier");
  });
}

}  // namespace
}  // namespace ferry::test
