// ControlFlags and Record: the flags of a rank, and the record about one operation that the rank
// publishes behind them. docs/protocol.md says when each is written and read. WindowView finds them
// in the segment. protocol.cc writes the flags and records of this rank, control_mirror.cc those of
// ranks of other nodes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ferry/status.h"
#include "ferry/types.h"

namespace ferry::internal {

// The flags of one rank. They have one writer: the rank itself, or for a rank of another node the
// rank of this node that serves it. Right after a change of the active ranks, two ranks may serve
// it. `progress`, `read_through`, `set_since` and `second_way` only grow while one process has the
// rank.
struct alignas(128) ControlFlags {
  std::atomic<std::uint64_t> progress;      // 4 * number + Stage
  std::atomic<std::uint64_t> read_through;  // its rank has finished operations up to this one
  std::atomic<std::uint64_t> set_since;     // the operation since which its active set is the same
  // Only for a rank of another node: its progress, sent behind the rows that took the second way.
  std::atomic<std::uint64_t> second_way;
  // [view % 2] Written before its rank comes to a view, read when the view begins (next_view.cc).
  struct Prepared {
    std::atomic<std::uint64_t> view;    // that view
    std::atomic<std::uint64_t> number;  // the last operation before that view
  };
  Prepared prepared[2];
};
static_assert(sizeof(ControlFlags) == 128 && std::atomic<std::uint64_t>::is_always_lock_free);

enum class Stage : std::uint64_t { kAnnounced = 0, kSummed = 1, kGrown = 2, kDelivered = 3 };

constexpr std::uint64_t progress_of(std::uint64_t number, Stage stage) {
  return 4 * number + static_cast<std::uint64_t>(stage);
}

// The value of the flags of a rank that destroyed its exchange. Every wait for the rank passes, and
// then finds that its record has another operation's number.
inline constexpr std::uint64_t kDeparted = ~std::uint64_t{0};

enum class OperationKind : std::uint8_t { kNone, kDispatch, kCombine };

const char* kind_name(OperationKind kind) noexcept;

// A yes or no that must be equal on all ranks. kAny: the rank has no rows to which it could apply.
enum class Agreed : std::uint8_t { kNo, kYes, kAny };

// The part of a record that must be equal on all ranks of an operation.
struct Terms {
  OperationKind kind = OperationKind::kNone;
  bool cached = false;
  Agreed weights = Agreed::kNo;  // dispatch: topk_weights travel; combine: row_weights return
  DataType row_type = DataType::kBf16;
  std::uint32_t hidden = 0;
  std::uint64_t route = 0;       // number of the dispatch whose handle is used; 0: no handle
  std::uint32_t num_active = 0;  // ranks that take part
  std::uint32_t active = 0;      // digest of their list (ActiveSet)
};

// The receive buffer that a rank offers for the rows of a dispatch.
struct Posted {
  std::int64_t section_rows;  // rows backed with memory in each section
  std::uint64_t free_after;   // last operation that published rows of the buffer
  std::int32_t buffer;
  Code growth;  // outcome of growing; read after Stage::kGrown only
};

// The outputs that a rank publishes in a combine. Offsets are from the start of its window.
struct Published {
  std::int64_t rows_offset;
  std::int64_t pitch_bytes;
  std::int64_t weights_offset;
};

// The record of one rank and operation. It is plain memory: written before the release of the flag
// that publishes it, read after the acquire of that flag. All fields before `digest` lie in one
// cache line.
struct alignas(64) Record {
  std::uint64_t number = 0;
  Terms terms;
  Code status = Code::kOk;    // anything else: the rank refused its call; `reason` says why
  bool encoded = false;       // combine: the outputs are encoded in combine_wire
  bool skips = false;         // the rank makes its call in another exchange; `reason` says why
  std::int32_t num_rows = 0;  // dispatch: tokens of this rank; combine: rows of its outputs
  union {
    Posted posted = {};
    Published published;
  };
  std::uint64_t digest = 0;  // given by the caller (Digests)
  // The reason why this rank refused or skips. Otherwise the list of the active ranks, cut to this
  // length; empty if all ranks are active.
  char reason[184] = {};
};
static_assert(offsetof(Record, digest) == 64);

}  // namespace ferry::internal
