// The arguments of kernels, and the reports of kernels to the host. A pointer without a comment
// points to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "cuda/shape.h"
#include "cuda/steps.h"

namespace ferry::internal {

// An operation whose kernels have begun and not all ended.
struct CudaOperation {
  std::uint64_t number;
  std::int32_t skip;  // 1: no rows move, as some rank's call was refused or rows do not fit
};

// The state of the exchange of this rank, in device memory, so that a replayed graph continues with
// the next operation numbers. Kernels of the exchange write it, one after the other.
struct CudaState {
  std::uint64_t dispatches, combines;
  CudaOperation dispatch[kMaxDepth], combine;
  std::int32_t broken;           // 1: kernels wait and send no more
  std::uint32_t tickets[3];      // finished blocks of the kernels count, send and reduce
  unsigned long long bad_entry;  // the lowest entry with a refused id; kNoEntry: none
};
inline constexpr unsigned long long kNoEntry = ~0ULL;

enum class CudaPhase : std::int32_t { kCounts, kRows, kOutputs, kReuse };
inline constexpr int kNumCudaPhases = 4;
const char* phase_name(CudaPhase phase) noexcept;  // report.cc

// An error that kernels met, in host memory that the device writes.
struct CudaReport {
  std::uint64_t sequence = 0;  // number of the report; raised last
  std::uint64_t number = 0;    // number of the operation
  std::int32_t code = 0, culprit = -1;
  std::int32_t combine = 0;              // 1: the operation is a combine
  CudaPhase phase = CudaPhase::kCounts;  // kTimeout, kPeerLost: the phase of the wait
  std::int64_t entry = 0, value = 0;     // kInvalidArgument: the refused id
  std::uint64_t expected = 0, seen = 0;  // values of the flag; with kMismatch, the widths
  std::int64_t rows = 0, most = 0;       // kCapacity
};

// The counts of a dispatch for the host, in host memory that the device writes.
struct CudaHostCounts {
  std::uint64_t ticket;  // the host's number of the dispatch that counted; raised last
  std::int64_t num_rows;
  std::int32_t code;  // Code of the outcome
  // followed by [L], the rows of each expert
};

// The counts of a handle, as arrays of int64.
struct CudaCounts {
  std::int64_t *tokens_per_expert, *aligned_tokens_per_expert, *expert_offsets, *running_counts,
      *running_rows_per_rank, *num_rows;
};

// The routing of a dispatch.
struct CudaRouteView {
  CudaRef* refs;          // [T, K]: kRankMajor, by ascending rank, then those without a row
  std::int32_t* experts;  // [T, K]: -1, not sent
  CudaCounts counts;
  CudaHostCounts* host;
  std::int64_t* host_experts;  // [L], after *host
  std::int64_t num_tokens;
};

struct CudaCommon {
  CudaShape shape;
  CudaWindow at;
  std::byte* const* windows;  // [ranks] in this address space
  std::byte* mine;            // windows[rank] of this rank
  CudaState* state;
  CudaReport* report;
  const volatile std::int32_t* host_abort;  // host memory: Code, and the rank that caused it
  std::int64_t deadline_ns;
  bool all_near;  // all ranks are threads of this process, on this device
  // Scratch memory of a dispatch.
  std::int32_t *keys, *ranks_in_chunk;  // [max tokens, K]
  std::int32_t* chunk_counts;           // [chunks, count_row_size]
  std::int32_t *all, *next;             // [count_row_size]
};

struct CudaDispatchView {
  CudaCommon common;
  CudaRouteView route;
  const std::byte* tokens;
  std::int64_t pitch_bytes;
  const void* ids;
  bool wide_ids;  // int64
  bool cached;
  const float* weights;
  int buffer;            // the buffer that receives on this rank
  std::int32_t refused;  // Code of a call that the host refused, else kOk
  std::uint64_t ticket;  // CudaHostCounts; 0: the host does not wait
};

struct CudaCombineView {
  CudaCommon common;
  CudaRouteView route;
  const float* weights;
  const std::byte* bias[2];
  std::byte* out;
  DataType row_type, out_type;
  std::int64_t hidden;      // H'
  std::int64_t offset;      // offset of this rank's outputs in its window
  const std::byte* staged;  // [staged_rows, H'] to copy to `offset`; null: the rows are there
  std::int64_t staged_rows;
  std::int32_t refused;
};

}  // namespace ferry::internal
