// The second half of a dispatch on the device. Send writes each row of this rank to all its places,
// by the threads that read it. Receive waits for the rows of all ranks. A kernel fills the gaps.
#include <cuda_fp8.h>

#include "cuda/flags.cuh"
#include "cuda/kernels.h"
#include "cuda/load.cuh"
#include "cuda/rows.cuh"
#include "kernels/fp8_scale.h"

namespace ferry::internal {

namespace {

constexpr int kGroup = 128;  // channels that share a scale

// The receive buffer that a rank chose, by its count record.
__device__ std::byte* buffer_of(const CudaCommon& common, int rank, std::uint64_t number) {
  const CudaCountRecord* records =
      in_window<CudaCountRecord>(common.mine, common.at.count_records[number & 1]);
  return common.windows[rank] + common.at.first_buffer +
         records[rank].buffer * common.at.buffer.bytes;
}

// The places to which the rows and scales of one token go.
struct Places {
  std::byte* rows[kMaxTopK];
  std::byte* scales[kMaxTopK];
  CudaRef refs[kMaxTopK];
  int count;
};

__device__ CudaRef place_entry(const CudaDispatchView& v, std::int64_t token, int k) {
  const CudaCommon& common = v.common;
  const CudaShape& shape = common.shape;
  const std::int64_t entry = token * shape.top_k + k;
  if (v.cached) return v.route.refs[entry];
  const std::int64_t chunk = token / tokens_per_chunk(shape.top_k);
  return row_of_entry(shape, common.keys[entry], common.ranks_in_chunk[entry],
                      common.chunk_counts + chunk * shape.count_row_size(), common.next);
}

// Writes the source, the weights and the ids of the row to which entry k goes.
__device__ void write_metadata(const CudaDispatchView& v, std::byte* buffer, CudaRef ref,
                               std::int64_t token, int k) {
  const CudaShape& shape = v.common.shape;
  const CudaWindow& at = v.common.at;
  std::int32_t* source =
      in_window<std::int32_t>(buffer, at.buffer.sources) + std::int64_t{3} * ref.row;
  float* weights = in_window<float>(buffer, at.buffer.weights);
  const std::int64_t first = token * shape.top_k;
  int lowest = k;
  if (!shape.rank_major()) {
    if (v.weights) weights[ref.row] = v.weights[first + k];
  } else {
    std::int32_t* ids = in_window<std::int32_t>(buffer, at.buffer.topk_ids);
    lowest = shape.top_k;
    for (int j = shape.top_k - 1; j >= 0; --j) {
      const std::int32_t expert = v.route.experts[first + j];
      const bool here = expert >= 0 && shape.experts.owner[expert] == ref.rank;
      const std::int64_t to = static_cast<std::int64_t>(ref.row) * shape.top_k + j;
      ids[to] = here ? shape.experts.local[expert] : -1;
      if (v.weights) weights[to] = here ? v.weights[first + j] : 0.0F;
      if (here) lowest = j;
    }
  }
  source[0] = shape.rank, source[1] = static_cast<std::int32_t>(token), source[2] = lowest;
}

// The first warp finds the places of a token and writes the metadata of its rows.
__device__ void find_places(const CudaDispatchView& v, std::int64_t token, std::uint64_t number,
                            Places& places) {
  const CudaShape& shape = v.common.shape;
  const int k = threadIdx.x;
  CudaRef ref;
  if (k < shape.top_k) ref = place_entry(v, token, k);
  const unsigned sent = __ballot_sync(~0U, ref.rank >= 0);
  const int before = __popc(sent & ((1U << k) - 1));
  if (k == 0) places.count = __popc(sent);
  if (ref.rank >= 0) {
    std::byte* buffer = buffer_of(v.common, ref.rank, number);
    places.rows[before] =
        in_window<std::byte>(buffer, v.common.at.buffer.rows) + ref.row * shape.row_bytes;
    places.scales[before] =
        in_window<std::byte>(buffer, v.common.at.buffer.scales) + ref.row * shape.scale_columns * 4;
    places.refs[before] = ref;
    write_metadata(v, buffer, ref, token, k);
  }
  __syncwarp();
  if (v.cached || k >= shape.top_k) return;
  CudaRef* refs = v.route.refs + token * shape.top_k;
  if (!shape.rank_major()) {
    refs[k] = ref;
  } else if (k >= places.count) {
    refs[k] = {};
  }
  if (shape.rank_major() && ref.rank >= 0)
    refs[order_of_ref(places.refs, places.count, before)] = ref;
}

// One warp encodes a group of channels as e4m3 and writes the codes to all places
// (docs/numerics.md).
template <DataType type>
__device__ void quantise_group(const CudaShape& shape, const std::byte* row, std::int64_t group,
                               const Places& places) {
  constexpr int kEach = kGroup / kWarp;
  const int lane = threadIdx.x % kWarp;
  const std::int64_t first = group * kGroup + lane * kEach;
  float values[kEach];
  std::uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    values[i] = first + i < shape.hidden ? element<type>(row, first + i) : 0.0F;
    most = max(most, __float_as_uint(values[i]) & kFloatMagnitude);
  }
  most = __reduce_max_sync(~0U, most);
  const bool finite = most < kFloatInfinity;
  const Fp8Scale group_scale = fp8_scale(fmaxf(__uint_as_float(most), 1e-4F), shape.wire);
  std::uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < kEach && finite; ++i) {
    const std::uint32_t code =
        __nv_cvt_float_to_fp8(values[i] * group_scale.factor, __NV_SATFINITE, __NV_E4M3);
    codes |= code << (8 * i);
  }
  const std::uint32_t scale =
      finite ? __float_as_uint(group_scale.scale) : kFloatInfinity | kFloatQuietBit;
  const std::int64_t groups = (shape.hidden + kGroup - 1) / kGroup;
  for (int place = 0; place < places.count; ++place) {
    std::byte* to = places.rows[place] + first;
    if (first + kEach <= shape.hidden && shape.hidden % kEach == 0) {
      *reinterpret_cast<std::uint32_t*>(to) = codes;
    } else {
      for (int i = 0; i < kEach && first + i < shape.hidden; ++i)
        to[i] = std::byte(codes >> (8 * i));
    }
    if (lane != 0) continue;
    if (shape.wire != Wire::kFp8Ue8m0) {
      reinterpret_cast<std::uint32_t*>(places.scales[place])[group] = scale;
      continue;
    }
    places.scales[place][group] = std::byte(finite ? scale >> 23 : 255U);
    for (std::int64_t unused = groups; group == groups - 1 && unused % 4 != 0; ++unused)
      places.scales[place][unused] = std::byte{0};
  }
}

