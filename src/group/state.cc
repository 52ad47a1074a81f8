#include "group/state.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "bootstrap/agree.h"
#include "bootstrap/hello.h"
#include "group/join.h"
#include "group/leaving.h"
#include "group/wait.h"

namespace ferry::internal {

namespace {

// The processors this thread may run on, one '1' per processor.
std::string allowed_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  std::string text;
  if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) return text;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) text += CPU_ISSET(cpu, &cpus) ? '1' : '0';
  return text;
}

}  // namespace

GroupState::GroupState(std::unique_ptr<Rendezvous> rendezvous, const GroupOptions& options,
                       GroupOrigin origin, const Deadline& by, const LinkFactory& make_link)
    : rendezvous_(std::move(rendezvous)),
      options_(options),
      origin_(std::move(origin)),
      rank_(rendezvous_->rank()),
      size_(rendezvous_->size()),
      topology_(topology_of(options_, rendezvous_->nodes())),
      positions_(size_, -1),
      log_level_(log_level_in_environment()),
      lost_(size_),
      farewell_(size_) {
  const std::span<const int> here = topology_.node_ranks(topology_.node_of(rank_));
  node_ranks_.assign(here.begin(), here.end());
  for (std::size_t i = 0; i < here.size(); ++i) positions_[here[i]] = static_cast<int>(i);
  count_neighbours(by);
  const std::size_t slots = size_ * sizeof(GroupSlot);
  const std::size_t words = size_ * (sizeof(*abort_) + sizeof(*doorbell_) + sizeof(*sleeping_));
  segment_ = rendezvous_->share_segment(slots + words, by);
  slots_ = reinterpret_cast<GroupSlot*>(segment_->data());
  abort_ = reinterpret_cast<std::atomic<std::uint64_t>*>(slots_ + size_);
  doorbell_ = reinterpret_cast<std::atomic<std::uint32_t>*>(abort_ + size_);
  sleeping_ = doorbell_ + size_;
  std::string problem;
  if (rank_ == node_ranks_[0] && !segment_->commit(0, slots + words))
    problem =
        fmt::format("no memory for the {} control bytes of a group of {}", slots + words, size_);
  check_no_problem(rendezvous_->all_gather(problem, by));  // memory is there for all
  segment_->map_in(0, slots + words);
  if (!one_node()) join_nodes(make_link, by);
  log(LogLevel::kInfo,
      fmt::format("joined a group of {} by {} ({}), {} processors{}", size_, origin_.launcher,
                  origin_.reason, num_cpus_,
                  messages_ ? fmt::format(", node {} of {} over {}", topology_.node_of(rank_),
                                          topology_.num_nodes(), messages_->describe())
                            : ""));
}

void GroupState::count_neighbours(const Deadline& by) {
  const std::string machine = boot_id() + " ";
  std::string cpus(CPU_SETSIZE, '0');
  num_neighbours_ = 0;
  for (const std::string& theirs : rendezvous_->all_gather(machine + allowed_cpus(), by)) {
    if (!theirs.starts_with(machine)) continue;
    ++num_neighbours_;
    for (std::size_t cpu = 0; machine.size() + cpu < theirs.size(); ++cpu)
      cpus[cpu] = std::max(cpus[cpu], theirs[machine.size() + cpu]);
  }
  num_cpus_ = std::max(1, static_cast<int>(std::count(cpus.begin(), cpus.end(), '1')));
}

GroupState::~GroupState() {
  leave();
  if (messages_) {
    unshare_progress(messages_.get());
    messages_->read_by(nullptr);  // threads that move messages read into what follows
  }
  left_open_.clear();
  messages_.reset();
}

void GroupState::leave() noexcept {
  if (closed_.exchange(true, std::memory_order_acq_rel) || abort_ == nullptr) return;
  std::uint64_t none = AbortWord::kNone;
  // Release: the flags raised before come first for whoever sees that this rank left. Partner:
  // left().
  abort_[rank_].compare_exchange_strong(none, AbortWord::make(Code::kClosed, rank_),
                                        std::memory_order_release, std::memory_order_relaxed);
  ring();
  tell_abort(abort_[rank_].load(std::memory_order_relaxed));
  if (messages_) linger();
}

