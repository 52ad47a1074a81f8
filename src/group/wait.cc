// The one wait loop of ferry: spin, yield, sleep; deadline; who is missing and why.
// Every wait of group and exchange comes here; nothing else in the library blocks on a peer.
#include "group/wait.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/waiting.h"
#include "group/state.h"

namespace ferry::internal {

namespace {

constexpr int kSpins = 2000;  // pauses before the first yield, with a processor for every thread
constexpr int kSpinsCrowded = 20;             // and without
constexpr int kYieldsPerClock = 16;           // yields between two looks at the clock
constexpr std::int64_t kYieldNs = 1'000'000;  // yielding turns into sleeping
// The same where the rank that is waited for may need this processor, to move messages that take
// longer anyway.
constexpr std::int64_t kYieldCrowdedNetworkNs = 200'000;

// How long a rank that failed may take from the end of its exchange to that of its process: Python
// with torch needs it.
constexpr std::chrono::milliseconds kEndsSoon{500};

// A rank that makes its own progress does not hear the bell of its own node while it sleeps in the
// network. So it looks again after a part of the time that it has waited.
constexpr int kNapPart = 8;
constexpr std::int64_t kShortestNapUs = 100, kLongestNapUs = 1000;

// A rank that waits counts on after each sleep, and the longest (SharedFlags::sleep) is a part of
// the first time. Only one that gets no processor meanwhile needs longer to be seen.
constexpr std::chrono::milliseconds kSeenWaiting{10}, kSeenWaitingCrowded{100};

}  // namespace

Status GroupState::wait(const Await& await) {
  const int spins = await.crowded ? kSpinsCrowded : kSpins;
  const bool in_network = messages_ && !nodes_.own_thread;
  const std::int64_t yield_ns = await.crowded && in_network ? kYieldCrowdedNetworkNs : kYieldNs;
  std::int64_t began_ns = 0, peer_began_ns = 0;  // 0: no wait yet, at all and for this peer
  std::int64_t calm = 0;                         // turns of the loop since the last flag went up
  for (int passed = 0; passed < size_;) {
    const int peer = (rank_ + 1 + passed) % size_;
    if (await.up(peer)) {
      if (peer_began_ns != 0) account(await, peer, now_ns() - peer_began_ns);
      peer_began_ns = 0;
      ++passed;
      continue;
    }
    if (peer_began_ns == 0) peer_began_ns = now_ns();
    if (began_ns == 0) began_ns = peer_began_ns;
    if (progress()) calm = 0;
    if (calm++ < spins) {
      pause_processor();
      continue;
    }
    if (calm % kYieldsPerClock != 0) {
      yield_processor();
      continue;
    }
    if (await.time->passed() || aborted()) {
      if (Status status = check(await); !status.ok()) return status;
    }
    const std::int64_t now = now_ns();
    if (now - began_ns < yield_ns) continue;
    const std::int64_t worked_ns = await.meanwhile ? (*await.meanwhile)() : 0;
    if (worked_ns > 0) {
      began_ns += worked_ns;
      peer_began_ns += worked_ns;
      calm = 0;
      continue;
    }
    account(await, peer, now - peer_began_ns);  // onlookers see a wait while it lasts
    peer_began_ns = now;
    sleep_until_rung(await, peer, now - began_ns);
    if (Status status = check(await); !status.ok()) return status;
  }
  return {};
}

// What is to leave this rank is the network's doing, whoever it is for.
void GroupState::account(const Await& await, int peer, std::int64_t ns) noexcept {
  if (await.wait_ns) (*await.wait_ns)[peer] += ns;
  counters().waited(await.outgoing ? rank_ : peer, ns);
}

void GroupState::sleep_until_rung(const Await& await, int peer, std::int64_t waited_ns) noexcept {
  if (!messages_ || nodes_.own_thread) return flags_->sleep(rank_, await.flag(peer), await.value);
  const std::int64_t nap_us = waited_ns / 1000 / kNapPart;
  messages_->sleep(static_cast<int>(std::clamp(nap_us, kShortestNapUs, kLongestNapUs)));
}

std::vector<int> GroupState::missing_ranks(const Await& await) const {
  std::vector<int> missing;
  for (int peer = 0; peer < size_; ++peer) {
    if (!await.up(peer)) missing.push_back(peer);
  }
  if (!await.outgoing || missing.empty()) return missing;
  const std::vector<MessageChannel::Traffic> now = messages_->traffic();
  for (const auto& then : {*await.outgoing, now}) {
    std::vector<int> unsent;
    for (int peer = 0; peer < size_; ++peer) {
      if (now[peer].left < then[peer].sent) unsent.push_back(peer);
    }
    if (!unsent.empty()) return unsent;
  }
  return missing;
}

// Looks for a reason to give up. The flags were looked at before: a rank that did its part and then
// died or left is no reason.
Status GroupState::check(const Await& await) noexcept {
  const std::vector<int> missing = missing_ranks(await);
  if (missing.empty()) return {};
  if (const int culprit = gone_culprit(await, missing); culprit >= 0)
    return give_up(await, Code::kPeerLost, culprit);
  bool blamed = false;
  if (const int peer = reporter(); peer >= 0) {
    if (missing_ranks(await).empty()) return {};  // all did their part before that
    const std::uint64_t word = flags_->abort(peer);
    blamed = is_blamed_in_vain(await, word);
    if (!blamed) return give_up(await, AbortWord::code(word), AbortWord::culprit(word));
  }
  const bool interrupted = options_.interrupted && options_.interrupted();
  if (!await.time->passed() && !interrupted && !blamed) return {};
  if (interrupted) return give_up(await, Code::kInterrupted, rank_);
  if (await.patient()) return {Code::kTimeout, "", missing[0]};  // a timeout blames nobody
  const std::vector<int> awaited = awaited_here(await, missing[0]);
  const std::vector<int> late = missing_ranks(await);
  if (late.empty() || (aborted() && !blamed)) return {};  // looks again
  const int owes = owing(/*lost=*/false);
  return give_up(await, Code::kTimeout, owes < 0 ? holding_up(await, late, awaited) : owes);
}

// Another rank may know no better than that this one did not come; whom it waits for itself it
// knows best, if it has waited for about as long.
bool GroupState::is_blamed_in_vain(const Await& await, std::uint64_t word) const noexcept {
  return AbortWord::code(word) == Code::kTimeout && AbortWord::culprit(word) == rank_ &&
         await.time->left() < await.time->limit() / 2;
}

// A rank of this node that does not wait holds up the others. Of those of which nothing is known
// the one that is furthest behind does. One that waits is held up by the one that it waits for.
int GroupState::holding_up(const Await& await, const std::vector<int>& late,
                           const std::vector<int>& awaited) const noexcept {
  const auto order = [&](int peer) {
    const int held_up = !here(peer) ? 1 : awaited[peer] >= 0 ? 2 : 0;
    return std::pair(held_up, await.flag(peer).load(std::memory_order_relaxed));
  };
  int last = *std::min_element(late.begin(), late.end(),
                               [&](int a, int b) { return order(a) < order(b); });
  for (int hops = 0; hops < size_ && awaited[last] >= 0; ++hops) {
    if (awaited[last] == rank_ || awaited[last] == last) break;  // itself: for the network
    last = awaited[last];
  }
  return answerable(await, last, awaited);
}

// [ranks] The rank that each rank of this node is seen to wait for; -1: none is seen. Nobody looks
// while its own messages are to leave: those that wait for it say nothing of the network.
std::vector<int> GroupState::awaited_here(const Await& await, int missing) noexcept {
  std::vector<int> awaited(size_, -1);
  if (await.outgoing) return awaited;
  std::vector<std::vector<std::uint64_t>> before;
  for (const int rank : node_ranks_) before.push_back(flags_->waited(rank));
  const auto all_wait = [&] {
    return std::all_of(node_ranks_.begin(), node_ranks_.end(),
                       [&](int rank) { return rank == rank_ || awaited[rank] >= 0; });
  };
  CallTime usual(kSeenWaiting), longest(kSeenWaitingCrowded);
  do {
    progress();
    account(await, missing, 1);  // it waits itself, for those that look now
    sleep_until_rung(await, missing, 0);
    awaited = awaited_since(before);
  } while (!usual.passed() || (!all_wait() && !longest.passed() && !aborted()));
  return awaited;
}

// The same, of what was `waited` before: the time for one of the ranks has grown most.
std::vector<int> GroupState::awaited_since(
    const std::vector<std::vector<std::uint64_t>>& waited) const {
  std::vector<int> awaited(size_, -1);
  for (const int rank : node_ranks_) {
    const std::vector<std::uint64_t> now = flags_->waited(rank);
    std::uint64_t most = 0;
    for (int peer = 0; peer < size_ && rank != rank_; ++peer) {
      const std::uint64_t ns = now[peer] - waited[positions_[rank]][peer];
      if (ns > most) awaited[rank] = peer;
      most = std::max(most, ns);
    }
  }
  return awaited;
}

// A rank that is gone and is waited for in vain; -1: there is none.
int GroupState::gone_culprit(const Await& await, const std::vector<int>& missing) const noexcept {
  if (await.outgoing) return -1;
  if (await.patient()) {
    const auto is_gone = [&](int peer) { return gone(await, peer); };
    for (int peer = 0; peer < size_; ++peer)
      if ((*await.needed)[peer] && is_gone(peer) && !flags_->gave_up(peer)) return peer;
    return std::all_of(missing.begin(), missing.end(), is_gone) ? missing[0] : -1;
  }
  for (const int peer : missing) {
    const int culprit = answerable(await, peer, {});
    if (!gone(await, culprit) || await.up(peer)) continue;  // its flag came before it went
    // A rank that gave up before it went has named the culprit: its abort word is read next.
    if (!flags_->gave_up(culprit)) return culprit;
  }
  return owing(/*lost=*/true);
}

// The rank that owes this one what others wait for, and, if `lost`, is lost without having left;
// -1: none.
int GroupState::owing(bool lost) const noexcept {
  if (!messages_) return -1;
  const auto lock = messages_->lock();
  for (int peer = 0; peer < size_; ++peer) {
    if (lost && (!nodes_.lost[peer].load(std::memory_order_acquire) ||  // partner: lost()
                 flags_->gave_up(peer)))
      continue;
    const auto waits = [peer, lost](const auto& channel) {
      return channel.second->waits_for(peer) || (lost && channel.second->expects(peer));
    };
    if (std::any_of(nodes_.channels.begin(), nodes_.channels.end(), waits)) return peer;
  }
  return -1;
}

// The rank that holds up a missing one: itself, or the last hop of its control messages to this
// node that is gone or missing too, or does not wait where it is to pass them on.
int GroupState::answerable(const Await& await, int missing,
                           const std::vector<int>& awaited) const noexcept {
  if (!await.last_hop || await.outgoing) return missing;  // what leaves takes no such way
  int culprit = missing;
  for (int from = missing, mate = (*await.last_hop)[from]; mate != from && mate != rank_;
       from = mate, mate = (*await.last_hop)[from]) {
    // A mate that gave up before it went is no culprit: its abort word names one.
    if (flags_->gave_up(mate) || (!awaited.empty() && awaited[mate] >= 0)) continue;
    const bool stuck = !awaited.empty() && here(mate) && !nodes_.own_thread;
    if (stuck || gone(await, mate) || !await.up(mate)) culprit = mate;
  }
  return culprit;
}

// True when nothing more comes from `rank`. Of a rank of another node only the rank can tell that
// it sends its control messages to: to others they may still be passed on when it has left, and
// that it left may be known before they are read.
bool GroupState::gone(const Await& await, int rank) const noexcept {
  if (here(rank)) return left(rank) || !rendezvous_->alive(rank);
  if (await.last_hop && (*await.last_hop)[rank] != rank_) return false;
  return nodes_.lost[rank].load(std::memory_order_acquire) ||    // partner: lost()
         nodes_.farewell[rank].load(std::memory_order_acquire);  // partner: read_abort()
}

Status GroupState::give_up(const Await& await, Code code, int culprit) noexcept {
  if (await.patient() && !(*await.needed)[culprit]) return {Code::kTimeout, "", culprit};
  const std::vector<int> missing = missing_ranks(await);
  std::string text =
      fmt::format("{} {}: gave up waiting for {} of {} {}", await.operation, await.number,
                  await.phase, missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "));
  if (await.per_call > 0) text += how_far(await, missing);
  text += fmt::format("; {} {}", name_of(culprit),
                      code == Code::kInterrupted ? "was interrupted" : state_of(culprit));
  if (await.last_hop && (*await.last_hop)[culprit] != culprit)
    text += fmt::format("; its control messages come by rank {}", (*await.last_hop)[culprit]);
  if (code == Code::kTimeout) {
    text += fmt::format("; deadline {:.3g} s",
                        std::chrono::duration<double>(await.time->limit()).count());
  }
  return break_group(code, culprit, text + "; the group is broken");
}

// A rank that ends by an exception destroys its exchanges before it leaves the group.
Status GroupState::await_end(Await await, int rank) noexcept {
  const std::vector<bool> needed(size_);  // nobody
  std::vector<bool> only = needed;
  only[rank] = true;
  CallTime soon(kEndsSoon);
  await.flags = flags_->abort_words();
  await.stride_bytes = sizeof(std::atomic<std::uint64_t>);
  await.value = 1;  // any word
  await.time = &soon;
  await.only = &only;
  await.last_hop = nullptr;
  await.needed = &needed;
  static_cast<void>(wait(await));
  if (Status said = verdict(); !said.ok()) return said;
  if (!left(rank) && !gone(await, rank)) return {};
  return break_group(
      Code::kPeerLost, rank,
      fmt::format("{} {}: gave up waiting for {} of rank {}; {} {}; the group is broken",
                  await.operation, await.number, await.phase, rank, name_of(rank), state_of(rank)));
}

// ", which came to call 2", of the first few.
std::string GroupState::how_far(const Await& await, const std::vector<int>& missing) const {
  std::vector<std::uint64_t> calls;
  for (std::size_t i = 0; i < missing.size() && i < 8; ++i)
    calls.push_back(await.flag(missing[i]).load(std::memory_order_relaxed) / await.per_call);
  return fmt::format(", which came to {} {}", calls.size() == 1 ? "call" : "calls",
                     fmt::join(calls, ", "));
}

// A process of another host is known by its rank only.
std::string GroupState::name_of(int rank) const {
  const int pid = rendezvous_->pid(rank);
  return pid > 0 ? fmt::format("rank {} (pid {})", rank, pid) : fmt::format("rank {}", rank);
}

const char* GroupState::state_of(int rank) const noexcept {
  if (left(rank)) return "has left the group";
  if (!rendezvous_->alive(rank)) return "is dead";
  if (nodes_.lost[rank].load(std::memory_order_acquire))  // partner: lost()
    return "of another node cannot be reached any more (dead, or its link is cut)";
  if (!here(rank))
    return "of another node did not arrive (stopped, stuck, its link cut, or skipped a call?)";
  return "is alive but did not arrive (stopped, stuck, or skipped a call?)";
}

Status GroupState::death_here() const noexcept {
  for (const int rank : node_ranks_) {
    if (flags_->abort(rank) == AbortWord::kNone && !rendezvous_->alive(rank))
      return {Code::kPeerLost, name_of(rank) + " is dead", rank};
  }
  return {};
}

int GroupState::reporter() const noexcept {
  for (int peer = 0; peer < size_; ++peer) {
    if (flags_->gave_up(peer)) return peer;  // partner: give_up
  }
  return -1;
}

bool GroupState::left(int rank) const noexcept {
  return AbortWord::code(flags_->abort(rank)) == Code::kClosed;  // partner: leave
}

}  // namespace ferry::internal
