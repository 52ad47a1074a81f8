// What the ranks of an exchange say to each other about one operation: the flags of a rank and the
// record behind them. docs/protocol.md says when each is written and read. WindowView finds them in
// the segment; protocol.cc writes them, those of ranks of other nodes are written by
// control_mirror.cc.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ferry/status.h"
#include "ferry/types.h"

namespace ferry::internal {

// The flags of one rank. The owner is the only writer; they only grow.
struct alignas(128) ControlFlags {
  std::atomic<std::uint64_t> progress;      // 4 * number + Stage
  std::atomic<std::uint64_t> read_through;  // operations up to this one are finished here
  std::atomic<std::uint64_t> set_since;     // the first operation with the ranks of its last one
  // For a rank of another node: as progress, but sent behind the rows that took the second way.
  std::atomic<std::uint64_t> second_way;
};
static_assert(sizeof(ControlFlags) == 128 && std::atomic<std::uint64_t>::is_always_lock_free);

enum class Stage : std::uint64_t { kAnnounced = 0, kSummed = 1, kGrown = 2, kDelivered = 3 };

constexpr std::uint64_t progress_of(std::uint64_t number, Stage stage) {
  return 4 * number + static_cast<std::uint64_t>(stage);
}

// A rank that destroyed its exchange: every wait passes, and its record is not that of the
// operation.
inline constexpr std::uint64_t kDeparted = ~std::uint64_t{0};

enum class OperationKind : std::uint8_t { kNone, kDispatch, kCombine };

const char* kind_name(OperationKind kind) noexcept;

// A flag that must agree on all ranks, unless a rank has no rows to which it could apply.
enum class Agreed : std::uint8_t { kNo, kYes, kAny };

// What all ranks must agree on in one operation.
struct Terms {
  OperationKind kind = OperationKind::kNone;
  bool cached = false;
  Agreed weights = Agreed::kNo;  // dispatch: topk_weights travel; combine: row_weights return
  DataType row_type = DataType::kBf16;
  std::uint32_t hidden = 0;
  std::uint64_t route = 0;       // number of the dispatch whose handle is used, 0: none
  std::uint32_t num_active = 0;  // ranks that take part
  std::uint32_t active = 0;      // digest of their list (ActiveSet)
};

// Dispatch: the receive buffer that a rank posts.
struct Posted {
  std::int64_t section_rows;  // rows backed with memory in each section
  std::uint64_t free_after;   // last operation that published rows of the buffer
  std::int32_t buffer;
  Code growth;  // outcome of growing; read after Stage::kGrown only
};

// Combine: the outputs that a rank publishes; offsets are from the start of its window.
struct Published {
  std::int64_t rows_offset;
  std::int64_t pitch_bytes;
  std::int64_t weights_offset;
};

// Published by a raised flag. Plain memory: written before the flag's release, read after its
// acquire. One cache line, without the caller's digest and the text.
struct alignas(64) Record {
  std::uint64_t number = 0;
  Terms terms;
  Code status = Code::kOk;    // anything else: the rank refused its call; `reason` says why
  bool encoded = false;       // combine: the outputs are in the wire format of combine
  bool skips = false;         // the rank makes its call in another exchange; `reason` says why
  std::int32_t num_rows = 0;  // dispatch: tokens; combine: of the outputs
  union {
    Posted posted = {};
    Published published;
  };
  std::uint64_t digest = 0;  // that of the caller (Digests)
  // Why this rank refused or skips; else the active ranks, unless they are all, as far as there is
  // room.
  char reason[184] = {};
};
static_assert(offsetof(Record, digest) == 64);

}  // namespace ferry::internal
