#include "group/state.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "base/out_of_memory.h"
#include "bootstrap/agree.h"
#include "bootstrap/handshake.h"
#include "bootstrap/hello.h"
#include "group/join.h"
#include "group/leaving.h"
#include "group/wait.h"

namespace ferry::internal {

namespace {

// The processors this thread may run on, one '1' per processor, up to the last one.
std::string allowed_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  std::string text;
  if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) return text;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) text += CPU_ISSET(cpu, &cpus) ? '1' : '0';
  return text.substr(0, text.find_last_of('1') + 1);
}

}  // namespace

GroupState::GroupState(std::unique_ptr<Rendezvous> rendezvous, const GroupOptions& options,
                       GroupOrigin origin)
    : rendezvous_(std::move(rendezvous)),
      options_(options),
      origin_(std::move(origin)),
      rank_(rendezvous_->rank()),
      size_(rendezvous_->size()),
      topology_(topology_of(options_, rendezvous_->nodes())),
      local_ranks_(size_, -1),
      log_level_(log_level_in_environment()),
      nodes_(size_),
      survival_(size_) {
  const std::span<const int> node = topology_.node_ranks(topology_.node_of(rank_));
  for (std::size_t i = 0; i < node.size(); ++i) local_ranks_[node[i]] = static_cast<int>(i);
  std::ranges::copy_if(rendezvous_->ranks(), std::back_inserter(node_ranks_),
                       [this](int rank) { return here(rank); });
  FERRY_CHECK(topology_.num_ranks(), ==, size_);
  FERRY_CHECK(local_ranks_[rank_], >=, 0);
}

GroupState::GroupState(std::unique_ptr<Rendezvous> rendezvous, const GroupOptions& options,
                       GroupOrigin origin, const Deadline& by, const TransportFactory& make)
    : GroupState(std::move(rendezvous), options, std::move(origin)) {
  try {
    const View view{.number = 1, .members = rendezvous_->ranks()};
    survival_.set_met_for(view);
    survival_.set_view(view);
    const std::uint64_t group = meet_neighbours(*rendezvous_, by);
    survival_.meeting().group = group;
    flags_.emplace(*rendezvous_, node_ranks_, group, by);
    if (!one_node()) join_nodes(make, by);
  } catch (...) {
    verdict_.closed.store(true, std::memory_order_relaxed);  // ~GroupState() has no group to leave
    throw;
  }
  log(LogLevel::kInfo,
      fmt::format("joined a group of {}{} by {} ({}), {} processors{}", size_,
                  survival_.waited()
                      ? fmt::format(" that begins with {}", rank_list(rendezvous_->ranks()))
                      : "",
                  origin_.launcher, origin_.reason, num_cpus_,
                  messages_ ? fmt::format(", node {} of {} over {}", topology_.node_of(rank_),
                                          topology_.num_nodes(), messages_->describe())
                            : ""));
}

// Counts the ranks of this machine and their processors. Returns a number that all ranks of this
// group have in common, and no other group: the beginning of the nonce of the first of them. The
// others send zeros, so that ranks of a host send equal texts, which reach every rank once.
std::uint64_t GroupState::meet_neighbours(Rendezvous& meeting, const Deadline& by) {
  const std::string machine = boot_id() + " ";
  std::string cpus(CPU_SETSIZE, '0');
  num_neighbours_ = 0;
  const int first = meeting.ranks()[0];
  const std::string nonce = rank_ == first ? hex(fresh_nonce()) : std::string(2 * kNonceBytes, '0');
  const auto told = meeting.all_gather(nonce + machine + allowed_cpus(), by);
  for (const std::string& one : told) {
    const std::string theirs = one.substr(std::min(one.size(), 2 * kNonceBytes));
    if (!theirs.starts_with(machine)) continue;
    ++num_neighbours_;
    for (std::size_t cpu = 0; machine.size() + cpu < theirs.size(); ++cpu)
      cpus[cpu] = std::max(cpus[cpu], theirs[machine.size() + cpu]);
  }
  num_cpus_ = std::max(1, static_cast<int>(std::count(cpus.begin(), cpus.end(), '1')));
  return number_in(told[0], first);
}

GroupState::~GroupState() {
  leave();
  if (messages_) end_progress();  // its threads read the members below
  messages_.reset();
}

void GroupState::leave() noexcept {
  if (verdict_.closed.exchange(true, std::memory_order_acq_rel) || !flags_) return;
  {
    const std::lock_guard no_step(survival_.step());
    // A rank that sees the abort word also sees all flags that this rank raised before.
    flags_->set_abort(rank_, AbortWord::make(Code::kClosed, rank_));
    flags_->set_left(rank_);
  }
  ring();
  // If this rank gave up before, ranks of other nodes know its earlier word, and not that it
  // leaves.
  send_abort(AbortWord::make(Code::kClosed, rank_));
  if (messages_) linger();
}

