// A group of several nodes is cut into two parts whose ranks all live: one part goes on in the next
// view, the other one is refused. Never do both go on.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cut_transport.h"
#include "victim.h"
#include "view_rounds.h"

namespace ferry::test {
namespace {

// When `cut` is set, nothing passes between the ranks of `part` and the others any more.
struct Cable {
  int part;                      // as bits
  std::atomic<bool> cut{false};  // release by the rank that cuts, acquire in CableTransport
};

class CableTransport final : public CutTransport {
 public:
  explicit CableTransport(const Cable& cable) : cable_(cable) {}

 private:
  bool is_cut(int peer) const override {
    return cable_.cut.load(std::memory_order_acquire) && rank() >= 0 &&
           (cable_.part >> rank() & 1) != (cable_.part >> peer & 1);
  }

  const Cable& cable_;
};

struct Cut {
  const char* name;
  const char* nodes;  // FERRY_TEST_NODES
  int ranks, part;    // the part that goes on
};

void PrintTo(const Cut& cut, std::ostream* stream) { *stream << cut.name; }

class CutViews : public testing::TestWithParam<Cut> {};

TEST_P(CutViews, OnePartGoesOn) {
  const auto& [name, nodes, num_ranks, part] = GetParam();
  setenv("FERRY_TEST_NODES", nodes, 1);
  ExchangeConfig config = fault_config();
  config.num_experts = 5 * 4 * 3;
  const Scenario scenario = scenario_of_sets(num_ranks, config, 71);
  Cable cable{part};
  std::atomic<int> ready{0};
  const FrameTransports transports([&] { return std::make_unique<CableTransport>(cable); });
  run_ranks(Mode::kThreads, num_ranks,
            [&, part = part, num_ranks = num_ranks](Group group) {
              Seat seat(group, scenario);
              for (int i = 0; i < 3; ++i) require_ok(play_view(group, seat), "all");
              const int others = ready.fetch_add(1, std::memory_order_relaxed);
              if (others + 1 == num_ranks) cable.cut.store(true, std::memory_order_release);
              const Status lost = play_until_error(group, seat);
              require(!lost.group_usable(), lost.message());
              if (part >> seat.rank() & 1) {
                survive(group, 2, part);
                for (int i = 0; i < 3; ++i)
                  require_ok(play_view(group, seat), "the part that goes on");
                return require_ok(group.barrier(), "barrier");
              }
              for (int i = 0; i < 2; ++i) {
                const Status refused = group.survive();
                require_status(refused, Code::kPeerLost, {"view 1", "more than half", "new group"},
                               "cut");
                require(part >> refused.culprit() & 1, refused.message());
              }
              require(group.view().number == 1 && !group.usable(),
                      "the view is over, and no other began");
            },
            scenario.describe(), {.deadline = std::chrono::seconds(20)});
  unsetenv("FERRY_TEST_NODES");
}

INSTANTIATE_TEST_SUITE_P(Nodes, CutViews,
                         testing::Values(Cut{"HalfWithTheLowestRank", "2", 4, 0b0011},
                                         Cut{"TheMajorityWithoutRankZero", "3", 5, 0b11110},
                                         Cut{"TheMajorityWithRankZero", "3", 5, 0b00111},
                                         Cut{"OneNodeOfFourIsOutside", "4", 4, 0b1101}),
                         [](const testing::TestParamInfo<Cut>& info) {
                           return std::string(info.param.name);
                         });

// The first message of the agreement arrives at rank 1 before that rank calls survive(). Rank 1
// answers as soon as it calls, and does not wait until the message is sent again, 20 ms after the
// first time.
TEST(LateNode, AnswersWhatItHasKept) {
  setenv("FERRY_TEST_NODES", "2", 1);
  setenv("FERRY_PROGRESS", "thread", 1);
  std::int64_t shortest_ns = 1'000'000'000;
  run_ranks(Mode::kThreads, 2, [&](Group group) {
    for (std::uint64_t view = 2; view < 32; ++view) {
      require_ok(group.barrier(), "barrier");
      while (group.rank() == 1 && group.usable()) std::this_thread::yield();
      if (group.rank() == 1) nap(5);
      const std::int64_t began_ns = internal::now_ns();
      survive(group, view, 3);
      const std::int64_t took_ns = internal::now_ns() - began_ns;
      if (group.rank() == 1) shortest_ns = std::min(shortest_ns, took_ns);
    }
  });
  unsetenv("FERRY_PROGRESS");
  unsetenv("FERRY_TEST_NODES");
  EXPECT_LT(shortest_ns, 12'000'000);
}

}  // namespace
}  // namespace ferry::test
