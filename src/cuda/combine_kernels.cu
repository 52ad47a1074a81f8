// A combine on the device, in four steps. Stage copies the rows of the experts into the window,
// unless they are there. Publish writes their offset to all ranks. A wait for all ranks follows.
// Reduce reads the rows of each token of this rank from the windows, sums them in float32, and
// writes each result once (docs/numerics.md).
#include "cuda/flags.cuh"
#include "cuda/kernels.h"
#include "cuda/load.cuh"
#include "cuda/rows.cuh"

namespace ferry::internal {

namespace {

constexpr std::int32_t kOk = static_cast<std::int32_t>(Code::kOk);

// With one set of outputs (depth 1): waits until all ranks have read the outputs that are about to
// be overwritten.
__global__ void __launch_bounds__(1024) await_reuse_kernel(CudaCommon common) {
  const CudaState& state = *common.state;
  const std::uint64_t number = state.combines + 1;
  if (!state.broken)
    await_all(common, {common.at.done_flags, number - 1, CudaPhase::kReuse, number, 1});
}

// False for gaps: rows after the last one and, in kPadded, after the last one of an expert.
__device__ bool holds_row(const CudaCombineView& v, std::int64_t row) {
  const CudaCounts& counts = v.route.counts;
  if (row >= *counts.num_rows) return false;
  const std::int64_t capacity = v.common.shape.expert_capacity;
  if (v.common.shape.layout != Layout::kPadded) return true;
  return row % capacity < counts.tokens_per_expert[row / capacity];
}

template <typename Vector>
__global__ void __launch_bounds__(256)
    stage_kernel(CudaCombineView v, std::int64_t row_bytes, std::int64_t num_rows) {
  if (v.common.state->broken) return;
  for (std::int64_t row = blockIdx.x; row < num_rows; row += gridDim.x) {
    if (!holds_row(v, row)) continue;
    std::byte* to[1] = {v.common.mine + v.offset + row * row_bytes};
    spread_row<Vector>(v.staged + row * row_bytes, row_bytes, to, 1);
  }
}

// The output records of all ranks in the window of `peer`.
__device__ CudaOutputRecord* records_in(const CudaCommon& common, int peer, std::uint64_t number) {
  return in_window<CudaOutputRecord>(common.windows[peer], common.at.output_records[number & 1]);
}

// Compares the records of all ranks. All ranks read equal records, so all decide equally whether to
// skip the combine.
__device__ void check_outputs(const CudaCombineView& v, std::uint64_t number) {
  const CudaCommon& common = v.common;
  const CudaOutputRecord* records = records_in(common, common.shape.rank, number);
  CudaOperation& operation = common.state->combine;
  operation.skip = 0;
  for (int pass = 0; pass < 2 && !operation.skip; ++pass) {
    for (int peer = 0; peer < common.shape.num_ranks && !operation.skip; ++peer) {
      const bool differs =
          records[peer].hidden != records[0].hidden || records[peer].dtype != records[0].dtype;
      if (pass == 0 ? records[peer].code == kOk : !differs) continue;
      operation.skip = 1;
      const Code code = pass == 0 ? Code::kPeerRejected : Code::kMismatch;
      if (v.refused != kOk) continue;  // the host has the reason of its own refusal
      send_report(common, {.number = number,
                           .code = static_cast<std::int32_t>(code),
                           .culprit = peer,
                           .combine = 1,
                           .expected = static_cast<std::uint64_t>(records[0].hidden),
                           .seen = static_cast<std::uint64_t>(records[peer].hidden)});
    }
  }
}

__device__ void await_outputs(const CudaCombineView& v, std::uint64_t number) {
  if (!await_all(v.common, {v.common.at.outputs_flags, number, CudaPhase::kOutputs, number, 1}))
    return;
  if (threadIdx.x == 0) check_outputs(v, number);
}

__global__ void __launch_bounds__(1024) publish_kernel(CudaCombineView v, bool and_wait) {
  const CudaCommon& common = v.common;
  CudaState& state = *common.state;
  if (state.broken) return;
  const std::uint64_t number = state.combines + 1;
  const CudaOutputRecord record{v.offset, v.hidden, v.refused,
                                static_cast<std::int32_t>(v.row_type)};
  for (int peer = threadIdx.x; peer < common.shape.num_ranks; peer += blockDim.x)
    records_in(common, peer, number)[common.shape.rank] = record;
  raise_everywhere(common, common.at.outputs_flags, number);
  if (threadIdx.x == 0) state.combines = number, state.combine = {number, 0};
  if (and_wait) await_outputs(v, number);
}

__global__ void __launch_bounds__(1024) await_outputs_kernel(CudaCombineView v) {
  if (!v.common.state->broken) await_outputs(v, v.common.state->combine.number);
}

// The rows of one token, in the order in which they are added.
struct Summands {
  const std::byte* rows[kMaxTopK];
  float weights[kMaxTopK];
  int count;
};

__device__ void find_summands(const CudaCombineView& v, std::int64_t token, std::int64_t row_bytes,
                              const CudaOutputRecord* records, Summands& summands) {
  const int top_k = v.common.shape.top_k, k = threadIdx.x;
  CudaRef ref;
  if (k < top_k) ref = v.route.refs[token * top_k + k];
  const unsigned sent = __ballot_sync(~0U, ref.rank >= 0);
  if (k == 0) summands.count = __popc(sent);
  if (ref.rank < 0) return;
  const int at = __popc(sent & ((1U << k) - 1));
  summands.rows[at] = v.common.windows[ref.rank] + records[ref.rank].offset + ref.row * row_bytes;
  summands.weights[at] = v.weights ? v.weights[token * top_k + k] : 1.0F;
}

__device__ float element_of(const std::byte* row, DataType type, std::int64_t at) {
  if (type == DataType::kBf16) return element<DataType::kBf16>(row, at);
  if (type == DataType::kFp16) return element<DataType::kFp16>(row, at);
  return element<DataType::kFp32>(row, at);
}

// Stores `size` results of the token, from element `at` on.
template <int size>
__device__ void store_sums(const CudaCombineView& v, std::int64_t at, const float* sums) {
  if (v.out_type == DataType::kFp32) {
    for (int i = 0; i < size; ++i) reinterpret_cast<float*>(v.out)[at + i] = sums[i];
    return;
  }
  std::uint16_t halves[size];
#pragma unroll
  for (int i = 0; i < size; ++i)
    halves[i] = v.out_type == DataType::kBf16 ? float_to_bf16(sums[i]) : float_to_fp16(sums[i]);
  std::uint16_t* out = reinterpret_cast<std::uint16_t*>(v.out) + at;
  if constexpr (size == 8) {
    if (reinterpret_cast<std::uint64_t>(out) % 16 == 0) {
      uint4 together;
      memcpy(&together, halves, sizeof together);
      *reinterpret_cast<uint4*>(out) = together;
      return;
    }
  }
  for (int i = 0; i < size; ++i) out[i] = halves[i];
}

// One vector of the results of a token: several rows are read before the first is added.
template <DataType type, typename Vector>
__device__ void sum_vector(const CudaCombineView& v, std::int64_t token, std::int64_t vector,
                           const Summands& summands) {
  constexpr int kElements = sizeof(Vector) / (type == DataType::kFp32 ? 4 : 2), kTogether = 8;
  const std::int64_t first = vector * kElements;
  float sums[kElements] = {};
  for (const std::byte* bias : v.bias) {
    if (bias == nullptr) continue;
#pragma unroll
    for (int i = 0; i < kElements; ++i)
      sums[i] += element_of(bias, v.out_type, token * v.hidden + first + i);
  }
  for (int begin = 0; begin < summands.count; begin += kTogether) {
    Vector parts[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (begin + j < summands.count)
        parts[j] = reinterpret_cast<const Vector*>(summands.rows[begin + j])[vector];
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (begin + j >= summands.count) break;
      const std::byte* elements = reinterpret_cast<const std::byte*>(&parts[j]);
      const float weight = summands.weights[begin + j];
#pragma unroll
      for (int i = 0; i < kElements; ++i)
        sums[i] = __fadd_rn(sums[i], __fmul_rn(weight, element<type>(elements, i)));
    }
  }
  store_sums<kElements>(v, token * v.hidden + first, sums);
}

// Computes the result of the block's token.
template <DataType type, typename Vector>
__device__ void sum_token(const CudaCombineView& v, std::int64_t token, std::uint64_t number) {
  __shared__ Summands summands;
  const std::int64_t row_bytes = v.hidden * (type == DataType::kFp32 ? 4 : 2);
  const CudaOutputRecord* records = records_in(v.common, v.common.shape.rank, number);
  if (threadIdx.x < kWarp) find_summands(v, token, row_bytes, records, summands);
  __syncthreads();
  const std::int64_t vectors = row_bytes / static_cast<std::int64_t>(sizeof(Vector));
  for (std::int64_t vector = threadIdx.x; vector < vectors; vector += blockDim.x)
    sum_vector<type, Vector>(v, token, vector, summands);
}

template <DataType type, typename Vector>
__global__ void __launch_bounds__(256) reduce_kernel(CudaCombineView v) {
  CudaState& state = *v.common.state;
  const CudaOperation operation = state.combine;
  if (!state.broken && !operation.skip && blockIdx.x < v.route.num_tokens)
    sum_token<type, Vector>(v, blockIdx.x, operation.number);
  if (state.broken || !last_block(state.tickets[2])) return;
  raise_everywhere(v.common, v.common.at.done_flags, operation.number);
}

template <DataType type>
void launch_reduce_of(const CudaCombineView& v, unsigned grid, std::int64_t row_bytes,
                      cudaStream_t stream) {
  // Offsets in windows are multiples of 16, unless the caller's rows begin inside a window row.
  if ((row_bytes | v.offset) % 16 == 0) {
    reduce_kernel<type, uint4><<<grid, threads_for(row_bytes / 16), 0, stream>>>(v);
  } else if constexpr (type == DataType::kFp32) {
    reduce_kernel<type, unsigned><<<grid, threads_for(v.hidden), 0, stream>>>(v);
  } else {
    reduce_kernel<type, unsigned short><<<grid, threads_for(v.hidden), 0, stream>>>(v);
  }
}

}  // namespace

void load_combine_kernels() {
  load(await_reuse_kernel, publish_kernel, await_outputs_kernel, stage_kernel<uint4>,
       stage_kernel<uint2>, stage_kernel<unsigned>, stage_kernel<unsigned short>,
       stage_kernel<unsigned char>);
  load(reduce_kernel<DataType::kBf16, uint4>, reduce_kernel<DataType::kFp16, uint4>,
       reduce_kernel<DataType::kFp32, uint4>, reduce_kernel<DataType::kBf16, unsigned short>,
       reduce_kernel<DataType::kFp16, unsigned short>, reduce_kernel<DataType::kFp32, unsigned>);
}

void launch_stage(const CudaCombineView& v, int depth, int processors, cudaStream_t stream) {
  if (v.staged == nullptr) return;
  // With several sets of outputs no wait is needed: this rank has waited for the outputs of a
  // combine after the one that used this set, and each rank published those after it had read this
  // set.
  if (depth == 1) await_reuse_kernel<<<1, waiting_threads(v.common.shape), 0, stream>>>(v.common);
  const std::int64_t row_bytes = v.hidden * (v.row_type == DataType::kFp32 ? 4 : 2);
  const std::uint64_t sizes =
      reinterpret_cast<std::uint64_t>(v.staged) | static_cast<std::uint64_t>(row_bytes);
  with_vector(vector_width(sizes), [&]<typename Vector>(Vector) {
    const int block = threads_for(row_bytes / static_cast<std::int64_t>(sizeof(Vector)));
    stage_kernel<Vector><<<8 * processors, block, 0, stream>>>(v, row_bytes, v.staged_rows);
  });
}

void launch_publish(const CudaCombineView& v, bool and_wait, cudaStream_t stream) {
  publish_kernel<<<1, waiting_threads(v.common.shape), 0, stream>>>(v, and_wait);
}

void launch_await_outputs(const CudaCombineView& v, cudaStream_t stream) {
  await_outputs_kernel<<<1, waiting_threads(v.common.shape), 0, stream>>>(v);
}

void launch_reduce(const CudaCombineView& v, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(std::max<std::int64_t>(v.route.num_tokens, 1));
  const std::int64_t row_bytes = v.hidden * (v.row_type == DataType::kFp32 ? 4 : 2);
  if (v.row_type == DataType::kBf16) {
    launch_reduce_of<DataType::kBf16>(v, grid, row_bytes, stream);
  } else if (v.row_type == DataType::kFp16) {
    launch_reduce_of<DataType::kFp16>(v, grid, row_bytes, stream);
  } else {
    launch_reduce_of<DataType::kFp32>(v, grid, row_bytes, stream);
  }
}

}  // namespace ferry::internal