__device__ void quantise_row(const CudaShape& shape, const std::byte* row, const Places& places) {
  const std::int64_t groups = (shape.hidden + kGroup - 1) / kGroup;
  for (std::int64_t group = threadIdx.x / kWarp; group < groups; group += blockDim.x / kWarp) {
    if (shape.dtype == DataType::kBf16) {
      quantise_group<DataType::kBf16>(shape, row, group, places);
    } else if (shape.dtype == DataType::kFp16) {
      quantise_group<DataType::kFp16>(shape, row, group, places);
    } else {
      quantise_group<DataType::kFp32>(shape, row, group, places);
    }
  }
}

template <typename Vector>
__device__ void send_token(const CudaDispatchView& v, std::int64_t token, std::uint64_t number) {
  __shared__ Places places;
  const CudaShape& shape = v.common.shape;
  if (threadIdx.x < kWarp) find_places(v, token, number, places);
  __syncthreads();
  const std::byte* row = v.tokens + token * v.pitch_bytes;
  if (shape.wire == Wire::kNone) {
    spread_row<Vector>(row, shape.row_bytes, places.rows, places.count);
  } else {
    quantise_row(shape, row, places);
  }
}

// Clears the rows of a token, so that a combine with this routing sums nothing.
__device__ void forget_rows(const CudaDispatchView& v, std::int64_t token) {
  const int top_k = v.common.shape.top_k;
  if (threadIdx.x < top_k && !v.cached) v.route.refs[token * top_k + threadIdx.x] = {};
}

__device__ void await_rows(const CudaCommon& common, std::uint64_t number) {
  await_all(common, {common.at.rows_flags, number, CudaPhase::kRows, number, 0});
}

