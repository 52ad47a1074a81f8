// Resources that the operating system refuses to one rank: all ranks get an error, and the next
// call works. Ranks are processes, as most of these refusals concern a whole process.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "seat.h"
#include "victim.h"

namespace ferry::test {
namespace {

constexpr int kRanks = 3;
constexpr int kRefused = kRanks - 1;  // its window is the last one of the segment

ExchangeConfig config_of_refused() {
  return {.max_tokens = 200, .hidden = 700, .num_experts = 30, .top_k = 4};
}

// The shared segment that ends behind `data`, cut off there, until it is destroyed.
class CutSegment {
 public:
  explicit CutSegment(const void* data) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      std::uintptr_t begin = 0, end = 0;
      std::uint64_t offset = 0, inode = 0;
      std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %" SCNx64 " %*s %" SCNu64, &begin,
                  &end, &offset, &inode);
      const auto at = reinterpret_cast<std::uintptr_t>(data);
      if (at < begin || at >= end) continue;
      cut(inode, offset + (at - begin));
      return;
    }
  }
  ~CutSegment() {
    if (ftruncate(fd_, whole_) != 0) ADD_FAILURE() << "the segment stays cut";
  }
  CutSegment(const CutSegment&) = delete;
  CutSegment& operator=(const CutSegment&) = delete;
  bool done() const { return done_; }

 private:
  void cut(std::uint64_t inode, std::uint64_t bytes) {
    struct stat file {};
    for (fd_ = 0; fd_ < 1024; ++fd_) {
      if (fstat(fd_, &file) != 0 || file.st_ino != inode) continue;
      whole_ = file.st_size;
      done_ = ftruncate(fd_, static_cast<off_t>(bytes)) == 0;
      return;
    }
  }

  int fd_ = -1;
  off_t whole_ = 0;
  bool done_ = false;
};

// A buffer must grow in the middle of a dispatch, and its memory is refused.
TEST(Refused, MemoryOfABufferThatGrows) {
  ExchangeConfig config = config_of_refused();
  for (int expert = 0; expert < config.num_experts; ++expert)
    config.expert_rank.push_back(kRefused - expert * kRanks / config.num_experts);
  Scenario scenario = plain_scenario(kRanks, config, 3, 61);
  route_all_to_first_experts(scenario, 1);
  const auto body = [&](Group group) {
    Seat seat(group, scenario);
    Received received = seat.dispatch(0);
    // Rows of this buffer that are there, and nothing behind them.
    const auto* end = static_cast<const std::byte*>(received.data) + received.num_rows * 1400;
    std::optional<CutSegment> cut;
    if (seat.rank() == kRefused) cut.emplace(end + (64 << 10));
    require(!cut || cut->done(), "the segment was not cut");
    received.release();
    require_ok(group.barrier(), "barrier");
    DispatchCall call = seat.dispatch_call(1);
    Received none;
    const Status status = seat.exchange().dispatch(call.args(), none);
    require_status(status, Code::kCapacity, {"rank 2 needs", "memory was refused"}, "dispatch");
    require(status.culprit() == kRefused && group.usable(), status.message());
    cut.reset();
    require_ok(group.barrier(), "barrier");
    seat.play(1);
  };
  run_ranks(Mode::kProcesses, kRanks, body);
}

// Until it is destroyed, this process has no free memory of kBytes or more, and gets none.
class NoMoreMemory {
 public:
  static constexpr std::size_t kBytes = 64 << 10;

  NoMoreMemory() {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &usual_);
    const rlimit none{pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)), usual_.rlim_max};
    require(pages > 0 && setrlimit(RLIMIT_AS, &none) == 0, "no limit of memory");
    while (void* const block = std::malloc(kBytes)) last_ = new (block) Block{last_};
  }
  ~NoMoreMemory() {
    setrlimit(RLIMIT_AS, &usual_);
    for (Block* block = last_; block != nullptr;) std::free(std::exchange(block, block->before));
  }
  NoMoreMemory(const NoMoreMemory&) = delete;
  NoMoreMemory& operator=(const NoMoreMemory&) = delete;

 private:
  struct Block {
    Block* before;
  };
  rlimit usual_{};
  Block* last_ = nullptr;
};

// Tokens so many that their routes need more than NoMoreMemory::kBytes.
class ManyTokens {
 public:
  explicit ManyTokens(const Group& group)
      : tokens_(kTokens * kHidden),
        ids_(kTokens),
        out_(kTokens * kHidden),
        refused_(group.rank() == kRefused),
        exchange_(group, {.max_tokens = kTokens,
                          .hidden = kHidden,
                          .num_experts = kRanks,
                          .top_k = 1,
                          .dtype = DataType::kFp32}) {
    for (std::int64_t i = 0; i < kTokens; ++i) ids_[i] = i % kRanks;
  }

  Status dispatch(Received& received, std::int64_t num_tokens = kTokens) {
    return exchange_.dispatch({.tokens = {tokens_.data(), num_tokens, kHidden, DataType::kFp32},
                               .topk_ids = {ids_.data(), num_tokens, 1}},
                              received);
  }
  Status combine(Received& received) {
    return exchange_.combine({.handle = received.handle,
                              .expert_rows = received.rows(),
                              .out = out_.data(),
                              .out_dtype = DataType::kFp32});
  }
  // A call while one rank gets no memory. No rank waits for the deadline.
  Status without_memory(const std::function<Status()>& call) const {
    const auto began = std::chrono::steady_clock::now();
    std::optional<NoMoreMemory> none;
    if (refused_) none.emplace();
    Status status = call();
    none.reset();
    if (refused_) nap(500);  // the others see what it reports before it ends
    require(std::chrono::steady_clock::now() - began < std::chrono::seconds(20), status.message());
    return status;
  }
  bool refused() const { return refused_; }