Status GroupState::verdict() noexcept {
  if (closed_.load(std::memory_order_acquire))
    return {Code::kClosed, "the group was destroyed", rank_};  // partner: leave
  if (broken_.load(std::memory_order_acquire)) {               // partner: break_group
    const std::lock_guard lock(verdict_mutex_);
    return verdict_;
  }
  for (int peer = 0; peer < size_; ++peer) {
    const std::uint64_t word =
        abort_[peer].load(std::memory_order_acquire);  // partner: break_group
    if (!AbortWord::gave_up(word)) continue;
    return break_group(AbortWord::code(word), AbortWord::culprit(word),
                       fmt::format("rank {} reported: {}", peer, slots_[peer].report));
  }
  return {};
}

bool GroupState::usable() const noexcept {
  return !closed_.load(std::memory_order_acquire) && !broken_.load(std::memory_order_acquire) &&
         !aborted();  // as verdict()
}

// Once for each rank: what it is told later is kBroken and the same text.
Status GroupState::break_group(Code code, int culprit, const std::string& text) noexcept {
  Status status(code, text, culprit);
  {
    const std::lock_guard lock(verdict_mutex_);
    if (broken_.load(std::memory_order_relaxed)) return status;
    verdict_ = Status(Code::kBroken, "the group is broken: " + text, culprit);
    std::snprintf(slots_[rank_].report, GroupSlot::kReportBytes, "%s", text.c_str());
    std::uint64_t none = AbortWord::kNone;
    // Release: publishes the report. Partners: the acquires in verdict(), check() and aborted().
    // Fails after leave().
    abort_[rank_].compare_exchange_strong(none, AbortWord::make(code, culprit),
                                          std::memory_order_release, std::memory_order_relaxed);
    broken_.store(true, std::memory_order_release);  // partner: verdict()
  }
  ring();
  tell_abort(abort_[rank_].load(std::memory_order_relaxed));
  log(LogLevel::kWarn, status.message());
  return status;
}

Status GroupState::barrier(std::chrono::nanoseconds limit) noexcept {
  CallTime time(limit);
  return arrive({}, time);
}

// `piece`: what lies in my slot, for the other nodes.
Status GroupState::arrive(std::span<const std::byte> piece, CallTime& time) noexcept {
  if (Status status = verdict(); !status.ok()) return status;
  const std::uint64_t number = ++num_barriers_;
  raise(slots_[rank_].barrier, number);
  ring();
  for (const ForwardingTable::Mate& mate : forwarding_.mates)
    tell(mate.rank, kBarrier, number, piece);
  const Await arrival{.operation = "barrier",
                      .number = number,
                      .phase = "arrival",
                      .flags = &slots_[0].barrier,
                      .stride_bytes = sizeof(GroupSlot),
                      .value = number,
                      .time = &time,
                      .crowded = crowded(1),
                      .per_call = 1,
                      .last_hop = messages_ ? &forwarding_.last_hop : nullptr};
  Status status = wait(arrival);
  return status.ok() && messages_ ? await_left(arrival, forwarding_.is_mate) : status;
}

// Pieces of at most kBytes; the barrier after the copy keeps a fast rank from overwriting a piece
// that is being read.
Status GroupState::all_gather(const void* mine, std::size_t bytes, void* all) noexcept {
  if (Status status = verdict(); !status.ok()) return status;
  if (bytes > 0 && (mine == nullptr || all == nullptr)) {
    return {Code::kInvalidArgument, fmt::format("all_gather of {} bytes got a null buffer", bytes),
            rank_};
  }
  CallTime time(options_.deadline);
  for (std::size_t done = 0; done < bytes; done += GroupSlot::kBytes) {
    const std::size_t piece = std::min(GroupSlot::kBytes, bytes - done);
    std::memcpy(slots_[rank_].slot, static_cast<const std::byte*>(mine) + done, piece);
    if (Status status = arrive({slots_[rank_].slot, piece}, time); !status.ok()) return status;
    for (int peer = 0; peer < size_; ++peer) {
      std::memcpy(static_cast<std::byte*>(all) + peer * bytes + done, slots_[peer].slot, piece);
    }
    if (Status status = arrive({}, time); !status.ok()) return status;
  }
  return bytes == 0 ? arrive({}, time) : Status{};
}

void GroupState::log(LogLevel level, const std::string& text) const noexcept {
  if (level > log_level_) return;
  char host[65] = {};
  gethostname(host, sizeof host - 1);
  std::fprintf(stderr, "ferry: rank %d, %s, pid %d: %s\n", rank_, host, getpid(), text.c_str());
}

}  // namespace ferry::internal
