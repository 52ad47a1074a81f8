// How kernels of different ranks speak: flags in each other's windows, and the one wait. One block
// of a kernel waits at most, and before it waits its rank has told the others what they wait for:
// so two ranks never wait for each other. Used by *_kernels.cu.
#pragma once

#include <algorithm>

#include "cuda/views.h"
#include "ferry/status.h"

namespace ferry::internal {

// What the writer of a flag wrote before is visible afterwards. Partner: store_release.
__device__ inline std::uint64_t load_acquire(const std::uint64_t* flag) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

// What this thread wrote before, and what it saw of others (a barrier, a ticket), goes ahead of it.
// `near`: the reader is a kernel of this process on this device; the rest of the machine is spared.
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

// Of the values of this lane and those below. All lanes of the warp.
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

// Raises my flag in the window of every rank. All threads of the block; what they wrote before goes
// ahead of it.
__device__ inline void raise_everywhere(const CudaCommon& common, std::size_t flags,
                                        std::uint64_t value) {
  __syncthreads();
  for (int peer = threadIdx.x; peer < common.shape.num_ranks; peer += blockDim.x)
    store_release(in_window<std::uint64_t>(common.windows[peer], flags) + common.shape.rank, value,
                  common.all_near);
}

// True in the last block of the kernel that gets here: what all blocks wrote before is visible to
// it. All threads of the block.
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

// The host looks at `sequence` first. One thread.
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

// Of a block that waits: one for each rank, as far as a block goes.
inline int waiting_threads(const CudaShape& shape) {
  return std::min(1024, round_up(shape.num_ranks, kWarp));
}

struct CudaAwait {
  std::size_t flags;  // offset in my window
  std::uint64_t value;
  CudaPhase phase;
  std::uint64_t number;
  std::int32_t combine;
};

// What ended a wait.
struct CudaMissing {
  std::int32_t code = 0, culprit = -1;
  std::uint64_t seen = 0;
};

// One thread waits for the flag of one rank; ends early once `given_up` is set by another thread.
__device__ inline CudaMissing await_flag(const CudaCommon& common, const CudaAwait& await, int peer,
                                         const volatile int& given_up) {
  const std::uint64_t* flag = in_window<std::uint64_t>(common.mine, await.flags) + peer;
  const std::uint64_t* abort = in_window<std::uint64_t>(common.mine, common.at.abort_flags) + peer;
  const std::int64_t begin = clock_ns();
  for (int turns = 0;; ++turns) {
    if (load_acquire(flag) >= await.value) return {};
    if (turns % 64 != 63) continue;
    // A rank raises its flags before it leaves, so the flag is looked at once more.
    const std::uint64_t left = load_acquire(abort);
    const std::uint64_t seen = load_acquire(flag);
    if (seen >= await.value) return {};
    if (left != 0) {
      const bool closed = left == static_cast<std::uint64_t>(Code::kClosed);
      return {static_cast<std::int32_t>(closed ? Code::kPeerLost : Code::kBroken), peer, seen};
    }
    const std::int64_t waited = clock_ns() - begin;
    if (waited > common.deadline_ns) return {static_cast<std::int32_t>(Code::kTimeout), peer, seen};
    if (given_up < common.shape.num_ranks)
      return {static_cast<std::int32_t>(Code::kBroken), peer, seen};
    // A read of host memory takes about a microsecond, so it is read once in a while.
    if (turns % 4096 == 4095 && common.host_abort[0] != 0)
      return {common.host_abort[0], common.host_abort[1], seen};
    if (waited > 100'000) __nanosleep(500);
  }
}

// Waits until every rank's flag here has reached a value. All threads of the block. False: the
// exchange is broken, on the other ranks too as soon as they wait for this one, and the host told.
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
  if (given_up % blockDim.x == threadIdx.x) {  // the first that gave up
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