// One warp counts the rows of the experts of this rank and finds the first row of each. The first
// running count of each expert becomes the number of rows of the experts before it.
__device__ void count_my_experts(const CudaDispatchView& v, const std::int32_t* columns,
                                 int num_local) {
  const CudaShape& shape = v.common.shape;
  const CudaCounts& counts = v.route.counts;
  const int lane = threadIdx.x % kWarp;
  std::int64_t before = 0, start = 0;
  for (int first = 0; first < num_local; first += kWarp) {
    const int local = first + lane;
    const bool here = local < num_local;
    const std::int32_t rows = here ? v.common.all[columns[local]] : 0;
    const std::int64_t sum = warp_running_sum(rows);
    const std::int64_t end = start + warp_running_sum(here ? rows_taken(shape, rows) : 0);
    if (here) {
      counts.tokens_per_expert[local] = rows;
      if (v.ticket != 0) v.route.host_experts[local] = rows;
      counts.aligned_tokens_per_expert[local] =
          round_up<std::int64_t, std::int64_t>(rows, shape.alignment);
      counts.expert_offsets[local + 1] = end;
      counts.running_counts[static_cast<std::int64_t>(local) * shape.num_ranks] =
          before + sum - rows;
    }
    before += __shfl_sync(~0U, sum, kWarp - 1);
    start = __shfl_sync(~0U, end, kWarp - 1);
  }
  if (lane == 0) counts.expert_offsets[0] = 0, *counts.num_rows = start;
}

// Counts the rows that this rank receives, into memory of the handle and, for the host, into host
// memory.
__device__ void count_received(const CudaDispatchView& v, std::uint64_t number) {
  const CudaShape& shape = v.common.shape;
  const CudaCounts& counts = v.route.counts;
  const std::int32_t* columns = shape.experts.experts_of + shape.experts.first_of[shape.rank];
  const int num_local = shape.experts.first_of[shape.rank + 1] - shape.experts.first_of[shape.rank];
  const std::int64_t row_size = shape.count_row_size();
  const std::int32_t* matrix =
      in_window<std::int32_t>(v.common.mine, v.common.at.counts[number & 1]);
  if (threadIdx.x < kWarp) count_my_experts(v, columns, num_local);
  __syncthreads();
  for (int local = threadIdx.x; local < num_local; local += blockDim.x) {
    std::int64_t* running =
        counts.running_counts + static_cast<std::int64_t>(local) * shape.num_ranks;
    std::int64_t sum = running[0];
    for (int rank = 0; rank < shape.num_ranks; ++rank)
      running[rank] = sum += matrix[rank * row_size + columns[local]];
  }
  if (!shape.rank_major() || threadIdx.x != 0) return;
  std::int64_t rows = 0;
  for (int rank = 0; rank < shape.num_ranks; ++rank)
    counts.running_rows_per_rank[rank] = rows +=
        matrix[rank * row_size + shape.num_experts + shape.rank];
  *counts.num_rows = rows;
}

// Raises the ticket last, because the host waits for it.
__device__ void report_to_host(const CudaDispatchView& v, Code code) {
  if (v.ticket == 0 || threadIdx.x != 0) return;
  volatile CudaHostCounts& host = *v.route.host;
  host.num_rows = *v.route.counts.num_rows;
  host.code = static_cast<std::int32_t>(code);
  __threadfence_system();
  host.ticket = v.ticket;
}

// The last block of the grid counts the received rows; each other block sends a token. With
// `and_wait`, the block that ends last waits for the rows of all ranks.
template <typename Vector>
__global__ void __launch_bounds__(256) send_kernel(CudaDispatchView v, bool and_wait) {
  CudaState& state = *v.common.state;
  const CudaOperation operation = state.dispatch[v.buffer];
  const bool go = !state.broken && !operation.skip;
  if (blockIdx.x == gridDim.x - 1) {
    if (go && !v.cached) count_received(v, operation.number);
    report_to_host(v, go ? Code::kOk : state.broken ? Code::kBroken : Code::kInvalidArgument);
  } else if (go) {
    send_token<Vector>(v, blockIdx.x, operation.number);
  } else {
    forget_rows(v, blockIdx.x);
  }
  if (state.broken || !last_block(state.tickets[1])) return;
  raise_everywhere(v.common, v.common.at.rows_flags, operation.number);
  if (and_wait) await_rows(v.common, operation.number);
}

__global__ void __launch_bounds__(1024) receive_kernel(CudaCommon common, int buffer) {
  if (!common.state->broken) await_rows(common, common.state->dispatch[buffer].number);
}

