// SharedFlags: the memory that the ranks of a node share in the segment of their group: barrier
// counters, slots of all_gather, abort words, the doorbells of ranks that sleep, and the counters.
// A slot or abort word is written by its rank, or for a rank of another node by the rank of this
// node that reads its messages; other ranks write seats, the words of the agreement between nodes,
// and the places of newcomers. Any rank may ring a doorbell.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/rendezvous.h"
#include "ferry/status.h"
#include "group/counters.h"
#include "group/metrics.h"
#include "memory/segment.h"

namespace ferry::internal {

// One rank's place. `barrier` and `pieces` belong to group.barrier and group.all_gather.
// `report` says why the rank gave up, and is published by its abort word.
struct alignas(128) GroupSlot {
  static constexpr std::size_t kReportBytes = 512;
  static constexpr std::size_t kMeetingBytes = MeetingPlace::kMostBytes + 1;  // ends with a zero
  static constexpr std::size_t kBytes =
      (4096 - 256 - kReportBytes) / 2 - kMeetingBytes;  // bytes of a piece
  std::atomic<std::uint64_t> barrier;
  std::atomic<int> processor;              // 1 + the processor of its last long wait; 0: unknown
  std::atomic<std::uint64_t> seat;         // Seat in the last view for which it is decided
  std::atomic<std::uint64_t> barriers[2];  // [view % 2] its barriers before that view
  std::atomic<std::uint64_t> objects[2];   // between nodes, the same for its objects with channels
  // AbortWord with the number of the last view in which this rank could not meet the others.
  std::atomic<std::uint64_t> unmet;
  // The last admission of which this rank was the coordinator: its number in the upper bits, and
  // below AbortWord::kNone if the next view began, or why it did not.
  std::atomic<std::uint64_t> admission;
  // Between nodes, in the slot of the first rank of a node: the part of the node in the agreement
  // on the next view (agreement_between_nodes.cc). Its speaker writes them.
  std::atomic<std::uint64_t> promised, accepted, decided;
  std::atomic<std::uint64_t> proposed[2];  // Seat of this rank in an accepted or decided view
  // In the slot of the first rank of a node. In the upper bits, the last view for which the node
  // had too few votes. Below, in the memory of the node itself, a rank that it could not reach: its
  // speaker writes this. In the memory of another node 0: any rank that is told writes this.
  std::atomic<std::uint64_t> outvoted;
  // The next view in the upper bits, and below 1 + a rank of another node to which this rank has no
  // link; 0: it has links to all.
  std::atomic<std::uint64_t> unlinked;
  // The last view in which this rank said where its members meet. `meetings` [view % 2] says it.
  std::atomic<std::uint64_t> meets_in;
  // The last admission for which the place of this rank was made: the number in its name. Read
  // between nodes.
  std::atomic<std::uint64_t> place_of;
  alignas(128) char report[kReportBytes];
  char meetings[2][kMeetingBytes];
  std::byte pieces[2][kBytes];

