// Calls: the protocol of one call of a Collectives. It numbers calls, publishes the record and the
// flag of this rank, waits for those of the others (calls.cc), and derives the outcome from all
// (verdict.cc).
//
// Every rank waits for the flag of every rank in every call. So a rank that begins call n knows
// that all have finished call n - 2, whose terms, small data and half of the window it replaces.
// Call n begins with half n modulo 2. A call in which ranks read memory of the caller (show) ends
// when all have read it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "collectives/allocations.h"
#include "collectives/layout.h"
#include "collectives/mirror.h"
#include "collectives/record.h"
#include "group/state.h"
#include "group/wait.h"
#include "kernels/kernels.h"
#include "memory/segment.h"

namespace ferry::internal {

class Calls {
 public:
  // `mirror`: null on one node. `cache_bytes`: of the last-level caches of the node.
  Calls(GroupState& group, std::shared_ptr<Segment> segment, const CollectivesLayout& layout,
        std::shared_ptr<Mirror> mirror, std::uint64_t cache_bytes);
  Allocations& allocations() const noexcept { return *allocations_; }
  // Call at the end of the Collectives. From then on, waits of the others for this rank pass, and
  // find that its record is missing.
  void close() noexcept;

  int rank() const noexcept { return group_.rank(); }
  int size() const noexcept { return group_.size(); }
  // The ranks of the view, ascending. No data move from or to others.
  const std::vector<int>& members() const noexcept { return members_; }
  bool has(int rank) const noexcept { return awaited_.empty() || awaited_[rank]; }
  const CollectivesLayout& layout() const noexcept { return layout_; }
  std::byte* at(std::size_t offset) const noexcept { return segment_->data() + offset; }
  // The half of a rank's window that a round of this call uses.
  std::byte* half(int rank, std::int64_t round) const noexcept {
    return at(layout_.half(rank, number_ + static_cast<std::uint64_t>(round)));
  }
  // Where a rank puts its `bytes` of a round: place() for data that all others read, place_for()
  // for data of one reader, by the reader's index from 0. On one node few bytes lie beside the
  // flag: only the last chunk of the data can be so small.
  std::byte* place(int rank, std::int64_t round, std::size_t bytes) const noexcept {
    return bytes <= sizeof(CallFlag::data) && !mirror_ ? flag(rank, number_).data
                                                       : half(rank, round);
  }
  std::byte* place_for(std::size_t reader, int rank, std::int64_t round,
                       std::size_t bytes) const noexcept {
    const std::size_t few = layout_.few_for_one();
    return bytes <= few && !mirror_ ? flag(rank, number_).data + reader * few
                                    : half(rank, round) + reader * layout_.slot_bytes();
  }

  // Shows the other ranks of the node where the data of this rank are, if the caller has the memory
  // from `allocations` and the data do not fit the caches. put() then copies nothing for these
  // ranks. Call it before run(). `readers`: the number of ranks that read each byte.
  //
  // Data that fit the caches are copied into the window instead. Then the caller may overwrite them
  // while others still read the copy, and their lines are still in its own cache. The next write to
  // data that are read in place waits until the readers are done, and then for each line that their
  // caches have (docs/lab/torch_backend.md).
  void show(const void* data, std::size_t bytes, int readers) noexcept;
  // The data of a rank in memory of its caller; null: they are in its window.
  const std::byte* shown(int rank) const noexcept {
    const bool shows = (flag(rank, number_).traits & CallTrait::kShows) != 0;
    return shows && group_.here(rank) ? at(record(rank).in_place) : nullptr;
  }
  // [ranks] The counts that a rank has published, or the first list of two.
  std::span<const std::int64_t> sent_counts(int rank) const noexcept {
    return {counts(layout_.sent_counts(rank, number_)), static_cast<std::size_t>(size())};
  }
  // Writes data that `reader` will read to a place of this rank.
  static constexpr int kAll = Mirror::kAll;
  void put(std::byte* place, const std::byte* from, std::size_t bytes, int reader) const;
  // The stores for outputs of `bytes` on this rank: past the caches if the outputs do not fit them.
  Stores stores(std::size_t bytes) const noexcept {
    return bytes > cached_bytes_ ? Stores::kStreaming : Stores::kCached;
  }

  // Begins a call, with the next number, and fills its record except for the counts.
  Status begin(const CallTerms& terms, std::chrono::nanoseconds limit);
  CallRecord& record() noexcept { return record(rank()); }
  // Scratch for the rows of a reduction: one for each member.
  std::span<const void*> rows() noexcept { return rows_; }
  // Writes the counts beside the record. They are read for data in place, and for the error when
  // ranks differ.
  void publish_counts(std::span<const std::int64_t> sent, std::span<const std::int64_t> expected);
  // Ends a call that this rank refuses: all ranks return an error. Returns `why`, or the error if
  // the group breaks.
  Status refuse(const Status& why);
  // Whether other ranks may have seen the record of this call.
  bool published() const noexcept {
    // Relaxed: this rank is the only writer.
    return flag(rank(), number_).step.load(std::memory_order_relaxed) >= Step::written(number_, 0);
  }
  // refuse() for a call that has more rounds than the flags can count.
  Status refuse_rounds(std::int64_t rounds);

