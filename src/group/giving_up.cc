// How a wait ends with an error: the waiting rank looks at the state of the others, chooses the
// rank that it names (blame.h), and writes the message.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/out_of_memory.h"
#include "group/blame.h"
#include "group/state.h"
#include "group/wait.h"

namespace ferry::internal {

namespace {

// The time in which a rank that waits is seen to wait: it adds to its counter after each sleep, and
// the longest sleep (SharedFlags::sleep) is shorter than the first value. Only a rank that gets no
// processor needs longer.
constexpr std::chrono::milliseconds kSeenWaiting{10}, kSeenWaitingCrowded{100};

}  // namespace

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
      if (now[peer].sent < then[peer].queued) unsent.push_back(peer);
    }
    if (!unsent.empty()) return unsent;
  }
  return missing;
}

// Looks for a reason to give up. It reads the flags first: if a rank delivered its part and then
// died or left, that is not a reason. Without memory for a reason it finds none until the deadline.
Status GroupState::check(const Await& await) noexcept try {
  const std::vector<int> missing = missing_ranks(await);
  if (missing.empty()) return {};
  // Acquire: another thread of this rank may leave. Partner: leave().
  if (verdict_.closed.load(std::memory_order_acquire)) return verdict();
  if (const int culprit = gone_culprit(await, missing); culprit >= 0)
    return give_up(await, Code::kPeerLost, culprit);
  bool waits_too = false;
  if (const int peer = reporter(); peer >= 0) {
    if (missing_ranks(await).empty()) return {};  // all raised their flags before
    const std::uint64_t word = flags_->abort(peer);
    waits_too = is_blamed_while_waiting(await, word);
    if (!waits_too) return give_up(await, AbortWord::code(word), AbortWord::culprit(word));
  }
  const bool interrupted = options_.interrupted && options_.interrupted();
  if (interrupted) return give_up(await, Code::kInterrupted, rank_);
  if (!await.time->passed() && !waits_too) return {};
  if (await.patient()) return {Code::kTimeout, "", missing[0]};  // a timeout blames nobody
  const std::vector<int> waits_for = waits_here(await, missing[0]);
  Seen late = look(await, missing_ranks(await));
  if (internal::missing_ranks(late).empty() || (aborted() && !waits_too)) return {};  // looks again
  late.saw_waits = !await.outgoing;
  for (int peer = 0; peer < size_; ++peer) late.ranks[peer].waits_for = waits_for[peer];
  const int owes = owing(/*lost=*/false);
  return give_up(await, Code::kTimeout, owes < 0 ? late_culprit(late) : owes);
} catch (const std::bad_alloc&) {
  return await.time->passed() ? fail(kOutOfMemory) : Status();
}

// True if another rank names this one at its deadline, while this rank has been waiting for half of
// its own deadline or more. This rank then names the rank that it waits for itself.
bool GroupState::is_blamed_while_waiting(const Await& await, std::uint64_t word) const noexcept {
  return AbortWord::code(word) == Code::kTimeout && AbortWord::culprit(word) == rank_ &&
         await.time->remaining() < await.time->limit() / 2;
}

// For each rank this reads first whether it is gone, then its flag, then its abort word: a rank may
// have raised its flag before it went.
Seen GroupState::look(const Await& await, const std::vector<int>& missing) const {
  Seen seen{.rank = rank_,
            .ranks = std::vector<RankSeen>(size_),
            .saw_waits = false,
            .ranks_pass_messages = !nodes_.progress.own_thread};
  const bool by_others = await.last_hop && !await.outgoing;  // sent messages have no last hop
  for (int peer = 0; peer < size_; ++peer) {
    RankSeen& one = seen.ranks[peer];
    one.here = here(peer);
    one.last_hop = by_others ? (*await.last_hop)[peer] : peer;
    one.gone = await.patient() && (*await.needed)[peer] && gone(await, peer);
  }
  for (const int peer : missing) {
    for (int from = -1, hop = peer; hop != from && hop != rank_;
         from = hop, hop = seen.ranks[hop].last_hop)
      seen.ranks[hop].gone = gone(await, hop);
  }
  for (const int peer : missing_ranks(await)) seen.ranks[peer].missing = true;
  for (int peer = 0; peer < size_; ++peer) {
    seen.ranks[peer].gave_up = flags_->gave_up(peer);
    seen.ranks[peer].flag = await.flag(peer).load(std::memory_order_relaxed);
  }
  return seen;
}

int GroupState::gone_culprit(const Await& await, const std::vector<int>& missing) const {
  if (await.outgoing) return -1;
  const Seen seen = look(await, missing);
  if (await.patient()) return lost_culprit(seen, *await.needed);
  const int culprit = lost_culprit(seen);
  return culprit >= 0 ? culprit : owing(/*lost=*/true);
}

// [ranks] The rank that each rank of this node is seen to wait for; -1: none is seen. In a wait
// until messages have been sent all are -1: waits of other ranks say nothing about the network.
std::vector<int> GroupState::waits_here(const Await& await, int missing) {
  std::vector<int> waits_for(size_, -1);
  if (await.outgoing) return waits_for;
  std::vector<std::vector<std::uint64_t>> before;
  for (const int rank : node_ranks_) before.push_back(flags_->waited(rank));
  const auto all_wait = [&] {
    return std::all_of(node_ranks_.begin(), node_ranks_.end(),
                       [&](int rank) { return rank == rank_ || waits_for[rank] >= 0; });
  };
  CallTime usual(kSeenWaiting), longest(kSeenWaitingCrowded);
  do {
    progress();
    account(await, missing, 1);  // shows to other ranks that look that this rank waits
    sleep_until_rung(await, missing, 0);
    waits_for = waits_since(before);
  } while (!usual.passed() || (!all_wait() && !longest.passed() && !aborted()));
  return waits_for;
}

