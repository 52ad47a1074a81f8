#include "group/shared_flags.h"

#include <fmt/format.h>

#include <string>

#include "base/check.h"
#include "base/round_up.h"
#include "base/waiting.h"
#include "bootstrap/agree.h"

namespace ferry::internal {

namespace {

// The longest sleep before liveness and deadline are checked again.
constexpr std::int64_t kSleepNs = 2'000'000;
constexpr std::size_t kPage = 4096;

std::size_t flag_bytes(int size) noexcept {
  constexpr std::size_t kOfRank = sizeof(GroupSlot) + sizeof(std::atomic<std::uint64_t>) +
                                  2 * sizeof(std::atomic<std::uint32_t>);
  return sizeof(CountersHead) + size * kOfRank;
}
// Where the rows of counters begin.
std::size_t rows_offset(int size) noexcept { return round_up(flag_bytes(size), kPage); }

}  // namespace

// The segment need not have memory behind it yet.
SharedFlags::SharedFlags(std::shared_ptr<Segment> segment, int rank, int size)
    : segment_(std::move(segment)), rank_(rank), size_(size) {
  const std::size_t rows = rows_offset(size);
  FERRY_CHECK(segment_->bytes(), ==, bytes(size));
  FERRY_CHECK(rows % kPage, ==, 0u);
  slots_ = reinterpret_cast<GroupSlot*>(segment_->data() + sizeof(CountersHead));
  abort_ = reinterpret_cast<std::atomic<std::uint64_t>*>(slots_ + size);
  doorbell_ = reinterpret_cast<std::atomic<std::uint32_t>*>(abort_ + size);
  sleeping_ = doorbell_ + size;
  rows_ = segment_->data() + rows;
  counters_ = RankCounters(rows_ + rank * RankCounters::row_bytes(size));
}

std::size_t SharedFlags::bytes(int size) noexcept {
  return rows_offset(size) + size * RankCounters::row_bytes(size);
}

std::uint64_t SharedFlags::group() const noexcept {
  return reinterpret_cast<const CountersHead*>(segment_->data())->group;
}

SharedFlags::SharedFlags(Rendezvous& rendezvous, const std::vector<int>& node_ranks,
                         std::uint64_t group, const Deadline& by)
    : SharedFlags(rendezvous.share_segment(bytes(rendezvous.size()), by), rendezvous.rank(),
                  rendezvous.size()) {
  const bool first = rank_ == node_ranks[0];
  std::string problem = back(first, group);
  std::vector<int> node;
  const std::vector<int>& nodes = rendezvous.nodes();
  for (int rank = 0; rank < size_; ++rank)
    if (nodes[rank] == nodes[rank_]) node.push_back(rank);
  try {
    if (first && problem.empty()) show_metrics(std::move(node));
  } catch (const Error& error) {
    problem = error.what();
  }
  // All ranks have their memory.
  check_no_problem(rendezvous.all_gather(problem, by), rendezvous.ranks());
  segment_->map_in(0, flag_bytes(size_));
  counters_.add(Counter::kPid, static_cast<std::uint64_t>(getpid()));
}

bool SharedFlags::exports() const noexcept {
  const auto& head = *reinterpret_cast<const CountersHead*>(segment_->data());
  return head.exporter == static_cast<std::uint64_t>(rank_);
}

void SharedFlags::show_metrics(std::vector<int> node) {
  metrics_.emplace();
  metrics_->show({segment_, std::move(node)});
}

std::string SharedFlags::back(bool first, std::uint64_t group) {
  const std::size_t row_bytes = RankCounters::row_bytes(size_), rows = rows_offset(size_);
  const std::size_t mine = rows + rank_ * row_bytes;
  if ((first && !segment_->commit(0, flag_bytes(size_))) || !segment_->commit(mine, row_bytes))
    return fmt::format("no memory for the {} control bytes of a group of {}",
                       flag_bytes(size_) + row_bytes, size_);
  if (!first) return {};
  auto& head = *reinterpret_cast<CountersHead*>(segment_->data());
  head.group = group;
  head.num_ranks = static_cast<std::uint64_t>(size_);
  head.rows_offset = rows;
  head.row_bytes = row_bytes;
  head.exporter = static_cast<std::uint64_t>(rank_);
  head.magic.store(CountersHead::kMagic, std::memory_order_release);
  return {};
}

SharedFlags::SharedFlags(std::shared_ptr<Segment> segment, int rank, int size, std::uint64_t view)
    : SharedFlags(std::move(segment), rank, size) {
  view_ = view;
  segment_->map_in(0, flag_bytes(size_));
}

// Relaxed: no rank reads these words before this one has said that it is ready. The meeting of the
// ranks that are ready publishes them, and so does the seat of the rank.
void SharedFlags::make_place(int rank, std::uint64_t next, std::uint64_t admission) {
  const std::size_t row_bytes = RankCounters::row_bytes(size_);
  if (!segment_->commit(rows_offset(size_) + rank * row_bytes, row_bytes))
    throw Error(
        Code::kCapacity,
        fmt::format("no memory for the {} bytes of the counters of rank {}", row_bytes, rank));
  GroupSlot& place = slots_[rank];
  place.place_of.store(admission, std::memory_order_relaxed);
  place.barrier.store(0, std::memory_order_relaxed);
  place.barriers[next % 2].store(0, std::memory_order_relaxed);
  place.unmet.store(0, std::memory_order_relaxed);
  abort_[rank].store(0, std::memory_order_relaxed);
  sleeping_[rank].store(0, std::memory_order_relaxed);
  RankCounters(rows_ + rank * row_bytes).clear(size_);
}

std::vector<std::uint64_t> SharedFlags::waited(int rank) const {
  const RankCounters row(rows_ + rank * RankCounters::row_bytes(size_));
  std::vector<std::uint64_t> waited;
  for (int peer = 0; peer < size_; ++peer) waited.push_back(row.value(kNumCounters + peer));
  return waited;
}

// Whole pages: each rank's lie on its own NUMA domain.
std::size_t RankCounters::row_bytes(int num_ranks) noexcept {
  return round_up((kNumCounters + static_cast<std::size_t>(num_ranks)) * sizeof(std::uint64_t),
                  kPage);
}

void SharedFlags::set_abort(int rank, std::uint64_t word) noexcept {
  std::uint64_t seen = abort_[rank].load(std::memory_order_relaxed);
  // Release: publishes the report and the flags raised before. Partner: abort().
  while (seen < least_abort_word() && !abort_[rank].compare_exchange_weak(
                                          seen, least_abort_word() | word,
                                          std::memory_order_release, std::memory_order_relaxed)) {
  }
}

// Sequentially consistent, so that a rank that sleeps is seen by the ring() that follows (partner:
// sleep()), and that what the rank wrote before it came is seen by the others.
std::uint64_t SharedFlags::decide_seat(int rank, std::uint64_t view, std::uint64_t seat) noexcept {
  std::atomic<std::uint64_t>& word = slots_[rank].seat;
  std::uint64_t seen = word.load(std::memory_order_seq_cst);
  while (!Seat::decided(seen, view)) {
    if (word.compare_exchange_weak(seen, seat, std::memory_order_seq_cst)) return seat;
  }
  return seen;
}

// Release: what this rank made ready for the next view. Acquire: what the others did. It is enough,
// as every rank of the admission has said that it is ready before one decides that the view begins.
std::uint64_t SharedFlags::decide_admission(int coordinator, std::uint64_t number,
                                            std::uint64_t why) noexcept {
  std::atomic<std::uint64_t>& word = slots_[coordinator].admission;
  std::uint64_t seen = word.load(std::memory_order_acquire);
  while (seen >> AbortWord::kViewShift < number) {
    if (word.compare_exchange_weak(seen, number << AbortWord::kViewShift | why,
                                   std::memory_order_acq_rel, std::memory_order_acquire))
      return why;
  }
  if (seen >> AbortWord::kViewShift == number) return seen & AbortWord::kMask;
  return AbortWord::make(Code::kPeerLost, coordinator);
}

bool SharedFlags::shares_processor(int rank, int peer) noexcept {
  const int mine = current_processor() + 1;
  slots_[rank].processor.store(mine, std::memory_order_relaxed);  // it publishes no other memory
  return mine > 0 && slots_[peer].processor.load(std::memory_order_relaxed) == mine;
}

// Sequentially consistent on `sleeping_` and the flag: either this rank sees the flag up, or the
// raiser sees it sleeping and rings (partners: raise() and ring()).
void SharedFlags::sleep(int rank, const std::atomic<std::uint64_t>& flag,
                        std::uint64_t value) noexcept {
  sleeping_[rank].fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t rung = doorbell_[rank].load(std::memory_order_seq_cst);
  if (flag.load(std::memory_order_seq_cst) < value) sleep_on(doorbell_[rank], rung, kSleepNs);
  sleeping_[rank].fetch_sub(1, std::memory_order_seq_cst);
}

void SharedFlags::ring(std::span<const int> ranks) noexcept {
  for (const int peer : ranks) {
    if (sleeping_[peer].load(std::memory_order_seq_cst) == 0) continue;
    doorbell_[peer].fetch_add(1, std::memory_order_seq_cst);
    wake(doorbell_[peer]);
  }
}

}  // namespace ferry::internal