  // The data that a rank gathers with the barrier of this number. No rank overwrites it before all
  // have read it: the barrier after the next uses the same memory, and a rank that writes there has
  // passed a barrier that all readers reached after reading.
  std::byte* piece(std::uint64_t number) noexcept { return pieces[number % 2]; }
};
static_assert(sizeof(GroupSlot) == 4096);

// Whether a rank is in a view or outside of it: the value of GroupSlot::seat. The rank itself or
// another one decides it, once for each view. Seats only grow.
struct Seat {
  static constexpr std::uint64_t in(std::uint64_t view) noexcept { return 2 * view + 1; }
  static constexpr std::uint64_t outside(std::uint64_t view) noexcept { return 2 * view; }
  static constexpr bool decided(std::uint64_t seat, std::uint64_t view) noexcept {
    return seat >= outside(view);
  }
  // For a member of the view before. Only ranks of a view get a seat of the next one, and
  // newcomers, which all ranks of the view admit together. So a member with a later seat was in the
  // view.
  static constexpr bool was_in(std::uint64_t seat, std::uint64_t view) noexcept {
    return seat > outside(view);
  }
};

// The word of a rank that gives up: a Code and the culprit, or that the rank departed. In shared
// memory the bits above the word have the number of the view, and the highest bit says that the
// rank has left.
struct AbortWord {
  static constexpr int kViewShift = 40;
  static constexpr std::uint64_t kLeft = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kNone = 0;
  static constexpr std::uint64_t kMask = (std::uint64_t{1} << kViewShift) - 1;
  static std::uint64_t make(Code code, int culprit) noexcept {
    return (std::uint64_t{static_cast<std::uint8_t>(code)} << 32) |
           static_cast<std::uint32_t>(culprit + 1);
  }
  // Whether `word` is valid in a group of `size`. A word of another node comes over the network.
  static bool is_one(std::uint64_t word, int size) noexcept {
    return (word >> 32) > 0 && (word >> 32) <= static_cast<std::uint64_t>(Code::kInterrupted) &&
           culprit(word) >= -1 && culprit(word) < size;
  }
  static bool gave_up(std::uint64_t word) noexcept {
    return word != kNone && code(word) != Code::kClosed;
  }
  static Code code(std::uint64_t word) noexcept { return static_cast<Code>(word >> 32); }
  static int culprit(std::uint64_t word) noexcept {
    return static_cast<int>(word & 0xffffffffu) - 1;
  }
};

class SharedFlags {
 public:
  // Collective. The first of the node's ranks backs the memory of all, and every rank that of its
  // counters. Throws Error on all ranks when one is refused memory, or cannot show its metrics.
  // `group`: the same number on all nodes.
  SharedFlags(Rendezvous& rendezvous, const std::vector<int>& node_ranks, std::uint64_t group,
              const Deadline& by);
  // For a newcomer in a group that is in `view`: the flags in the memory of the group. Writes
  // nothing.
  SharedFlags(std::shared_ptr<Segment> segment, int rank, int size, std::uint64_t view);
  // Whether a newcomer of a node with members takes the place of the rank that shows the metrics of
  // the node.
  bool exports() const noexcept;
  // Shows the metrics of the ranks of this node. Throws Error as Metrics does.
  void show_metrics(std::vector<int> node);
  // For newcomers whose node has no members: backs this new memory, as the constructor of the first
  // ranks does. `first`: this rank is the lowest of them. Returns the problem, if there is one.
  std::string back(bool first, std::uint64_t group);
  // The bytes of the memory.
  static std::size_t bytes(int size) noexcept;
  const std::shared_ptr<Segment>& segment() const noexcept { return segment_; }
  // The number that only this group has.
  std::uint64_t group() const noexcept;

  // This rank's.
  RankCounters& counters() noexcept { return counters_; }
  // [ranks] Nanoseconds that a rank of this node has waited for each so far.
  std::vector<std::uint64_t> waited(int rank) const;

  GroupSlot& slot(int rank) const noexcept { return slots_[rank]; }
  // The number of barriers that `rank` has called. Relaxed: the rank is this one, or this one
  // raises its flag (read_barrier).
  std::uint64_t num_barriers(int rank) const noexcept {
    return slots_[rank].barrier.load(std::memory_order_relaxed);
  }

  // The word of this view. A word of another view counts only if it says that the rank has left.
  // Acquire: what the rank did before, and its report. Partner: set_abort().
  std::uint64_t abort(int rank) const noexcept {
    const std::uint64_t word = abort_[rank].load(std::memory_order_acquire);
    if ((word & ~AbortWord::kLeft) >> AbortWord::kViewShift == view_)
      return word & AbortWord::kMask;
    return word & AbortWord::kLeft ? AbortWord::make(Code::kClosed, rank) : AbortWord::kNone;
  }
  // Whether the rank has left the group, in any view. Acquire: partner: set_left().
  bool has_left(int rank) const noexcept {
    return (abort_[rank].load(std::memory_order_acquire) & AbortWord::kLeft) != 0;
  }
  // [ranks], to wait for any word of this view.
  const std::atomic<std::uint64_t>* abort_words() const noexcept { return abort_; }
  std::uint64_t least_abort_word() const noexcept { return view_ << AbortWord::kViewShift; }
  bool gave_up(int rank) const noexcept { return AbortWord::gave_up(abort(rank)); }
  // Sets the abort word of a rank. If the rank has one of this view already, that one stays.
  void set_abort(int rank, std::uint64_t word) noexcept;
  // The rank has left. Its report stays, if it gave up before. Release: partners: abort() and
  // has_left().
  void set_left(int rank) noexcept {
    abort_[rank].fetch_or(AbortWord::kLeft, std::memory_order_release);
  }

