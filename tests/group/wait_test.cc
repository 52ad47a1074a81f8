// A wait looks at the flags once more after it saw that a rank is gone, or gave up: the rank may
// have raised its flag between the two looks. What happens between them is scripted by the
// rendezvous, which the wait asks whether a rank is alive.
#include "group/wait.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "bootstrap/rendezvous.h"
#include "group/state.h"

namespace ferry::internal {
namespace {

constexpr int kRanks = 3;

class ScriptedRendezvous final : public Rendezvous {
 public:
  explicit ScriptedRendezvous(std::unique_ptr<Rendezvous> inner)
      : Rendezvous(inner->rank(), inner->nodes()), inner_(std::move(inner)) {}
  std::vector<std::string> all_gather(std::string_view mine, Deadline deadline) override {
    return inner_->all_gather(mine, deadline);
  }
  std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline) override {
    return inner_->share_segment(bytes, deadline);
  }
  bool alive(int peer) noexcept override { return script ? script(peer) : true; }
  int kill(int peer) noexcept override { return inner_->kill(peer); }
  int pid(int peer) const noexcept override { return inner_->pid(peer); }
  std::unique_ptr<Rendezvous> among(const std::vector<int>& members, const MeetingPlace& place,
                                    Deadline deadline) override {
    return inner_->among(members, place, deadline);
  }
  bool admits() const noexcept override { return false; }
  std::unique_ptr<BootstrapCollectives> await_newcomers(Admission& admission,
                                                        Deadline deadline) override {
    return inner_->await_newcomers(admission, deadline);
  }
  std::unique_ptr<Rendezvous> among(const Admission& admission, BootstrapCollectives* invited,
                                    Deadline deadline) override {
    return inner_->among(admission, invited, deadline);
  }
  std::shared_ptr<Segment> pass_on(std::shared_ptr<Segment> mine, std::size_t bytes,
                                   Deadline deadline) override {
    return inner_->pass_on(std::move(mine), bytes, deadline);
  }

  std::function<bool(int peer)> script;

 private:
  std::unique_ptr<Rendezvous> inner_;
};

// Rank 0 waits for a flag of each rank; that of rank 1 is not up.
class SecondLook : public testing::Test {
 protected:
  SecondLook() {
    auto met = thread_rendezvous(std::vector<int>(kRanks, 0));
    met[0] = std::make_unique<ScriptedRendezvous>(std::move(met[0]));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto by = Deadline::after(std::chrono::seconds(60));
        states_[rank] =
            std::make_unique<GroupState>(std::move(met[rank]), GroupOptions{}, GroupOrigin{}, by);
      });
    }
    for (std::thread& thread : threads) thread.join();
    flags_[0] = flags_[2] = 1;
  }

  void raise_of_rank_1() { raise(flags_[1], 1); }
  void rank_2_gives_up() { static_cast<void>(states_[2]->fail("a test")); }

  Status wait(std::function<bool(int peer)> script) {
    dynamic_cast<ScriptedRendezvous&>(states_[0]->rendezvous()).script = std::move(script);
    CallTime time(std::chrono::seconds(60));
    return states_[0]->wait({.operation = "test",
                             .number = 1,
                             .phase = "flags",
                             .flags = flags_.data(),
                             .stride_bytes = sizeof flags_[0],
                             .value = 1,
                             .time = &time,
                             .crowded = true});
  }

  std::array<std::unique_ptr<GroupState>, kRanks> states_;
  std::array<std::atomic<std::uint64_t>, kRanks> flags_ = {};
};

TEST_F(SecondLook, RankThatEndsWithoutItsFlagIsLost) {
  const Status status = wait([](int peer) { return peer != 1; });
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.culprit(), 1);
}

TEST_F(SecondLook, FlagThatCameBeforeTheRankEnded) {
  const Status status = wait([this](int peer) {
    if (peer == 1) raise_of_rank_1();
    return peer != 1;
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(SecondLook, FlagThatCameBeforeTheRankDeparted) {
  const Status status = wait([this](int peer) {
    if (peer != 1) return true;
    raise_of_rank_1();
    states_[1]->leave();
    return false;
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(SecondLook, AbortWordWithoutTheFlagEndsTheWait) {
  const Status status = wait([this](int) {
    rank_2_gives_up();
    return true;
  });
  EXPECT_FALSE(status.ok());
}

TEST_F(SecondLook, FlagThatCameBeforeAnotherRankGaveUp) {
  const Status status = wait([this](int peer) {
    if (peer != 1) return true;
    raise_of_rank_1();
    rank_2_gives_up();
    return true;
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

}  // namespace
}  // namespace ferry::internal