  // The latest ten calls of `rank`, as far as this rank has seen them, ascending: "4: broadcast of
  // fp32, 3 elements, root 0".
  std::vector<std::string> latest(int rank) const;

  // Runs the call in rounds, at least one: write(k) writes to this rank's half of the window,
  // take(k) reads from the windows of the others, and finish(k) reads data that the others wrote in
  // take(k). Windows have two halves, so round k + 1 is written before round k is taken. Ranks may
  // have different numbers of rounds, unless there is a `finish`.
  template <typename Write, typename Take>
  Status run(std::int64_t rounds, const Write& write, const Take& take) {
    return run(rounds, write, take, nullptr);
  }
  template <typename Write, typename Take, typename Finish>
  Status run(std::int64_t rounds, const Write& write, const Take& take, const Finish& finish);

 private:
  CallRecord& record(int rank) const noexcept {
    return *reinterpret_cast<CallRecord*>(at(layout_.record(rank, number_)));
  }
  std::int64_t* counts(std::size_t offset) const noexcept {
    return reinterpret_cast<std::int64_t*>(at(offset));
  }
  const CallRecord& record(int rank, std::uint64_t number) const noexcept {
    return *reinterpret_cast<const CallRecord*>(at(layout_.record(rank, number)));
  }
  CallFlag& flag(int rank, std::uint64_t number) const noexcept {
    return *reinterpret_cast<CallFlag*>(at(layout_.flag(rank, number)));
  }
  void raise_step(std::uint64_t step);
  Await awaiting(const char* phase, std::uint64_t step) noexcept;
  Status await(const char* phase, std::uint64_t step) { return group_.wait(awaiting(phase, step)); }
  Status await_free_half();
  // Publishes the record, waits for those of all ranks, and derives the outcome.
  Status meet();
  // The end of a call in which a rank has several rounds or shows its data: raises the step for
  // which other ranks wait. Waits for the messages that this rank writes to the segment of its
  // node, and until all ranks have read the data that are shown.
  Status end();
  // Ends every call: waits until the messages that others wait for have been sent.
  Status leave(Status status);

  Status examine();
  Status destroyed(int peer);
  Status name_refusal() const;
  Status name_difference() const;
  Status name_pair() const;
  std::string name_counts(int rank) const;

  GroupState& group_;
  std::shared_ptr<Segment> segment_;
  const CollectivesLayout layout_;
  std::shared_ptr<Mirror> mirror_;
  const std::shared_ptr<Allocations> allocations_;
  const std::vector<int> members_;
  const std::vector<bool> awaited_;  // [ranks] the members; empty: all ranks are
  std::vector<const void*> rows_;    // [members]
  bool crowded_;
  std::size_t cached_bytes_;       // this rank's share of a quarter of the caches
  CallTime time_;                  // of the current call
  std::uint64_t view_;             // the view of the group in which all was made
  std::uint64_t number_ = 0;       // of the last call
  std::uint8_t traits_ = 0;        // of the last call, of all ranks together
  std::uint64_t both_halves_ = 0;  // the last call in which this rank wrote to both halves
};

template <typename Write, typename Take, typename Finish>
Status Calls::run(std::int64_t rounds, const Write& write, const Take& take, const Finish& finish) {
  constexpr bool kFinishes = !std::is_same_v<Finish, std::nullptr_t>;
  if (rounds > Step::kMostRounds) return refuse_rounds(rounds);
  if (Status status = await_free_half(); !status.ok()) return status;
  record().several_rounds = rounds > 1 ? 1 : 0;
  write(0);
  if (Status status = meet(); !status.ok()) return leave(std::move(status));
  if (rounds > 1) both_halves_ = number_;
  for (std::int64_t round = 0; round < rounds; ++round) {
    if (round + 1 < rounds) {
      // The half of the next round was last read in the round before this one.
      Status status = round > 0 ? await("rows", Step::taken(number_, round - 1)) : Status{};
      if (!status.ok()) return status;
      write(round + 1);
      raise_step(Step::written(number_, round + 1));
    }
    Status status = round > 0 ? await("rows", Step::written(number_, round)) : Status{};
    if (!status.ok()) return status;
    take(round);
    if (kFinishes || round + 1 < rounds) raise_step(Step::taken(number_, round));
    if constexpr (kFinishes) {
      if (Status reduced = await("sums", Step::taken(number_, round)); !reduced.ok())
        return reduced;
      finish(round);
    }
  }
  return traits_ == 0 ? leave({}) : end();
}

}  // namespace ferry::internal
