// Processes of three nodes agree on the next view, and one that takes part is killed between two
// messages of the agreement. What may have been decided before is decided after.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "cut_transport.h"
#include "group/agreement_message.h"
#include "group/state.h"
#include "victim.h"
#include "view_rounds.h"

namespace ferry::test {
namespace {

using internal::AgreementMessage;
using What = AgreementMessage::What;

// Node 0 has rank 0, node 1 ranks 1 and 2, node 2 ranks 3 and 4.
constexpr int kRanks = 5;
constexpr const char* kTopology = "host:3,rank:1+2+2";
constexpr int kFirstOfTheLastNode = 3;

// A rank is killed when it has sent a message, or when it is about to read one.
struct Blow {
  int rank;
  What after;  // the message
  bool sent;   // else the rank is about to read it
};

struct Case {
  const char* name;
  Blow blow;
  int view2, view3;  // as bits
};

void PrintTo(const Case& drawn, std::ostream* stream) { *stream << drawn.name; }

// Once all are ready, nothing passes between nodes 0 and 2.
class BlowTransport final : public CutTransport {
 public:
  BlowTransport(const Blow& blow, Board& board) : blow_(blow), board_(board) {}

 private:
  bool is_cut(int peer) const override {
    return board_.ready.load(std::memory_order_acquire) == kRanks && std::min(rank(), peer) == 0 &&
           std::max(rank(), peer) >= kFirstOfTheLastNode;
  }
  void after_send(std::span<const std::byte> body) override {
    if (blow_.sent) strike_after(body);
  }
  void before_read(std::span<const std::byte> body) override {
    if (!blow_.sent) strike_after(body);
  }
  void strike_after(std::span<const std::byte> body) {
    if (rank() != blow_.rank) return;
    internal::ByteReader bundle(body);
    while (bundle.ok() && bundle.remaining() > 0) {
      const auto bytes = bundle.get<std::uint64_t>();
      internal::ByteReader message(bundle.take(bytes));
      const auto head = message.get<internal::MessageHead>();
      if (!bundle.ok() || !message.ok() || head.channel != 0) continue;
      const auto agreed = AgreementMessage::read(message.rest(), kRanks);
      if (agreed && agreed->what == blow_.after) strike_self(board_, SIGKILL);
    }
  }

  const Blow blow_;
  Board& board_;
};

// survive() begins this view, which may be over at once, since one of its ranks may be dead.
void begin_view(Group& group, std::uint64_t number, int set) {
  require_ok(group.survive(), "survive");
  require(group.view().number == number && set_of(group.view()) == set,
          "view " + std::to_string(group.view().number) + " has ranks " +
              std::to_string(set_of(group.view())) + ", not " + std::to_string(set));
}

// survive() fails: the others went on, and may have left before they answer.
void be_left_behind(Group& group) {
  const Status status = group.survive();
  require(status.code() == Code::kClosed || status.code() == Code::kPeerLost,
          "a node that is left behind: " + status.message());
  require(group.view().number == 1 && !group.usable(), "it has begun a view");
}

class LostProposer : public testing::TestWithParam<Case> {};

TEST_P(LostProposer, WhatMayBeDecidedIsDecided) {
  const auto& [name, blow, view2, view3] = GetParam();
  const ExchangeConfig config{.max_tokens = 4, .hidden = 16, .num_experts = 60, .top_k = 4};
  const Scenario scenario = scenario_of_sets(nodes_of(kTopology), config, 72);
  const SharedBoard board;
  const FrameTransports transports(
      [&, blow = blow] { return std::make_unique<BlowTransport>(blow, *board); });
  ProcessRanks ranks(kRanks, {.deadline = std::chrono::seconds(20), .topology = kTopology},
                     [&, view2 = view2, view3 = view3](Group group) {
                       Seat seat(group, scenario);
                       require_ok(play_view(group, seat), "all");
                       board->ready.fetch_add(1, std::memory_order_acq_rel);
                       const Status lost = play_until_error(group, seat);
                       require(!lost.group_usable(), lost.message());
                       if (!(view2 >> seat.rank() & 1)) return be_left_behind(group);
                       begin_view(group, 2, view2);
                       if (view3 != view2) {
                         require(!play_until_error(group, seat).group_usable(), "one is lost");
                         begin_view(group, 3, view3);
                       }
                       for (int i = 0; i < 3; ++i)
                         require_ok(play_view(group, seat), "those that go on");
                       require_ok(group.barrier(), "barrier");
                     });
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(40));
  EXPECT_EQ(ends[blow.rank].signal, SIGKILL);
  ends[blow.rank] = {};
  expect_all_well(ends, name);
}

// The proposal of rank 0 has ranks 0 to 2. Without it, the others propose ranks 1 to 4.
INSTANTIATE_TEST_SUITE_P(
    Processes, LostProposer,
    testing::Values(
        Case{"ProposerWithPromises", {0, What::kPromise, false}, 0b11110, 0b11110},
        Case{"ProposerWhoseProposalIsAccepted", {0, What::kAccepted, false}, 0b00111, 0b00110},
        Case{"SpeakerThatHasPromised", {1, What::kPromise, true}, 0b00111, 0b00101},
        Case{"SpeakerThatHasAccepted", {1, What::kAccepted, true}, 0b00111, 0b00101}),
    [](const testing::TestParamInfo<Case>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ferry::test