Status GroupState::verdict() noexcept {
  if (verdict_.closed.load(std::memory_order_acquire))
    return {Code::kClosed, text_of([] { return "the group was destroyed"; }), rank_};  // leave
  if (verdict_.broken.load(std::memory_order_acquire)) {  // partner: break_group
    const std::lock_guard lock(verdict_.mutex);
    const Status& known = verdict_.status;
    return {known.code(), text_of([&] { return known.message(); }), known.culprit()};
  }
  const int peer = reporter();
  if (peer < 0) return {};
  const std::uint64_t word = flags_->abort(peer);
  return break_group(AbortWord::code(word), AbortWord::culprit(word), text_of([&] {
                       return fmt::format("rank {} reported: {}", peer, flags_->slot(peer).report);
                     }));
}

bool GroupState::usable() const noexcept {
  return !verdict_.closed.load(std::memory_order_acquire) &&
         !verdict_.broken.load(std::memory_order_acquire) && !aborted();  // see verdict()
}

// The first call in a view counts. Later calls on the group then return kBroken with its text.
Status GroupState::break_group(Code code, int culprit, const std::string& text) noexcept {
  Status status(code, text_of([&] { return text; }), culprit);
  {
    const std::lock_guard lock(verdict_.mutex);
    if (verdict_.broken.load(std::memory_order_relaxed)) return status;
    verdict_.status =
        Status(Code::kBroken, text_of([&] { return "the group is broken: " + text; }), culprit);
    std::snprintf(flags_->slot(rank_).report, GroupSlot::kReportBytes, "%s", text.c_str());
    flags_->set_abort(rank_, AbortWord::make(code, culprit));
    verdict_.broken.store(true, std::memory_order_release);  // partner: verdict()
  }
  ring();
  send_abort(flags_->abort(rank_));
  log(LogLevel::kWarn, status.message());
  return status;
}

Status GroupState::barrier(std::chrono::nanoseconds limit) noexcept {
  CallTime time(limit);
  return arrive({}, time);
}

// `piece`: the data that are sent to other nodes with the barrier.
Status GroupState::arrive(std::span<const std::byte> piece, CallTime& time) noexcept try {
  if (Status status = verdict(); !status.ok()) return status;
  const std::uint64_t number = flags_->num_barriers(rank_) + 1;
  raise(flags_->slot(rank_).barrier, number);
  ring();
  for (const ForwardingTable::Mate& mate : nodes_.forwarding.mates)
    send(mate.rank, GroupMessage::kBarrier, number, piece);
  const Await arrival{.operation = "barrier",
                      .number = number,
                      .phase = "arrival",
                      .flags = &flags_->slot(0).barrier,
                      .stride_bytes = sizeof(GroupSlot),
                      .value = number,
                      .time = &time,
                      .crowded = crowded(1),
                      .per_call = 1,
                      .only = survival_.waited(),
                      .last_hop = messages_ ? &nodes_.forwarding.last_hop : nullptr};
  Status status = wait(arrival);
  return status.ok() && messages_ ? await_sent(arrival, nodes_.forwarding.is_mate) : status;
} catch (const std::bad_alloc&) {
  return fail(kOutOfMemory);
}

Status GroupState::all_gather(const void* mine, std::size_t bytes, void* all) noexcept {
  if (Status status = verdict(); !status.ok()) return status;
  if (bytes > 0 && (mine == nullptr || all == nullptr)) {
    return {Code::kInvalidArgument,
            text_of([&] { return fmt::format("all_gather of {} bytes got a null buffer", bytes); }),
            rank_};
  }
  CallTime time(options_.deadline);
  for (std::size_t done = 0; done < bytes; done += GroupSlot::kBytes) {
    const std::size_t piece = std::min(GroupSlot::kBytes, bytes - done);
    const std::uint64_t number = flags_->num_barriers(rank_) + 1;
    std::byte* place = flags_->slot(rank_).piece(number);
    std::memcpy(place, static_cast<const std::byte*>(mine) + done, piece);
    if (Status status = arrive({place, piece}, time); !status.ok()) return status;
    for (int peer = 0; peer < size_; ++peer) {
      std::byte* const to = static_cast<std::byte*>(all) + peer * bytes + done;
      if (survival_.has(peer)) {
        std::memcpy(to, flags_->slot(peer).piece(number), piece);
      } else {
        std::memset(to, 0, piece);
      }
    }
  }
  return bytes == 0 ? arrive({}, time) : Status{};
}

void GroupState::log(LogLevel level, const std::string& text) const noexcept {
  if (level > log_level_) return;
  std::fprintf(stderr, "ferry: rank %d, %s, pid %d: %s\n", rank_,
               text_of([] { return host_name(); }).c_str(), getpid(), text.c_str());
}

}  // namespace ferry::internal