  // The AbortWord of a rank that could not meet the others of this view; kNone: it could, or has
  // not tried. The word publishes no other memory.
  std::uint64_t unmet(int rank) const noexcept {
    const std::uint64_t word = slots_[rank].unmet.load(std::memory_order_relaxed);
    return word >> AbortWord::kViewShift == view_ ? word & AbortWord::kMask : AbortWord::kNone;
  }
  void set_unmet(int rank, std::uint64_t word) noexcept {
    slots_[rank].unmet.store(least_abort_word() | word, std::memory_order_relaxed);
  }

  // Where the members of this view meet, as `rank` has said; nothing: it has not. The text of the
  // view after the next takes the same memory; no rank writes it before all members have left this
  // view. Acquire: the text. Partner: set_meeting().
  std::optional<std::string> meeting(int rank) const {
    const GroupSlot& slot = slots_[rank];
    if (slot.meets_in.load(std::memory_order_acquire) != view_) return std::nullopt;
    const char* const text = slot.meetings[view_ % 2];
    return std::string(text, strnlen(text, GroupSlot::kMeetingBytes));
  }
  void set_meeting(int rank, std::string_view text) noexcept {
    char(&place)[GroupSlot::kMeetingBytes] = slots_[rank].meetings[view_ % 2];
    place[text.copy(place, sizeof place - 1)] = 0;
    slots_[rank].meets_in.store(view_, std::memory_order_release);  // partner: meeting()
  }

  // Decides the seat of a rank in a view, unless it is decided. Returns the seat.
  std::uint64_t decide_seat(int rank, std::uint64_t view, std::uint64_t seat) noexcept;
  // The number of the last admission of this coordinator that is decided.
  std::uint64_t last_admission(int coordinator) const noexcept {
    // Relaxed: it publishes no other memory.
    return slots_[coordinator].admission.load(std::memory_order_relaxed) >> AbortWord::kViewShift;
  }
  // On one member of each node, in an admission to view `next`: gives the newcomer `rank` the flags
  // of a rank that has called nothing. Throws Error(kCapacity).
  void make_place(int rank, std::uint64_t next, std::uint64_t admission);
  // Decides the admission of this number, unless it is decided: AbortWord::kNone if the next view
  // begins, else why it does not. Returns what is decided; kPeerLost if a later one is.
  std::uint64_t decide_admission(int coordinator, std::uint64_t number, std::uint64_t why) noexcept;
  // From now on abort words of this view count.
  void begin_view(std::uint64_t view) noexcept { view_ = view; }

  // Whether `peer` cannot raise its flag while `rank`, which calls this, spins: both are on one
  // processor. The kernel does not move threads that yield to each other, but it moves a thread
  // that is woken.
  bool shares_processor(int rank, int peer) noexcept;
  // Sleeps until the bell of `rank` is rung, but only for a short time. Does not sleep if `flag` is
  // already `value` or more.
  void sleep(int rank, const std::atomic<std::uint64_t>& flag, std::uint64_t value) noexcept;
  // Wakes those of `ranks` that sleep.
  void ring(std::span<const int> ranks) noexcept;

 private:
  SharedFlags(std::shared_ptr<Segment> segment, int rank, int size);

  std::shared_ptr<Segment> segment_;
  int rank_, size_;
  std::uint64_t view_ = 1;
  std::byte* rows_;  // rows of counters of all ranks
  RankCounters counters_;
  std::optional<Metrics> metrics_;  // set on the rank of a node that shows them
  GroupSlot* slots_;
  std::atomic<std::uint64_t>* abort_;
  std::atomic<std::uint32_t>* doorbell_;
  std::atomic<std::uint32_t>* sleeping_;
};

}  // namespace ferry::internal
