// The first half of a dispatch on the device. Count makes the row of this rank in the count matrix
// from its entries and sends it to all ranks. Place waits for the count rows of all ranks and finds
// the places of this rank's rows. Both give the results of routing/placement.cc (steps.h).
#include "cuda/flags.cuh"
#include "cuda/kernels.h"
#include "cuda/load.cuh"

namespace ferry::internal {

namespace {

constexpr std::int32_t kOk = static_cast<std::int32_t>(Code::kOk);
constexpr std::int32_t kInvalid = static_cast<std::int32_t>(Code::kInvalidArgument);

__device__ std::int32_t* my_counts(const CudaCommon& common, int peer, std::uint64_t number) {
  const std::int64_t row =
      static_cast<std::int64_t>(common.shape.rank) * common.shape.count_row_size();
  return in_window<std::int32_t>(common.windows[peer], common.at.counts[number & 1]) + row;
}

__device__ std::int32_t expert_of(const CudaDispatchView& v, std::int64_t entry) {
  const std::int64_t id = v.wide_ids ? static_cast<const std::int64_t*>(v.ids)[entry]
                                     : static_cast<const std::int32_t*>(v.ids)[entry];
  if (id >= -1 && id < v.common.shape.num_experts) return static_cast<std::int32_t>(id);
  atomicMin(&v.common.state->bad_entry, static_cast<unsigned long long>(entry));
  return -1;
}

// Finds the key of each entry of a chunk, and the counts of the chunk.
__device__ void count_chunk(const CudaDispatchView& v) {
  const CudaCommon& common = v.common;
  const CudaShape& shape = common.shape;
  __shared__ std::int32_t experts[kChunkEntries], keys[kChunkEntries];
  const int row_size = shape.count_row_size(), tokens = tokens_per_chunk(shape.top_k);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * tokens * shape.top_k;
  const std::int64_t remaining = v.route.num_tokens * shape.top_k - first;
  const int size =
      static_cast<int>(min(remaining, static_cast<std::int64_t>(tokens) * shape.top_k));
  const int i = threadIdx.x;
  std::int32_t* counts = common.chunk_counts + static_cast<std::int64_t>(blockIdx.x) * row_size;
  for (int column = i; column < row_size; column += blockDim.x) counts[column] = 0;
  experts[i] = i < size ? expert_of(v, first + i) : kNoKey;
  __syncthreads();
  keys[i] = kNoKey;
  if (i < size) {
    const int k = i % shape.top_k;
    keys[i] = key_of_entry(shape, experts + i - k, k);
    v.route.experts[first + i] = experts[i];
    common.keys[first + i] = keys[i];
  }
  __syncthreads();
  if (i >= size) return;
  const InChunk among_keys = find_in_chunk(keys, i);
  common.ranks_in_chunk[first + i] = among_keys.rank;
  if (keys[i] >= 0 && among_keys.last) counts[keys[i]] = among_keys.rank + 1;
  if (!shape.rank_major() || experts[i] < 0) return;
  const InChunk among_experts = find_in_chunk(experts, i);
  if (among_experts.last) counts[experts[i]] = among_experts.rank + 1;
}

__device__ void publish_counts(const CudaDispatchView& v, std::uint64_t number) {
  const CudaCommon& common = v.common;
  const CudaShape& shape = common.shape;
  const std::int64_t chunks = num_chunks(v.route.num_tokens, shape.top_k);
  for (int column = threadIdx.x; column < shape.count_row_size() && !v.cached;
       column += blockDim.x) {
    const std::int32_t count =
        run_chunks(common.chunk_counts, chunks, shape.count_row_size(), column);
    for (int peer = 0; peer < shape.num_ranks; ++peer)
      my_counts(common, peer, number)[column] = count;
  }
  CudaCountRecord record{.entry = 0, .value = 0, .code = v.refused, .buffer = v.buffer};
  const unsigned long long bad = v.common.state->bad_entry;
  if (record.code == kOk && bad != kNoEntry) {
    record.code = kInvalid, record.entry = static_cast<std::int64_t>(bad);
    record.value = v.wide_ids ? static_cast<const std::int64_t*>(v.ids)[bad]
                              : static_cast<const std::int32_t*>(v.ids)[bad];
  }
  const std::size_t records = common.at.count_records[number & 1];
  for (int peer = threadIdx.x; peer < shape.num_ranks; peer += blockDim.x)
    in_window<CudaCountRecord>(common.windows[peer], records)[shape.rank] = record;
}

// One warp calls it. next[column] holds the rows of the ranks before this rank, and becomes the
// first row of this rank at the owner of the column. Returns the rows that `rank` needs in its
// buffer, or in kPadded for one expert.
__device__ std::int64_t start_columns(const CudaShape& shape, int rank, const std::int32_t* all,
                                      std::int32_t* next) {
  if (shape.rank_major()) return all[shape.num_experts + rank];
  const int lane = threadIdx.x % kWarp;
  const std::int32_t end = shape.experts.first_of[rank + 1];
  std::int64_t start = 0;
  unsigned most = 0;
  for (std::int32_t first = shape.experts.first_of[rank]; first < end; first += kWarp) {
    const bool here = first + lane < end;
    const std::int32_t column = here ? shape.experts.experts_of[first + lane] : 0;
    const std::int64_t taken = here ? rows_taken(shape, all[column]) : 0;
    const std::int64_t sum = warp_running_sum(taken);
    if (here) next[column] += static_cast<std::int32_t>(start + sum - taken);
    most = max(most, here ? static_cast<unsigned>(all[column]) : 0U);
    start += __shfl_sync(~0U, sum, kWarp - 1);
  }
  return shape.layout == Layout::kPadded ? __reduce_max_sync(~0U, most) : start;
}

// Finds the places of the rows of this rank. False: the rows of some rank do not fit. All ranks
// read equal counts, so all return equally.
__device__ bool place_rows(const CudaDispatchView& v, std::int32_t* all, std::int32_t* next,
                           std::uint64_t number) {
  const CudaCommon& common = v.common;
  const CudaShape& shape = common.shape;
  __shared__ int full;
  if (threadIdx.x == 0) full = shape.num_ranks;
  const std::int32_t* matrix = in_window<std::int32_t>(common.mine, common.at.counts[number & 1]);
  for (int column = threadIdx.x; column < shape.count_row_size(); column += blockDim.x) {
    const ColumnSum sum = sum_column(shape, matrix, column);
    all[column] = sum.all, next[column] = sum.before_me;
  }
  __syncthreads();
  for (int rank = threadIdx.x / kWarp; rank < shape.num_ranks; rank += blockDim.x / kWarp) {
    if (start_columns(shape, rank, all, next) > most_rows(shape)) atomicMin(&full, rank);
  }
  __syncthreads();
  if (next != common.next) {
    for (int column = threadIdx.x; column < shape.count_row_size(); column += blockDim.x)
      common.all[column] = all[column], common.next[column] = next[column];
  }
  if (full == shape.num_ranks) return true;
  if (threadIdx.x == 0) {
    std::int64_t rows = 0;
    for (int i = shape.experts.first_of[full]; i < shape.experts.first_of[full + 1]; ++i) {
      const std::int64_t of_expert = all[shape.experts.experts_of[i]];
      rows = shape.layout == Layout::kPadded
                 ? max(rows, of_expert)
                 : rows + rows_taken(shape, all[shape.experts.experts_of[i]]);
    }
    if (shape.rank_major()) rows = all[shape.num_experts + full];
    send_report(common, {.number = number,
                         .code = static_cast<std::int32_t>(Code::kCapacity),
                         .culprit = full,
                         .rows = rows,
                         .most = most_rows(shape)});
  }
  return false;
}

// False: some rank refused its call. All ranks read equal records, so all return equally.
__device__ bool none_refused(const CudaDispatchView& v, std::uint64_t number) {
  const CudaCommon& common = v.common;
  __shared__ int refuser;
  if (threadIdx.x == 0) refuser = common.shape.num_ranks;
  __syncthreads();
  const CudaCountRecord* records =
      in_window<CudaCountRecord>(common.mine, common.at.count_records[number & 1]);
  for (int peer = threadIdx.x; peer < common.shape.num_ranks; peer += blockDim.x) {
    if (records[peer].code != kOk) atomicMin(&refuser, peer);
  }
  __syncthreads();
  if (refuser == common.shape.num_ranks) return true;
  const bool own = refuser == common.shape.rank;
  if (threadIdx.x == 0 && v.refused == kOk) {  // else the host has the reason of its own refusal
    const CudaCountRecord& record = records[refuser];
    send_report(common, {.number = number,
                         .code = own ? record.code : static_cast<std::int32_t>(Code::kPeerRejected),
                         .culprit = refuser,
                         .entry = record.entry,
                         .value = record.value});
  }
  return false;
}

// Waits for the counts of all ranks, and finds the places of the rows of this rank.
__device__ void place(const CudaDispatchView& v, std::uint64_t number, bool in_shared) {
  extern __shared__ std::int32_t columns[];
  const CudaCommon& common = v.common;
  if (!await_all(common, {common.at.counts_flags, number, CudaPhase::kCounts, number, 0})) return;
  std::int32_t* all = in_shared ? columns : common.all;
  std::int32_t* next = in_shared ? columns + common.shape.count_row_size() : common.next;
  const bool go = none_refused(v, number) && (v.cached || place_rows(v, all, next, number));
  if (threadIdx.x == 0) common.state->dispatch[v.buffer].skip = go ? 0 : 1;
}

// The block that counts last sends the counts to all ranks and, with `and_place`, goes on to place.
__global__ void __launch_bounds__(kChunkEntries)
    count_kernel(CudaDispatchView v, bool and_place, bool in_shared) {
  CudaState& state = *v.common.state;
  if (state.broken) return;
  if (!v.cached && v.route.num_tokens > 0) count_chunk(v);
  if (!last_block(state.tickets[0])) return;
  const std::uint64_t number = state.dispatches + 1;
  publish_counts(v, number);
  raise_everywhere(v.common, v.common.at.counts_flags, number);
  if (threadIdx.x == 0) {
    state.dispatches = number;
    state.dispatch[v.buffer] = {number, 0};
    state.bad_entry = kNoEntry;
  }
  if (and_place) place(v, number, in_shared);
}

__global__ void __launch_bounds__(kChunkEntries) place_kernel(CudaDispatchView v, bool in_shared) {
  const CudaState& state = *v.common.state;
  if (!state.broken) place(v, state.dispatch[v.buffer].number, in_shared);
}

// Bytes of shared memory for two numbers per column; 0 where they are too many, and are kept in
// device memory.
std::size_t columns_bytes(const CudaShape& shape) {
  constexpr std::size_t kMost = 40 << 10;
  const std::size_t bytes = 2 * sizeof(std::int32_t) * shape.count_row_size();
  return bytes <= kMost ? bytes : 0;
}

}  // namespace

void load_place_kernels() { load(count_kernel, place_kernel); }

void launch_count(const CudaDispatchView& v, bool and_place, cudaStream_t stream) {
  const std::size_t bytes = and_place ? columns_bytes(v.common.shape) : 0;
  const std::int64_t chunks = v.cached ? 1 : num_chunks(v.route.num_tokens, v.common.shape.top_k);
  const auto grid = static_cast<unsigned>(chunks > 0 ? chunks : 1);
  count_kernel<<<grid, kChunkEntries, bytes, stream>>>(v, and_place, bytes > 0);
}

void launch_place(const CudaDispatchView& v, cudaStream_t stream) {
  const std::size_t bytes = columns_bytes(v.common.shape);
  place_kernel<<<1, kChunkEntries, bytes, stream>>>(v, bytes > 0);
}

}  // namespace ferry::internal
