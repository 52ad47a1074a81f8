// Ranks that pass on messages, or receive passed-on ones, and die, leave early or are away, as
// processes. The conformance suite checks the data that they pass on.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <optional>

#include "base/clock.h"
#include "seat.h"

namespace ferry::test {
namespace {

// One expert on each rank, one for each token.
struct Shape {
  const char* topology;
  int num_ranks;
  std::int64_t tokens, hidden;
};

class Played {
 public:
  // Rank `source` has tokens, all for rank `target`.
  Played(Group& group, const Shape& shape, int source, int target)
      : exchange_(std::in_place, group,
                  ExchangeConfig{.max_tokens = shape.tokens,
                                 .hidden = shape.hidden,
                                 .num_experts = shape.num_ranks,
                                 .top_k = 1,
                                 .dtype = DataType::kFp32,
                                 .algorithm = Algorithm::kHierarchical}),
        shape_(shape),
        num_tokens_(group.rank() == source ? shape.tokens : 0),
        tokens_(static_cast<std::size_t>(shape.tokens * shape.hidden), 1.0F),
        out_(tokens_.size()),
        ids_(static_cast<std::size_t>(shape.tokens), target) {}

  Exchange& exchange() { return *exchange_; }
  void destroy() { exchange_.reset(); }
  DispatchArgs dispatch_args() {
    return {.tokens = {tokens_.data(), num_tokens_, shape_.hidden, DataType::kFp32},
            .topk_ids = {ids_.data(), num_tokens_, 1}};
  }
  CombineArgs combine_args(Received& received) {
    return {.handle = received.handle,
            .expert_rows = received.rows(),
            .out = out_.data(),
            .out_dtype = DataType::kFp32};
  }

 private:
  std::optional<Exchange> exchange_;
  Shape shape_;
  std::int64_t num_tokens_;
  std::vector<float> tokens_, out_;
  std::vector<std::int64_t> ids_;
};

void run_on(const Shape& shape, const Body& body, int killed = -1) {
  GroupOptions options;
  options.topology = shape.topology;
  options.deadline = std::chrono::seconds(20);
  ProcessRanks ranks(shape.num_ranks, options, body);
  std::vector<RankEnd> ends = ranks.wait(std::chrono::seconds(40));
  if (killed >= 0) {
    EXPECT_EQ(ends[killed].signal, SIGKILL);
    ends[killed] = {};
  }
  expect_all_well(ends, shape.topology);
}

// Only rank 0 wants sums of rank 2, but it is rank 1 that requests them from rank 2.
TEST(Racks, DeathOfAMateOfAMateIsToldByItsName) {
  const Shape shape{"rack:2,host:1+2,rank:1", 3, 16, 64};
  const auto body = [&](Group group) {
    Played played(group, shape, 0, 2);
    Received received;
    require_ok(played.exchange().dispatch(played.dispatch_args(), received), "dispatch");
    if (group.rank() != 2) nap(group.rank() == 0 ? 300 : 600);
    Operation operation;
    require_ok(played.exchange().combine_send(played.combine_args(received), operation), "send");
    if (group.rank() == 2) {
      nap(1000);
      kill(getpid(), SIGKILL);
    }
    const std::int64_t began = internal::now_ns();
    const Status status = played.exchange().combine_recv(operation);
    require_status(status, Code::kPeerLost, {"rank 2"}, "combine");
    require(status.culprit() == 2, "culprit " + std::to_string(status.culprit()));
    require(internal::now_ns() - began < 3'000'000'000, "told late: " + status.message());
  };
  run_on(shape, body, 2);
}

// Rank 3 destroys its exchange while it still holds rows of rank 1 for rank 4, which is late.
TEST(Racks, WhoLeavesHasPassedEverythingOn) {
  const Shape shape{"rack:2,host:1+2,rank:2+2+1", 5, 4096, 4096};
  const auto body = [&](Group group) {
    Played played(group, shape, 1, 4);
    Received received;
    Operation operation;
    require_ok(played.exchange().dispatch_send(played.dispatch_args(), operation), "send");
    if (group.rank() == 4) nap(1000);
    if (group.rank() != 3) {
      require_ok(played.exchange().dispatch_recv(operation, received), "receive");
      const std::int64_t expected = group.rank() == 4 ? shape.tokens : 0;
      require(received.num_rows == expected, std::to_string(received.num_rows) + " rows");
      received.release();
    }
    played.destroy();
    require_ok(group.barrier(), "barrier");
  };
  run_on(shape, body);
}

// Rank 1 asks rank 2 for sums; the flags of rank 2 come to their node by rank 0 only.
TEST(Racks, MateThatLeavesBeforeItHasSummedIsToldByItsName) {
  const Shape shape{"host:2,rank:2+1", 3, 16, 64};
  const auto body = [&](Group group) {
    Played played(group, shape, 1, 2);
    Received received;
    require_ok(played.exchange().dispatch(played.dispatch_args(), received), "dispatch");
    if (group.rank() == 1) nap(300);
    Operation operation;
    require_ok(played.exchange().combine_send(played.combine_args(received), operation), "send");
    const std::int64_t began = internal::now_ns();
    if (group.rank() == 0) require_ok(played.exchange().combine_recv(operation), "combine");
    if (group.rank() == 1) {
      require_status(played.exchange().combine_recv(operation), Code::kMismatch,
                     {"rank 2 destroyed this exchange before it had summed rows for rank 1"},
                     "combine");
      require(internal::now_ns() - began < 3'000'000'000, "it took a while");
    }
    received.release();
    played.destroy();
    require_ok(group.barrier(), "barrier");
  };
  run_on(shape, body);
}

// Until now ranks 0 and 3 have heard of each other only through ranks 2 and 1, which now call
// nothing.
TEST(Racks, SetWithoutThoseThatPassOnStartsAtOnce) {
  const Shape shape{"rack:2,host:2+2,rank:1", 4, 16, 64};
  const auto body = [&](Group group) {
    Played played(group, shape, -1, 0);
    Received received;
    require_ok(played.exchange().dispatch(played.dispatch_args(), received), "dispatch");
    Operation operation;
    require_ok(played.exchange().combine_send(played.combine_args(received), operation), "send");
    const bool stays = group.rank() == 0 || group.rank() == 3;
    if (stays) nap(50);
    require_ok(played.exchange().combine_recv(operation), "combine");
    received.release();
    if (!stays) return nap(3000);
    nap(100);
    const std::vector<int> active = {0, 3};
    DispatchArgs args = played.dispatch_args();
    args.active_ranks = active;
    const std::int64_t began = internal::now_ns();
    require_ok(played.exchange().dispatch(args, received), "dispatch of two");
    require(internal::now_ns() - began < 500'000'000, "it took a while");
    received.release();
    nap(3000);
  };
  run_on(shape, body);
}

}  // namespace
}  // namespace ferry::test
