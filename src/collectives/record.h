// The data that a rank of a Collectives publishes about one call: its flag, and the record behind
// it. calls.cc writes and reads them; layout.h says where they lie.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ferry/status.h"
#include "ferry/types.h"

namespace ferry::internal {

enum class CallKind : std::uint8_t {
  kRefused,  // the rank refused without a call (Collectives::refuse)
  kAllToAll,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kReduce,
  kBroadcast,
  kGather,
  kScatter,
  kBarrier,
};
const char* call_name(CallKind kind) noexcept;
// The lists of counts [ranks] that a rank publishes: those of all ranks, which must be equal, or
// what it sends and what it expects.
constexpr int num_count_lists(CallKind kind) noexcept {
  switch (kind) {
    case CallKind::kAllToAll: return 2;
    case CallKind::kAllGather:
    case CallKind::kReduceScatter:
    case CallKind::kGather:
    case CallKind::kScatter: return 1;
    default: return 0;
  }
}

// What a rank says about its call. It must be equal on all ranks, except `counts` of all_to_all_v.
// Fields that a kind does not have are 0.
struct CallTerms {
  CallKind kind = CallKind::kRefused;
  DataType dtype = DataType::kBytes;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = 0;
  std::int64_t count = 0;  // elements; if all ranks give counts, their sum
  // A digest of the counts. all_to_all_v: that of what this rank sends, minus that of what it
  // expects. Over all ranks their sum is 0 where the counts match.
  std::uint64_t counts = 0;
  bool operator==(const CallTerms& other) const noexcept {
    return kind == other.kind && dtype == other.dtype && op == other.op && root == other.root &&
           count == other.count && (kind == CallKind::kAllToAll || counts == other.counts);
  }
};

// Bits of CallFlag::traits: what else the other ranks need to know in every call.
struct CallTrait {
  static constexpr std::uint8_t kRefuses = 1;
  static constexpr std::uint8_t kSeveralRounds = 2;
  static constexpr std::uint8_t kShows = 4;  // its data are read in place
};

// Published by a flag. Plain memory: written before the flag's release, read after its acquire.
// Other ranks read it only where the flag is not enough: after an error, and of data in place.
struct alignas(64) CallRecord {
  std::uint64_t number = 0;
  CallTerms terms;
  Code status = Code::kOk;  // anything else: the rank refused its call, and `reason` says why
  std::uint8_t several_rounds = 0;  // 1: the rank takes part in more than one
  // The offset in the segment at which ranks of the node read the data of this rank; 0: in its
  // window.
  std::uint64_t in_place = 0;
  char reason[208] = {};
};
static_assert(sizeof(CallRecord) == 256);

// The flag of one rank for calls with even numbers, or for those with odd ones; the terms of the
// latest of these calls, and its data if they are few. A call reads one line of the cache of each
// other rank if it has at most 40 bytes of data there. The only writer is the rank or, in the
// segments of other nodes, the rank that serves it. `step` only grows, and publishes the rest as it
// does the record.
struct alignas(128) CallFlag {
  std::atomic<std::uint64_t> step;
  std::uint64_t size;  // CallTerms::counts, or `count` where that is 0
  std::int32_t root;
  CallKind kind;
  DataType dtype;
  ReduceOp op;
  std::uint8_t traits;
  std::byte data[96];
  std::atomic<std::uint64_t> touched;  // written to have the second line, too, in the cache

  // Before the next call that this flag is for. The step says how far the rank has come, which the
  // error of a rank that waits for this flag names.
  void touch(std::uint64_t now) noexcept {
    step.store(now, std::memory_order_release);  // partner: Calls::await()
    touched.store(now, std::memory_order_relaxed);
  }

  void say(const CallRecord& record) noexcept {
    const CallTerms& terms = record.terms;
    size = terms.counts != 0 ? terms.counts : static_cast<std::uint64_t>(terms.count);
    root = terms.root;
    kind = terms.kind;
    dtype = terms.dtype;
    op = terms.op;
    traits =
        static_cast<std::uint8_t>((record.status == Code::kOk ? 0 : CallTrait::kRefuses) |
                                  (record.several_rounds == 0 ? 0 : CallTrait::kSeveralRounds) |
                                  (record.in_place == 0 ? 0 : CallTrait::kShows));
  }
  // As CallTerms: where the terms of two records differ, this is false.
  bool says_as(const CallFlag& other) const noexcept {
    return kind == other.kind && dtype == other.dtype && op == other.op && root == other.root &&
           (kind == CallKind::kAllToAll || size == other.size);
  }
};
static_assert(sizeof(CallFlag) == 128);

// Values of a flag: the steps of call `number`, in the order in which a rank takes them. Data go
// through windows in rounds.
struct Step {
  static constexpr std::uint64_t kPerCall = std::uint64_t{1} << 30;
  static constexpr std::int64_t kMostRounds = kPerCall / 4;  // the most rounds of a call
  static constexpr std::uint64_t kMostCalls = ~std::uint64_t{0} / kPerCall - 1;
  // The record is written, and the rank's data of this round.
  static constexpr std::uint64_t written(std::uint64_t number, std::uint64_t round) {
    return number * kPerCall + (round == 0 ? 1 : 2 * round);
  }
  // The rank has read what others wrote in this round.
  static constexpr std::uint64_t taken(std::uint64_t number, std::uint64_t round) {
    return number * kPerCall + 2 * round + 3;
  }
  static constexpr std::uint64_t end(std::uint64_t number) { return (number + 1) * kPerCall - 1; }
  // The rank destroyed its object: every wait for it passes, and then finds no record of the call.
  static constexpr std::uint64_t kDeparted = ~std::uint64_t{0};
};

}  // namespace ferry::internal
