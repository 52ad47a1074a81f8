// Counters: the numbers of operations, rows, bytes and nanoseconds of each rank so far, for `ferry
// top` and for metrics. They lie in the segment of the group (SharedFlags), behind a head that says
// where. The memfd of the segment is open in every rank, so other processes of the same user can
// read the counters through /proc. A rank that gives up reads from the counters which other ranks
// of its node wait. The counters order no other memory, so all accesses but those of the head are
// relaxed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/segment.h"

namespace ferry::internal {

enum class Counter : std::uint8_t {
  kPid,
  kDispatches,
  kCombines,
  kCollectives,
  kLatestCollective,
  kRowsSent,
  kRowsReceived,
  kBytesSent,
  kBytesPulled,
  kBytesCopied,
  kLinkBytes,
  kWindowBytes,
  kNum
};
inline constexpr int kNumCounters = static_cast<int>(Counter::kNum);

// The names of the counters in metrics. `grows`: false for a value that can fall.
struct CounterName {
  const char *name, *meaning;
  bool grows = true;
};
inline constexpr CounterName kCounterNames[] = {
    {"pid", "process of the rank", false},
    {"dispatches", "dispatches finished"},
    {"combines", "combines finished"},
    {"collectives", "collectives begun"},
    {"latest_collective", "number of the latest collective, times 256, and its kind (CallKind)",
     false},
    {"rows_sent", "rows written to windows by dispatch"},
    {"rows_received", "rows received by dispatch"},
    {"bytes_sent", "bytes of rows written to windows by dispatch"},
    {"bytes_pulled", "bytes of rows read from windows by combine"},
    {"bytes_copied", "bytes of rows copied into the window or out of it"},
    {"link_bytes", "bytes sent to other nodes"},
    {"window_bytes", "bytes of memory behind the windows", false},
};
static_assert(std::size(kCounterNames) == kNumCounters);

// The value of kLatestCollective. It is one word, so that a reader gets a number and its kind.
struct LatestCollective {
  std::uint64_t number = 0;
  std::uint8_t kind = 0;  // CallKind
  std::uint64_t word() const noexcept { return number << 8 | kind; }
  static LatestCollective of(std::uint64_t word) noexcept {
    return {word >> 8, static_cast<std::uint8_t>(word)};
  }
};

// The beginning of the segment of a group.
struct alignas(128) CountersHead {
  static constexpr std::uint64_t kMagic = 0x33706f7479727266;  // this layout: "frrytop3"
  std::atomic<std::uint64_t> magic;  // stored last (release); readers are in other processes
  std::uint64_t group;               // a number that the nodes of a group have in common
  std::uint64_t num_ranks, rows_offset, row_bytes;
  std::uint64_t exporter;  // the rank that shows the metrics of the node
};

// One rank's row: the counters that are named above, then [ranks] the nanoseconds that it waited
// for each rank; the element of the rank itself is for the network. The rank is the only writer;
// its exchanges may be used by several threads.
class RankCounters {
 public:
  RankCounters() = default;
  explicit RankCounters(std::byte* row) noexcept
      : row_(reinterpret_cast<std::atomic<std::uint64_t>*>(row)) {}
  static std::size_t row_bytes(int num_ranks) noexcept;
  void clear(int num_ranks) noexcept {
    for (int at = 0; at < kNumCounters + num_ranks; ++at)
      row_[at].store(0, std::memory_order_relaxed);
  }

  void set(Counter counter, std::uint64_t value) noexcept {
    row_[static_cast<int>(counter)].store(value, std::memory_order_relaxed);
  }
  // Modulo 2^64: a counter is lowered by adding a negative number.
  void add(Counter counter, std::uint64_t value) noexcept { add(static_cast<int>(counter), value); }
  void begin_collective(std::uint8_t kind) noexcept {
    std::atomic<std::uint64_t>& count = row_[static_cast<int>(Counter::kCollectives)];
    began({count.fetch_add(1, std::memory_order_relaxed) + 1, kind});
  }
  // Publishes a collective, unless a later one is published: threads may come here out of order.
  void began(LatestCollective collective) noexcept {
    std::atomic<std::uint64_t>& latest = row_[static_cast<int>(Counter::kLatestCollective)];
    std::uint64_t seen = latest.load(std::memory_order_relaxed);
    while (seen < collective.word() &&
           !latest.compare_exchange_weak(seen, collective.word(), std::memory_order_relaxed)) {
    }
  }
  void waited(int peer, std::int64_t ns) noexcept {
    add(kNumCounters + peer, static_cast<std::uint64_t>(ns));
  }
  std::uint64_t value(int index) const noexcept {
    return row_[index].load(std::memory_order_relaxed);
  }

 private:
  void add(int index, std::uint64_t value) noexcept {
    if (value != 0) row_[index].fetch_add(value, std::memory_order_relaxed);
  }

  std::atomic<std::uint64_t>* row_ = nullptr;
};

// The rows of a node's ranks, in the process of one of them.
struct NodeCounters {
  std::shared_ptr<Segment> segment;
  std::vector<int> ranks;  // the ranks of the node; some may not have come yet

  const CountersHead& head() const noexcept {
    return *reinterpret_cast<const CountersHead*>(segment->data());
  }
  RankCounters of(int rank) const noexcept {
    return RankCounters(segment->data() + head().rows_offset +
                        static_cast<std::size_t>(rank) * head().row_bytes);
  }
};

}  // namespace ferry::internal
