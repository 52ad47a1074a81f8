// The flags by which kernels of different ranks synchronise, and the one wait for them. At most one
// block of a kernel waits. Before it waits, its rank has raised the flag for which the other ranks
// wait in the same phase, so no two ranks wait for each other.
#pragma once

#include <algorithm>

#include "cuda/views.h"
#include "ferry/status.h"

namespace ferry::internal {

// All that the writer of a flag wrote before the flag is visible afterwards. Partner:
// store_release.
__device__ inline std::uint64_t load_acquire(const std::uint64_t* flag) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

// All that this thread wrote before, or saw of other threads (by a barrier or a ticket), is visible
// before the value. `near`: the reader is a kernel of this process on this device, for which a
// release at the scope of the device is enough.
__device__ inline void store_release(std::uint64_t* flag, std::uint64_t value, bool near) {
  if (near) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" : : "l"(flag), "l"(value) : "memory");
  } else {
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(flag), "l"(value) : "memory");
  }
}

__device__ inline std::int64_t clock_ns() {
  std::int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

inline constexpr int kWarp = 32;

// The sum of the values of this lane and the lanes below it. All lanes of the warp call it.
__device__ inline std::int64_t warp_running_sum(std::int64_t value) {
  for (int step = 1; step < kWarp; step *= 2) {
    const std::int64_t below = __shfl_up_sync(~0U, value, step);
    if (static_cast<int>(threadIdx.x % kWarp) >= step) value += below;
  }
  return value;
}

template <typename T>
__device__ T* in_window(std::byte* window, std::size_t offset) {
  return reinterpret_cast<T*>(window + offset);
}

// Raises the flag of this rank in the window of every rank. All threads of the block call it; all
// that they wrote before is visible before the flag.
__device__ inline void raise_everywhere(const CudaCommon& common, std::size_t flags,
                                        std::uint64_t value) {
  __syncthreads();
  for (int peer = threadIdx.x; peer < common.shape.num_ranks; peer += blockDim.x)
    store_release(in_window<std::uint64_t>(common.windows[peer], flags) + common.shape.rank, value,
                  common.all_near);
}

// True in the block of the kernel that calls it last, to which all that the other blocks wrote
// before is visible. All threads of the block call it.
__device__ inline bool last_block(std::uint32_t& ticket) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(&ticket, 1U) == gridDim.x - 1;
    if (last) ticket = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}

// Writes `sequence` last, because the host reads it first. One thread calls it.
__device__ inline void send_report(const CudaCommon& common, CudaReport report) {
  volatile CudaReport& to = *common.report;
  const std::uint64_t sequence = to.sequence + 1;
  to.number = report.number, to.code = report.code, to.culprit = report.culprit;
  to.combine = report.combine, to.phase = report.phase;
  to.entry = report.entry, to.value = report.value;
  to.expected = report.expected, to.seen = report.seen;
  to.rows = report.rows, to.most = report.most;
  __threadfence_system();
  to.sequence = sequence;
  __threadfence_system();
}

// The threads of a block that waits: one for each rank, as many as a block may have.
inline int waiting_threads(const CudaShape& shape) {
  return std::min(1024, round_up(shape.num_ranks, kWarp));
}

struct CudaAwait {
  std::size_t flags;  // offset in the window of this rank
  std::uint64_t value;
  CudaPhase phase;
  std::uint64_t number;
  std::int32_t combine;
};

// Why a wait ended.
struct CudaMissing {
  std::int32_t code = 0, culprit = -1;
  std::uint64_t seen = 0;
};

// One thread waits for the flag of one rank. The wait ends early once another thread has set
// `given_up`.
__device__ inline CudaMissing await_flag(const CudaCommon& common, const CudaAwait& await, int peer,
                                         const volatile int& given_up) {
  const std::uint64_t* flag = in_window<std::uint64_t>(common.mine, await.flags) + peer;
  const std::uint64_t* abort = in_window<std::uint64_t>(common.mine, common.at.abort_flags) + peer;
  const std::int64_t begin = clock_ns();
  for (int turns = 0;; ++turns) {
    if (load_acquire(flag) >= await.value) return {};
    if (turns % 64 != 63) continue;
    // A rank raises its flags before it departs, so the flag is read once more.
    const std::uint64_t departed = load_acquire(abort);
    const std::uint64_t seen = load_acquire(flag);
    if (seen >= await.value) return {};
    if (departed != 0) {
      const bool closed = departed == static_cast<std::uint64_t>(Code::kClosed);
      return {static_cast<std::int32_t>(closed ? Code::kPeerLost : Code::kBroken), peer, seen};
    }
    const std::int64_t waited = clock_ns() - begin;
    if (waited > common.deadline_ns) return {static_cast<std::int32_t>(Code::kTimeout), peer, seen};
    if (given_up < common.shape.num_ranks)
      return {static_cast<std::int32_t>(Code::kBroken), peer, seen};
    // A read of host memory takes about a microsecond, so the host's abort is read rarely.
    if (turns % 4096 == 4095 && common.host_abort[0] != 0)
      return {common.host_abort[0], common.host_abort[1], seen};
    if (waited > 100'000) __nanosleep(500);
  }
}

// Waits until the flag of every rank has reached a value. All threads of the block call it. False:
// the exchange is broken. The other ranks learn it when they wait for this rank, and the host has a
// report.
__device__ inline bool await_all(const CudaCommon& common, const CudaAwait& await) {
  __shared__ int given_up;
  if (threadIdx.x == 0) given_up = common.shape.num_ranks;
  __syncthreads();
  CudaMissing missing;
  for (int peer = threadIdx.x; peer < common.shape.num_ranks && missing.code == 0;
       peer += blockDim.x) {
    missing = await_flag(common, await, peer, given_up);
    if (missing.code != 0) atomicCAS(&given_up, common.shape.num_ranks, peer);
  }
  __syncthreads();
  if (given_up == common.shape.num_ranks) return true;
  if (given_up % blockDim.x == threadIdx.x) {  // this thread was the first to give up
    common.state->broken = 1;
    send_report(common, {.number = await.number,
                         .code = missing.code,
                         .culprit = missing.culprit,
                         .combine = await.combine,
                         .phase = await.phase,
                         .expected = await.value,
                         .seen = missing.seen});
  }
  raise_everywhere(common, common.at.abort_flags, static_cast<std::uint64_t>(Code::kTimeout));
  __syncthreads();
  return false;
}

}  // namespace ferry::internal