// Fills the gaps of this rank's buffer, which no rank writes: one block for each expert.
__global__ void gaps_kernel(CudaDispatchView v) {
  const CudaShape& shape = v.common.shape;
  if (v.common.state->broken || v.common.state->dispatch[v.buffer].skip) return;
  std::byte* buffer =
      v.common.mine + v.common.at.first_buffer + v.buffer * v.common.at.buffer.bytes;
  const std::int64_t begin =
      v.route.counts.expert_offsets[blockIdx.x] + v.route.counts.tokens_per_expert[blockIdx.x];
  for (std::int64_t row = begin; row < v.route.counts.expert_offsets[blockIdx.x + 1]; ++row) {
    if (threadIdx.x < 3)
      in_window<std::int32_t>(buffer, v.common.at.buffer.sources)[3 * row + threadIdx.x] = -1;
    if (threadIdx.x == 0) in_window<float>(buffer, v.common.at.buffer.weights)[row] = 0.0F;
    if (!shape.zero_gaps) continue;
    std::byte* rows = in_window<std::byte>(buffer, v.common.at.buffer.rows) + row * shape.row_bytes;
    for (std::int64_t i = threadIdx.x; i < shape.row_bytes; i += blockDim.x) rows[i] = std::byte{0};
    std::byte* scales =
        in_window<std::byte>(buffer, v.common.at.buffer.scales) + row * shape.scale_columns * 4;
    for (std::int64_t i = threadIdx.x; i < shape.scale_columns * 4; i += blockDim.x)
      scales[i] = std::byte{0};
  }
}

bool has_gaps(const CudaShape& shape) {
  if (shape.layout == Layout::kPadded) return shape.zero_gaps;
  return shape.layout == Layout::kExpertMajor && shape.alignment > 1;
}

__global__ void leave_kernel(CudaCommon common) {
  raise_everywhere(common, common.at.abort_flags, static_cast<std::uint64_t>(Code::kClosed));
}

constexpr int kCopied = 2;  // vectors of a thread: the fastest number measured on an H200

template <typename Vector>
__global__ void __launch_bounds__(256)
    copy_kernel(const Vector* from, Vector* to, std::int64_t size) {
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * kCopied * blockDim.x + threadIdx.x;
  Vector part[kCopied];
#pragma unroll
  for (int i = 0; i < kCopied; ++i) {
    if (first + i * blockDim.x < size) part[i] = __ldcs(from + first + i * blockDim.x);
  }
#pragma unroll
  for (int i = 0; i < kCopied; ++i) {
    if (first + i * blockDim.x < size) __stcs(to + first + i * blockDim.x, part[i]);
  }
}

}  // namespace

void load_dispatch_kernels() {
  load(send_kernel<uint4>, send_kernel<uint2>, send_kernel<unsigned>, send_kernel<unsigned short>,
       send_kernel<unsigned char>, receive_kernel, gaps_kernel, leave_kernel, copy_kernel<uint4>);
}

void launch_send(const CudaDispatchView& v, bool and_wait, cudaStream_t stream) {
  const CudaShape& shape = v.common.shape;
  const std::uint64_t sizes = reinterpret_cast<std::uint64_t>(v.tokens) |
                              static_cast<std::uint64_t>(v.pitch_bytes | shape.row_bytes);
  const auto grid = static_cast<unsigned>(v.route.num_tokens + 1);
  with_vector(vector_width(sizes), [&]<typename Vector>(Vector) {
    const int threads = threads_for(shape.row_bytes / static_cast<std::int64_t>(sizeof(Vector)));
    send_kernel<Vector><<<grid, threads, 0, stream>>>(v, and_wait);
  });
}

void launch_receive(const CudaDispatchView& v, cudaStream_t stream) {
  receive_kernel<<<1, waiting_threads(v.common.shape), 0, stream>>>(v.common, v.buffer);
}

void launch_gaps(const CudaDispatchView& v, int num_local, cudaStream_t stream) {
  if (has_gaps(v.common.shape) && num_local > 0) gaps_kernel<<<num_local, 256, 0, stream>>>(v);
}

void launch_leave(const CudaCommon& common, cudaStream_t stream) {
  leave_kernel<<<1, 256, 0, stream>>>(common);
}

void launch_copy(const void* from, void* to, std::size_t bytes, cudaStream_t stream) {
  const auto size = static_cast<std::int64_t>(bytes / sizeof(uint4));
  const std::int64_t blocks = (size + kCopied * 256 - 1) / (kCopied * 256);
  copy_kernel<<<static_cast<unsigned>(blocks), 256, 0, stream>>>(static_cast<const uint4*>(from),
                                                                 static_cast<uint4*>(to), size);
}

}  // namespace ferry::internal
