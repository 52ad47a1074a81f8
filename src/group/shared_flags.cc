#include "group/shared_flags.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <string>

#include "bootstrap/agree.h"

namespace ferry::internal {

namespace {

// Longest sleep before peers and deadline are looked at.
constexpr std::int64_t kSleepNs = 2'000'000;

void futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value,
           const timespec* timeout) noexcept {
  syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

}  // namespace

SharedFlags::SharedFlags(Rendezvous& rendezvous, bool commits, const Deadline& by) {
  const int size = rendezvous.size();
  const std::size_t of_rank =
      sizeof(GroupSlot) + sizeof(*abort_) + sizeof(*doorbell_) + sizeof(*sleeping_);
  segment_ = rendezvous.share_segment(size * of_rank, by);
  slots_ = reinterpret_cast<GroupSlot*>(segment_->data());
  abort_ = reinterpret_cast<std::atomic<std::uint64_t>*>(slots_ + size);
  doorbell_ = reinterpret_cast<std::atomic<std::uint32_t>*>(abort_ + size);
  sleeping_ = doorbell_ + size;
  std::string problem;
  if (commits && !segment_->commit(0, size * of_rank))
    problem =
        fmt::format("no memory for the {} control bytes of a group of {}", size * of_rank, size);
  check_no_problem(rendezvous.all_gather(problem, by));  // memory is there for all
  segment_->map_in(0, size * of_rank);
}

void SharedFlags::set_abort(int rank, std::uint64_t word) noexcept {
  std::uint64_t none = AbortWord::kNone;
  // Release: publishes the report and the flags raised before. Partner: abort().
  abort_[rank].compare_exchange_strong(none, word, std::memory_order_release,
                                       std::memory_order_relaxed);
}

// Sequentially consistent on `sleeping_` and the flag: either this rank sees the flag up, or the
// raiser sees it sleeping and rings (partners: raise() and ring()).
void SharedFlags::sleep(int rank, const std::atomic<std::uint64_t>& flag,
                        std::uint64_t value) noexcept {
  sleeping_[rank].fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t rung = doorbell_[rank].load(std::memory_order_seq_cst);
  if (flag.load(std::memory_order_seq_cst) < value) {
    const timespec timeout{0, kSleepNs};
    futex(&doorbell_[rank], FUTEX_WAIT, rung, &timeout);
  }
  sleeping_[rank].fetch_sub(1, std::memory_order_seq_cst);
}

void SharedFlags::ring(std::span<const int> ranks) noexcept {
  for (const int peer : ranks) {
    if (sleeping_[peer].load(std::memory_order_seq_cst) == 0) continue;
    doorbell_[peer].fetch_add(1, std::memory_order_seq_cst);
    futex(&doorbell_[peer], FUTEX_WAKE, 1 << 30, nullptr);
  }
}

}  // namespace ferry::internal