 private:
  static constexpr std::int64_t kTokens = 1 << 18, kHidden = 4;
  std::vector<float> tokens_;
  std::vector<std::int64_t> ids_;
  std::vector<float> out_;
  bool refused_;
  Exchange exchange_;
};

// Before a rank has told the others anything, the call is refused and the group goes on.
TEST(Refused, MemoryOfTheRoutesOfADispatch) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve memory of their own";
  run_ranks(Mode::kProcesses, kRanks, [](Group group) {
    ManyTokens tokens(group);
    Received received;
    const Status status = tokens.without_memory([&] { return tokens.dispatch(received); });
    require_status(status, tokens.refused() ? Code::kCapacity : Code::kPeerRejected, {"memory"},
                   "dispatch");
    require(status.culprit() == kRefused, status.message());
    require_ok(tokens.dispatch(received, 5), "the next dispatch");
    require_ok(tokens.combine(received), "its combine");
  });
}

// After it has, the others count on its part of the call: the group breaks on all ranks.
TEST(Refused, MemoryInTheMiddleOfACombine) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve memory of their own";
  const SharedBoard board;
  run_ranks(Mode::kProcesses, kRanks, [&](Group group) {
    ManyTokens tokens(group);
    Received received;
    require_ok(tokens.dispatch(received), "dispatch");
    board.tell();
    board.await_told(kRanks);  // a group that breaks would end the calls of the others
    Status status = tokens.without_memory([&] { return tokens.combine(received); });
    // A rank may have ended its combine before.
    if (status.ok()) status = group.barrier();
    require_status(status, Code::kBroken, {tokens.refused() ? "memory" : "rank 2"}, "combine");
    require(status.culprit() == kRefused && !group.usable(), status.message());
  });
}

// What the ranks are told when `config` makes no exchange, and that another is made after.
void require_refused(const Group& group, const ExchangeConfig& config, Code code,
                     const std::vector<std::string>& parts) {
  const Status status = error_of([&] { Exchange exchange(group, config); });
  require_status(status, group.rank() == kRefused ? code : Code::kPeerRejected, parts,
                 "making an exchange");
  require(status.culprit() == kRefused, "culprit " + std::to_string(status.culprit()));
}

// One rank may not have the threads of `workers` while `forbid` is in force.
void refuse_threads(int workers, const std::string& told, const std::function<void()>& forbid,
                    const std::function<void()>& allow) {
  const Scenario scenario = plain_scenario(kRanks, config_of_refused(), 1, 62);
  const auto body = [&](Group group) {
    ExchangeConfig config = config_of_refused();
    config.workers = workers;
    if (group.rank() == kRefused) forbid();
    require_refused(group, config, Code::kSystem, {told});
    if (group.rank() == kRefused) allow();
    Seat(group, scenario).play(0);
  };
  run_ranks(Mode::kProcesses, kRanks, body);
}

TEST(Refused, FirstThreadOfAWorkerPool) {
  pthread_attr_t usual, impossible;
  pthread_getattr_default_np(&usual);
  pthread_attr_init(&impossible);
  pthread_attr_setstacksize(&impossible, std::size_t{1} << 47);
  refuse_threads(
      2, "workers is 2: the thread of worker 1 was refused",
      [&] { pthread_setattr_default_np(&impossible); },
      [&] { pthread_setattr_default_np(&usual); });
}

// The rank becomes a user that has no other process, and that may have two threads. (The network
// may have one of them.)
TEST(Refused, SecondThreadOfAWorkerPool) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: only root can be another user";
  rlimit usual{};
  getrlimit(RLIMIT_NPROC, &usual);
  const auto limit_to = [&](rlim_t threads) {
    const rlimit limit{threads, usual.rlim_max};
    require(setrlimit(RLIMIT_NPROC, &limit) == 0, "no limit of threads");
  };
  refuse_threads(
      4, "workers is 4: the thread of worker ",
      [&] {
        require(setresuid(3'000'000'000, 3'000'000'000, 3'000'000'000) == 0, "no other user");
        limit_to(2);
      },
      [&] { limit_to(usual.rlim_cur); });
}

// The message says what was wanted and what there is.
TEST(Refused, MemoryOfAWindow) {
  const auto body = [&](Group group) {
    ExchangeConfig config;
    config.max_tokens = 1 << 18;
    config.hidden = 1 << 20;
    config.row_capacity = 1 << 17;  // else it reserves more addresses than AddressSanitizer leaves
    config.num_experts = kRanks;
    config.top_k = 1;
    const Status status = error_of([&] { Exchange exchange(group, config); });
    const auto expected = window_bytes(config, kRanks).expected;
    require_status(status, Code::kCapacity,
                   {"window of " + std::to_string(expected) + " expected bytes",
                    "max_tokens 262144", "hidden 1048576", "bytes are free"},
                   "a window of a terabyte");
    require(status.culprit() == group.rank(), "culprit " + std::to_string(status.culprit()));
    require_ok(group.barrier(), "barrier");
  };
  run_ranks(Mode::kProcesses, kRanks, body);
}

}  // namespace
}  // namespace ferry::test
