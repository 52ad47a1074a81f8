// CollectivesLayout: every byte offset in the segment of a Collectives. Memory grows with the
// number of ranks, except that each pair of ranks has 32 bytes of counts and a mailbox: 192 bytes
// of flags, and a ring of 4 KiB or more.
//
//   flags and records [ranks]    CallFlag of calls with even and with odd numbers, CallRecord of
//                                each of the last calls, then for even and odd numbers the counts
//                                that the rank sends [ranks], and those that it expects [ranks]
//   windows          [ranks]     two halves
//   mailboxes        [ranks]     of one sender, for each receiver (mailbox.h)
//   allocations      [ranks]     what a rank hands out to its caller (allocations.h)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "collectives/record.h"
#include "memory/accumulator.h"

namespace ferry::internal {

class CollectivesLayout {
 public:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kLine = 64;
  // Calls need two. Callers print more of them after an error (Calls::latest).
  static constexpr std::uint64_t kRecords = 12;

  CollectivesLayout(int num_ranks, std::size_t window_bytes, std::size_t mailbox_bytes,
                    std::size_t shared_bytes = 0) {
    const auto ranks = static_cast<std::size_t>(num_ranks);
    Accumulator control;
    control.take(2 * sizeof(CallFlag), alignof(CallFlag));
    record_ = control.take(kRecords * sizeof(CallRecord), kLine);
    counts_ = control.take(checked_mul(4 * sizeof(std::int64_t), ranks), kLine);
    counts_bytes_ = ranks * sizeof(std::int64_t);
    control_bytes_ = control.align(alignof(CallFlag));
    half_bytes_ = window_bytes / 2 / kLine * kLine;
    const std::size_t others = std::max<std::size_t>(1, ranks - 1);
    slot_bytes_ = half_bytes_ / others / kLine * kLine;
    few_for_one_ = sizeof(CallFlag::data) / others;
    mailbox_bytes_ = mailbox_bytes;
    Accumulator segment;
    segment.take(checked_mul(control_bytes_, ranks), kPage);
    windows_ = segment.take(checked_mul(window_stride(), ranks), kPage);
    mailboxes_ = segment.take(checked_mul(mailbox_stride(), ranks), kPage);
    shared_bytes_ = shared_bytes / kPage * kPage;
    shared_ = segment.take(checked_mul(shared_bytes_, ranks), kPage);
    segment_bytes_ = segment.align(kPage);
  }

  std::size_t segment_bytes() const noexcept { return segment_bytes_; }
  std::size_t control(int rank) const noexcept { return rank * control_bytes_; }
  std::size_t control_bytes() const noexcept { return control_bytes_; }
  std::size_t flag(int rank, std::uint64_t number) const noexcept {
    return control(rank) + number % 2 * sizeof(CallFlag);
  }
  std::size_t record(int rank, std::uint64_t number) const noexcept {
    return control(rank) + record_ + number % kRecords * sizeof(CallRecord);
  }
  std::size_t sent_counts(int rank, std::uint64_t number) const noexcept {
    return control(rank) + counts_ + number % 2 * 2 * counts_bytes_;
  }
  std::size_t expected_counts(int rank, std::uint64_t number) const noexcept {
    return sent_counts(rank, number) + counts_bytes_;
  }
  std::size_t half_bytes() const noexcept { return half_bytes_; }
  // A half has a slot for each other rank.
  std::size_t slot_bytes() const noexcept { return slot_bytes_; }
  // The bytes beside a flag that there are for each other rank.
  std::size_t few_for_one() const noexcept { return few_for_one_; }
  std::size_t window(int rank) const noexcept { return windows_ + rank * window_stride(); }
  std::size_t window_bytes() const noexcept { return 2 * half_bytes_; }
  std::size_t half(int rank, std::uint64_t parity) const noexcept {
    return window(rank) + parity % 2 * half_bytes_;
  }
  std::size_t mailboxes(int rank) const noexcept { return mailboxes_ + rank * mailbox_stride(); }
  std::size_t mailboxes_bytes() const noexcept { return mailbox_bytes_; }
  std::size_t shared(int rank) const noexcept { return shared_ + rank * shared_bytes_; }
  std::size_t shared_bytes() const noexcept { return shared_bytes_; }

 private:
  // Whole pages, so that the memory of each rank lies on its own NUMA domain.
  std::size_t window_stride() const { return (2 * half_bytes_ + kPage - 1) / kPage * kPage; }
  std::size_t mailbox_stride() const { return (mailbox_bytes_ + kPage - 1) / kPage * kPage; }

  std::size_t record_, counts_, counts_bytes_, control_bytes_, mailbox_bytes_;
  std::size_t half_bytes_, slot_bytes_, few_for_one_;
  std::size_t windows_, mailboxes_, shared_bytes_, shared_, segment_bytes_;
};

}  // namespace ferry::internal
