// Sum requests that no mate of a job sends: a way replies with no sums, or ignores them. Valid
// requests: all workers sum.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "exchange/setup/configuration.h"
#include "exchange/setup/setup.h"
#include "exchange/ways/way.h"
#include "frame.h"
#include "group/state.h"
#include "group/wait.h"

namespace ferry::test {
namespace {

using internal::append_format;
using internal::append_sum_unit;
using internal::append_summand;
using internal::progress_of;
using internal::Stage;
using internal::Way;
using internal::WorkerPool;

constexpr int kNodes = 3, kAsker = 1, kHidden = 4;

// The way of rank 0, which has requested no sums; each rank is a node.
class Asked {
 public:
  explicit Asked(const Group& group)
      : state_(*group.state()),
        setup_(internal::complete_config(config(), kNodes), state_.topology(), group.rank(),
               {Algorithm::kFullmesh, ""}),
        view_{state_.rendezvous().share_segment(setup_.layout.segment_bytes(), state_.deadline()),
              &setup_.layout, state_.local_ranks(), setup_.places},
        way_(state_, view_, setup_.config, Algorithm::kFullmesh, /*second_way=*/false) {}

  void use(std::shared_ptr<WorkerPool> workers) { way_.sums().use(std::move(workers)); }

  // As if rank 1 had asked `units` times for row 0 of `rank` in combine `number`.
  void ask(std::uint64_t number, int rank, int units = 1) {
    std::vector<std::byte> body, terms;
    append_format({.hidden = kHidden, .row_type = DataType::kFp32}, body);
    append_summand({.places = {{{.rank = rank, .row = 0}}}}, 1, terms);
    const internal::SumUnit unit{.tp_size = 1, .num_summands = 1, .terms = terms};
    const std::int64_t only = 0;
    for (int i = 0; i < units; ++i) append_sum_unit(unit, {&only, 1}, body);
    const internal::InMessage message{
        kAsker, way_.links().head(internal::kSumRequest, number, 0, kAsker), body};
    const auto held = state_.lock();
    way_.read(message);
  }
  // Rank 0 publishes the first row of its window as its output.
  void publish(std::uint64_t number) {
    internal::Record& record = view_.record(0, number);
    record.number = number;
    record.terms = {
        .kind = internal::OperationKind::kCombine, .row_type = DataType::kFp32, .hidden = kHidden};
    record.num_rows = 1;
    record.published = {.rows_offset = 0, .pitch_bytes = 0, .weights_offset = 0};
    deliver(number);
  }
  // Rank 0 comes to this stage of combine `number`, and publishes no output.
  void deliver(std::uint64_t number) {
    internal::raise(view_.control(0).progress, progress_of(number, Stage::kDelivered));
  }
  // The last combine that was answered.
  std::uint64_t served() {
    const auto held = state_.lock();
    way_.go_on();
    return way_.sums().served()[kAsker].load(std::memory_order_relaxed);  // under the lock
  }

 private:
  static ExchangeConfig config() {
    return {
        .max_tokens = 2, .hidden = 4, .num_experts = kNodes, .top_k = 1, .dtype = DataType::kFp32};
  }

  internal::GroupState& state_;
  const internal::Setup setup_;
  internal::WindowView view_;
  Way way_;
};

void on_rank_0(const std::function<void(Asked&)>& look) {
  GroupOptions options;
  options.topology = "host:3,rank:1";
  const auto body = [&](Group group) {
    group.state()->begin_channels();  // as an exchange does
    Asked asked(group);
    if (group.rank() == 0) look(asked);
    require_ok(group.barrier(), "the barrier");
  };
  run_ranks(Mode::kThreads, kNodes, body, "", options);
}

TEST(SumRequests, ForRowsOfNoRankBehindTheMateAreAnsweredWithNothing) {
  on_rank_0([](Asked& asked) {
    std::uint64_t number = 0;
    for (const int rank : {2, kAsker, -1, kNodes, 1 << 30}) {
      asked.ask(++number, rank);
      require(asked.served() == number, "rank " + std::to_string(rank) + " was waited for");
    }
    asked.ask(++number, 0);  // its own rows are: they are not there yet
    require(asked.served() == number - 1, "rank 0 was not waited for");
  });
}

TEST(SumRequests, OfAnEarlierCombineAreIgnored) {
  on_rank_0([](Asked& asked) {
    asked.ask(5, 0);
    asked.ask(5, 0);
    asked.ask(4, 0);
    require(asked.served() == 0, "rank 0 was not waited for");
    asked.deliver(5);
    require(asked.served() == 5,
            "combine " + std::to_string(asked.served()) + " was answered last");
    asked.ask(3, 0);
    require(asked.served() == 5, "an answered combine was answered again");
    asked.ask(6, 0);
    asked.deliver(6);
    require(asked.served() == 6, "the next combine was not answered");
  });
}

// The one thread of a pool of two workers that is not the caller's.
class SecondWorker {
 public:
  SecondWorker() {
    const std::set<std::string> before = threads();
    pool_ = std::make_shared<WorkerPool>(2);
    for (const std::string& thread : threads())
      if (!before.contains(thread)) thread_ = thread;
    require(soon([this] { return status("State:") == "S"; }), "it does not wait for work");
  }
  const std::shared_ptr<WorkerPool>& pool() const { return pool_; }
  // How often it has waited so far: once more after each work that it was given.
  int waits() const { return std::stoi(status("voluntary_ctxt_switches:")); }
  bool waits_again(int waits_before) const {
    return soon([&] { return waits() > waits_before; });
  }

 private:
  // Whether it is so within 5 s.
  template <typename Condition>
  static bool soon(const Condition& condition) {
    for (int ms = 0; ms < 5000 && !condition(); ++ms)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return condition();
  }
  static std::set<std::string> threads() {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
      found.insert(entry.path().filename());
    return found;
  }
  std::string status(const std::string& name) const {
    std::ifstream file("/proc/self/task/" + thread_ + "/status");
    for (std::string word; file >> word;)
      if (word == name && file >> word) return word;
    throw std::runtime_error("no thread " + thread_);
  }

  std::shared_ptr<WorkerPool> pool_;
  std::string thread_;
};

TEST(SumRequests, AreSummedByAllWorkers) {
  on_rank_0([](Asked& asked) {
    const SecondWorker worker;
    asked.use(worker.pool());
    asked.publish(1);
    const int before = worker.waits();
    asked.ask(1, 0, /*units=*/8);
    require(asked.served() == 1, "combine 1 was not answered");
    require(worker.waits_again(before), "the second worker summed nothing");
  });
}

}  // namespace
}  // namespace ferry::test
