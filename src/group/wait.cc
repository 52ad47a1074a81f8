// The one wait loop of ferry: spin, yield, sleep. giving_up.cc decides whether it ends with an
// error. Every wait in an operation of a group, an exchange or collectives of the CPU uses this
// loop. A rank waits for peers elsewhere only where a group or an object of it is made, in
// survive(), admit() and fence(), and where it leaves.
#include "group/wait.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/waiting.h"
#include "group/state.h"

namespace ferry::internal {

namespace {

// Pauses before the first look at the clock; a shorter wait, of about a microsecond, is not
// counted. Two looks would take a third of the time of a small call.
constexpr int kUntimedSpins = 64;
constexpr int kSpins = 2000;  // pauses before the first yield, with a processor for every thread
constexpr int kSpinsCrowded = 20;  // and without
// The same without a processor for every thread, if each look at the flags is a look at the network
// too, which costs as much as a yield.
constexpr int kSpinsCrowdedNetwork = 1;
constexpr std::int64_t kYieldNs = 1'000'000;  // after this time yielding turns into sleeping
// The same, if the awaited rank may need this processor to move messages.
constexpr std::int64_t kYieldCrowdedNetworkNs = 200'000;

// How long a rank that failed may take from the end of its exchange to that of its process: Python
// with torch needs it.
constexpr std::chrono::milliseconds kEndsSoon{500};

// A rank that makes its own progress is not woken by ranks of its own node while it sleeps in the
// network. So it looks again after a part of the time that it has waited, and yields between two
// naps, until one yield lasts longer than kYieldNs: then other processes need the processor.
constexpr int kNapPart = 8;
constexpr int kTurnsPerNap = 16;
constexpr std::int64_t kShortestNapUs = 100, kLongestNapUs = 1000;

}  // namespace

Status GroupState::wait(const Await& await, bool counts, CountedWait* call) {
  const bool in_network = messages_ && !nodes_.progress.own_thread;
  const int crowded_spins = in_network ? kSpinsCrowdedNetwork : kSpinsCrowded;
  const int spins = await.crowded ? crowded_spins : kSpins;
  const int untimed_spins = std::min(kUntimedSpins, spins);
  const std::int64_t yield_ns = await.crowded && in_network ? kYieldCrowdedNetworkNs : kYieldNs;
  // When the waits for all ranks and for `peer` began; 0: no wait has begun.
  std::int64_t began_ns = 0, peer_began_ns = 0;
  std::int64_t calm = 0;  // turns of the loop since the last flag went up
  bool yields_between_naps = in_network;
  CountedWait alone(survival_.num_calls());
  CountedWait& counted = call ? *call : alone;
  for (int passed = 0; passed < size_;) {
    const int peer = (rank_ + 1 + passed) % size_;
    if (await.up(peer)) {
      if (counts && peer_began_ns != 0) account(await, peer, now_ns() - peer_began_ns);
      peer_began_ns = 0;
      ++passed;
      continue;
    }
    if (calm >= untimed_spins && peer_began_ns == 0) peer_began_ns = now_ns();
    if (began_ns == 0) began_ns = peer_began_ns;
    if (progress()) calm = 0;
    if (calm++ < spins) {
      pause_processor();
      continue;
    }
    const bool at_once =
        calm == spins + 1 && !await.crowded && flags_->shares_processor(rank_, peer);
    // At each turn: where other processes need the processor, one yield may take 0.1 s.
    const std::int64_t now = now_ns();
    if (await.time->passed(now) || aborted()) {
      if (Status status = check(await); !status.ok()) return status;
    }
    const bool yields = now - began_ns < yield_ns;
    if (!at_once && (yields || (yields_between_naps && calm % kTurnsPerNap != 0))) {
      yield_processor();
      if (yields_between_naps) yields_between_naps = now_ns() - now < kYieldNs;
      continue;
    }
    counted.begin();
    const std::int64_t worked_ns = await.meanwhile ? (*await.meanwhile)() : 0;
    if (worked_ns > 0) {
      began_ns += worked_ns;
      peer_began_ns += worked_ns;
      calm = 0;
      continue;
    }
    // Here, so that other ranks see the wait before it ends.
    if (counts) account(await, peer, now - peer_began_ns);
    peer_began_ns = now;
    sleep_until_rung(await, peer, now - began_ns);
    if (Status status = check(await); !status.ok()) return status;
  }
  return {};
}

// A wait for messages that have not been sent counts for the network, not for their receiver.
void GroupState::account(const Await& await, int peer, std::int64_t ns) noexcept {
  if (await.wait_ns) (*await.wait_ns)[peer] += ns;
  counters().waited(await.outgoing ? rank_ : peer, ns);
}

void GroupState::sleep_until_rung(const Await& await, int peer, std::int64_t waited_ns) noexcept {
  if (!messages_ || nodes_.progress.own_thread)
    return flags_->sleep(rank_, await.flag(peer), await.value);
  const std::int64_t nap_us = waited_ns / 1000 / kNapPart;
  messages_->sleep(static_cast<int>(std::clamp(nap_us, kShortestNapUs, kLongestNapUs)));
}

// A rank that ends by an exception destroys its exchanges before it leaves the group.
Status GroupState::await_end(Await await, int rank) {
  const std::vector<bool> needed(size_);  // nobody
  std::vector<bool> only = needed;
  only[rank] = true;
  const int through = await.last_hop == nullptr ? -1 : (*await.last_hop)[rank];
  CallTime soon(kEndsSoon);
  await.flags = flags_->abort_words();
  await.stride_bytes = sizeof(std::atomic<std::uint64_t>);
  await.value = flags_->least_abort_word();  // any word
  await.time = &soon;
  await.only = &only;
  await.last_hop = nullptr;
  await.needed = &needed;
  static_cast<void>(wait(await));
  if (Status said = verdict(); !said.ok()) return said;
  // If the rank that passes on its messages is lost, nothing says what it did.
  const auto lost = [&](int one) { return one >= 0 && (departed(one) || gone(await, one)); };
  const int culprit = lost(rank) ? rank : through;
  if (!lost(culprit)) return {};
  return break_group(
      Code::kPeerLost, culprit,
      fmt::format("{} {}: gave up waiting for {} of rank {}; {} {}; {}", await.operation,
                  await.number, await.phase, rank, name_of(culprit),
                  state_of(culprit, Code::kPeerLost), view_is_over(Code::kPeerLost, culprit)));
}

}  // namespace ferry::internal
