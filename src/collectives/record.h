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

// The part of a record that must be equal on all ranks of a call. Fields that a kind does not have
// are 0.
struct CallTerms {
  CallKind kind = CallKind::kRefused;
  DataType dtype = DataType::kBytes;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = 0;
  std::int64_t count = 0;    // elements; if all ranks give counts, their sum
  std::uint64_t counts = 0;  // a digest of them, if all ranks give counts
  bool operator==(const CallTerms&) const = default;
};

// Published by a flag. Plain memory: written before the flag's release, read after its acquire.
struct alignas(64) CallRecord {
  std::uint64_t number = 0;
  CallTerms terms;
  Code status = Code::kOk;  // anything else: the rank refused its call, and `reason` says why
  // all_to_all_v: sums of a digest of (source, destination, count), over what this rank sends and
  // over what it expects. Over all ranks both sums are equal where the counts match.
  std::uint64_t sends = 0, expects = 0;
  std::int64_t rounds = 0;  // in which this rank takes part
  // The offset in the segment at which ranks of the node read the data of this rank; 0: in its
  // window.
  std::uint64_t in_place = 0;
  char reason[184] = {};
};
static_assert(sizeof(CallRecord) == 256);

// The flag of one rank, which is its only writer; it only grows.
struct alignas(128) CallFlag {
  std::atomic<std::uint64_t> step;
};

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
