// GroupState: the inside of a Group. Owns the rendezvous, the control words that all ranks of a
// group share, and the verdict when the group breaks. Used by exchanges (waiting, ringing,
// agreeing) and by Group itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ferry/group.h"
#include "memory/segment.h"
#include "transport/rendezvous.h"

namespace ferry::internal {

struct Await;

// One rank's place in the group's shared segment; the rank is its only writer. `barrier` and the
// bytes of `slot` belong to group.barrier and group.all_gather. `report` says why the rank gave up,
// and is published by its abort word.
struct alignas(128) GroupSlot {
  static constexpr std::size_t kReportBytes = 512;
  static constexpr std::size_t kBytes = 4096 - 128 - kReportBytes;
  std::atomic<std::uint64_t> barrier;
  alignas(128) char report[kReportBytes];
  std::byte slot[kBytes];
};
static_assert(sizeof(GroupSlot) == 4096);

class GroupState {
 public:
  GroupState(std::unique_ptr<Rendezvous> rendezvous, const GroupOptions& options,
             GroupOrigin origin);
  ~GroupState();
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const GroupOrigin& origin() const noexcept { return origin_; }
  Rendezvous& rendezvous() const noexcept { return *rendezvous_; }
  std::chrono::nanoseconds default_deadline() const noexcept { return options_.deadline; }
  Deadline deadline() const noexcept {
    return Deadline::after(options_.deadline, &options_.interrupted);
  }

  // Processors that the ranks of this host may run on, taken together.
  int num_cpus() const noexcept { return num_cpus_; }

  Status barrier() noexcept;
  Status all_gather(const void* mine, std::size_t bytes, void* all) noexcept;

  // The one wait loop (wait.cc): returns when every awaited flag is up, the group breaks, or the
  // deadline passes.
  Status wait(const Await& await) noexcept;

  // Wakes the ranks that sleep. Call after raising a flag with raise().
  void ring() noexcept;

  // True once some rank has given up on the group.
  bool aborted() const noexcept;
  // The status of calls on a group that is closed or that some rank has given up on; ok while it is
  // usable. The first telling of another rank's report has that report's code, phase and culprit.
  Status verdict() noexcept;
  bool usable() const noexcept;

  void leave() noexcept;

  // FERRY_LOG: prints a line with rank, host and pid when `level` is wanted.
  enum class LogLevel : std::uint8_t { kNone, kWarn, kInfo, kDebug };
  void log(LogLevel level, const std::string& text) const noexcept;

 private:
  // What a rank tells the others when it gives up: a Code and the culprit, or that it left.
  struct AbortWord {
    static constexpr std::uint64_t kNone = 0;
    static std::uint64_t make(Code code, int culprit) noexcept {
      return (std::uint64_t{static_cast<std::uint8_t>(code)} << 32) |
             static_cast<std::uint32_t>(culprit + 1);
    }
    static bool gave_up(std::uint64_t word) noexcept {
      return word != kNone && code(word) != Code::kClosed;
    }
    static Code code(std::uint64_t word) noexcept { return static_cast<Code>(word >> 32); }
    static int culprit(std::uint64_t word) noexcept {
      return static_cast<int>(word & 0xffffffffu) - 1;
    }
  };

  bool left(int rank) const noexcept;
  Status give_up(const Await& await, Code code, int culprit) noexcept;
  Status break_group(Code code, int culprit, const std::string& text) noexcept;
  Status check(const Await& await, std::int64_t began_ns) noexcept;
  void sleep_until_rung(const Await& await, int peer) noexcept;
  std::vector<int> missing_ranks(const Await& await) const;

  std::unique_ptr<Rendezvous> rendezvous_;
  GroupOptions options_;
  GroupOrigin origin_;
  int rank_;
  int size_;
  int num_cpus_ = 1;
  std::uint64_t num_barriers_ = 0;
  LogLevel log_level_ = LogLevel::kNone;

  // In the shared segment. abort_[r] and slots_[r] are written by rank r alone; doorbell_ and
  // sleeping_ by anyone.
  std::shared_ptr<Segment> segment_;
  GroupSlot* slots_ = nullptr;
  std::atomic<std::uint64_t>* abort_ = nullptr;
  std::atomic<std::uint32_t>* doorbell_ = nullptr;
  std::atomic<std::uint32_t>* sleeping_ = nullptr;

  mutable std::mutex verdict_mutex_;
  Status verdict_;  // set once, guarded by verdict_mutex_
  std::atomic<bool> broken_{
      false};  // verdict_ is set; release in break_group, acquire in verdict()
  std::atomic<bool> closed_{false};  // this rank left; release in leave, acquire in verdict()
};

}  // namespace ferry::internal