// The same since the times in `waited`, by each of node_ranks_: the rank for which the waiting time
// has grown most.
std::vector<int> GroupState::waits_since(
    const std::vector<std::vector<std::uint64_t>>& waited) const {
  std::vector<int> waits_for(size_, -1);
  for (std::size_t i = 0; i < node_ranks_.size(); ++i) {
    const int rank = node_ranks_[i];
    const std::vector<std::uint64_t> now = flags_->waited(rank);
    std::uint64_t most = 0;
    for (int peer = 0; peer < size_ && rank != rank_; ++peer) {
      const std::uint64_t ns = now[peer] - waited[i][peer];
      if (ns > most) waits_for[rank] = peer;
      most = std::max(most, ns);
    }
  }
  return waits_for;
}

// The lowest rank that has not sent this rank messages for which others wait; -1: there is none.
// With `lost`, only ranks whose link is lost and that have not given up, but then also ranks with
// more messages that no flag shows.
int GroupState::owing(bool lost) const {
  if (!messages_) return -1;
  const auto held = lock();
  std::vector<Channel::Awaited> of_channels;
  for (const auto& [number, channel] : nodes_.channels) of_channels.push_back(channel->awaited());
  for (int peer = 0; peer < size_; ++peer) {
    if (lost && (!nodes_.lost[peer].load(std::memory_order_acquire) ||  // partner: lost()
                 flags_->gave_up(peer)))
      continue;
    const auto waits = [peer, lost](const Channel::Awaited& awaited) {
      return std::ranges::count(awaited.owing, peer) > 0 ||
             (lost && std::ranges::count(awaited.expected, peer) > 0);
    };
    if (std::ranges::any_of(of_channels, waits)) return peer;
  }
  return -1;
}

// True when nothing more comes from `rank`. For a rank of another node, only a rank that gets its
// control messages directly can know this. Other ranks may still get passed-on messages of a rank
// that has left, and may learn that it left before they have read them.
bool GroupState::gone(const Await& await, int rank) const noexcept {
  if (here(rank)) return departed(rank) || !rendezvous_->alive(rank);
  if (await.last_hop && (*await.last_hop)[rank] != rank_) return false;
  return nodes_.lost[rank].load(std::memory_order_acquire) ||    // partner: lost()
         nodes_.farewell[rank].load(std::memory_order_acquire);  // partner: read_abort()
}

Status GroupState::give_up(const Await& await, Code code, int culprit) {
  const bool known = culprit >= 0 && culprit < size_;  // a word of another rank may have any number
  const bool needed = !await.patient() || (known && (*await.needed)[culprit]);
  const bool interrupted = code == Code::kInterrupted && culprit == rank_;  // this rank ends
  if (!needed && !interrupted) return {Code::kTimeout, "", culprit};
  const std::vector<int> missing = missing_ranks(await);
  std::string text =
      fmt::format("{} {}: gave up waiting for {} of {} {}", await.operation, await.number,
                  await.phase, missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "));
  if (await.per_call > 0) text += how_far(await, missing);
  text += fmt::format("; {} {}", name_of(culprit),
                      code == Code::kInterrupted ? "was interrupted" : state_of(culprit, code));
  if (messages_ && !here(culprit)) {
    const std::map<int, std::string> unconnected = messages_->unconnected();
    if (const auto found = unconnected.find(culprit); found != unconnected.end())
      text += fmt::format("; it does not answer at {} (a firewall?)", found->second);
  }
  const int last_hop = await.last_hop ? (*await.last_hop)[culprit] : culprit;
  if (last_hop != culprit && last_hop != rank_)
    text += fmt::format("; its control messages come by rank {}", last_hop);
  if (code == Code::kTimeout) {
    text += fmt::format("; deadline {:.3g} s",
                        std::chrono::duration<double>(await.time->limit()).count());
  }
  return break_group(code, culprit, text + "; " + view_is_over(code, culprit));
}

// Returns text such as ", which came to call 2", for the first few missing ranks.
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

// "the group is broken: view 1 is over, lost rank 2". Another rank may have seen that the culprit
// is lost before this rank does.
std::string GroupState::view_is_over(Code code, int culprit) const {
  std::vector<int> lost;
  for (const int rank : survival_.view().members) {
    const bool cut = nodes_.lost[rank].load(std::memory_order_acquire);  // partner: lost()
    const bool left = departed(rank) || flags_->has_left(rank);
    const bool told = code == Code::kPeerLost && rank == culprit;
    if (left || cut || told || !rendezvous_->alive(rank)) lost.push_back(rank);
  }
  std::string text = fmt::format("the group is broken: view {} is over", survival_.view().number);
  if (lost.empty()) return text;
  return text +
         fmt::format(", lost {} {}", lost.size() == 1 ? "rank" : "ranks", fmt::join(lost, ", "));
}

// Another rank may have seen the culprit leave or die before this rank does: then only `code` shows
// that the culprit is lost.
const char* GroupState::state_of(int rank, Code code) const noexcept {
  if (rank == rank_) return "was given up by another rank";
  if (departed(rank)) return "has left the group";
  if (!rendezvous_->alive(rank)) return "is dead";
  if (nodes_.lost[rank].load(std::memory_order_acquire))  // partner: lost()
    return "of another node cannot be reached any more (dead, or its link is cut)";
  if (code == Code::kPeerLost) return "is lost (it has left the group, or is dead)";
  if (code == Code::kBroken) return "has ended the view";
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

bool GroupState::departed(int rank) const noexcept {
  return AbortWord::code(flags_->abort(rank)) == Code::kClosed;  // partner: leave
}

}  // namespace ferry::internal
