// Resources that the operating system refuses to one rank: all ranks get an error, and the next
// call works. Ranks are processes, as most of these refusals concern a whole process.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>

#include "seat.h"

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

// A user of nobody else, who may have two threads. (The network may have a thread.)
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
