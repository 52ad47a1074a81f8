// The built-in names of kernels, and a launch, for CUDA sources that the compiler of the host
// compiles after translate.py. It has only the names that src/cuda uses.
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <type_traits>

// The threads of a block are fibers of one thread of the host.
#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)

extern constinit thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace ferry::emulator {

struct Launch {
  unsigned grid = 1, block = 1;
  std::size_t shared_bytes = 0;
};

// runtime.cc. Puts a kernel on a stream; `thread` is the body of each of its threads.
void issue(const Launch& launch, cudaStream_t stream, std::function<void()> thread);

// block.cc. Runs all blocks, one after the other.
void run_grid(const Launch& launch, const std::function<void()>& thread);

// kernel<<<grid, block, shared_bytes, stream>>>(arguments) is launch(kernel, grid, ..)(arguments).
template <typename Kernel>
auto launch(Kernel kernel, std::int64_t grid, std::int64_t block, std::size_t shared_bytes = 0,
            cudaStream_t stream = nullptr) {
  const Launch shape{static_cast<unsigned>(grid), static_cast<unsigned>(block), shared_bytes};
  return [=](auto... arguments) { issue(shape, stream, [=] { kernel(arguments...); }); };
}

// block.cc. The threads of a kernel call these.
void meet_block(const std::source_location& place);
struct WarpValues {
  const std::uint64_t* of_lane;
  unsigned lanes;  // that gave a value
};
// Waits for the lanes of `mask`. The values are valid until this lane calls it once more.
WarpValues meet_warp(unsigned mask, std::uint64_t value, const std::source_location& place);
void let_others_run();
std::byte* shared_bytes();

inline unsigned lane() { return threadIdx.x % 32; }

template <typename T>
std::uint64_t to_bits(T value) {
  static_assert(sizeof value <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <typename T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// `combine` of the values of all lanes.
template <typename T, typename Combine>
T reduce_lanes(const WarpValues& values, T first, Combine combine) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (values.lanes >> lane & 1) first = combine(first, from_bits<T>(values.of_lane[lane]));
  }
  return first;
}

// Replacements of assembly (translate.py). A thread that reads a flag repeatedly waits for others.
template <typename T>
void load_acquire(T& value, const T* from) {
  let_others_run();
  value = std::atomic_ref(*const_cast<T*>(from)).load(std::memory_order_acquire);
}
template <typename T>
void store_release(T* to, T value) {
  std::atomic_ref(*to).store(value, std::memory_order_release);
}
inline void read_clock(std::int64_t& now) {
  now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace ferry::emulator

// ---- the names of CUDA

using Place = std::source_location;

inline void __syncthreads(const Place& place = Place::current()) {
  ferry::emulator::meet_block(place);
}
inline void __syncwarp(unsigned mask = ~0U, const Place& place = Place::current()) {
  ferry::emulator::meet_warp(mask, 0, place);
}
inline unsigned __ballot_sync(unsigned mask, bool vote, const Place& place = Place::current()) {
  const auto votes = ferry::emulator::meet_warp(mask, vote ? 1 : 0, place);
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((votes.lanes >> lane & 1) && votes.of_lane[lane] != 0) result |= 1U << lane;
  }
  return result;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int from, const Place& place = Place::current()) {
  const auto values = ferry::emulator::meet_warp(mask, ferry::emulator::to_bits(value), place);
  return ferry::emulator::from_bits<T>(values.of_lane[from % 32]);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, const Place& place = Place::current()) {
  const unsigned lane = ferry::emulator::lane();
  return __shfl_sync(mask, value, static_cast<int>(lane < by ? lane : lane - by), place);
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value, const Place& place = Place::current()) {
  const auto values = ferry::emulator::meet_warp(mask, ferry::emulator::to_bits(value), place);
  return ferry::emulator::reduce_lanes(values, value, [](T a, T b) { return a > b ? a : b; });
}
template <typename T>
T __reduce_add_sync(unsigned mask, T value, const Place& place = Place::current()) {
  const auto values = ferry::emulator::meet_warp(mask, ferry::emulator::to_bits(value), place);
  return ferry::emulator::reduce_lanes(values, T{}, [](T a, T b) { return a + b; });
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, const Place& place = Place::current()) {
  const std::uint64_t bits = ferry::emulator::to_bits(value);
  const auto values = ferry::emulator::meet_warp(mask, bits, place);
  unsigned same = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((values.lanes >> lane & 1) && values.of_lane[lane] == bits) same |= 1U << lane;
  }
  return same;
}

inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) {
  return std::min<std::common_type_t<A, B>>(a, b);
}
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) {
  return std::max<std::common_type_t<A, B>>(a, b);
}

// Relaxed, as on the device.
template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return std::atomic_ref(*at).fetch_add(value, std::memory_order_relaxed);
}
template <typename T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref(*at).compare_exchange_strong(expected, value, std::memory_order_relaxed);
  return expected;
}
template <typename T, typename Choose>
T atomic_choose(T* at, T value, Choose choose) {
  T before = std::atomic_ref(*at).load(std::memory_order_relaxed);
  while (!std::atomic_ref(*at).compare_exchange_weak(before, choose(before, value),
                                                     std::memory_order_relaxed)) {
  }
  return before;
}
template <typename T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return atomic_choose(at, value, [](T a, T b) { return b < a ? b : a; });
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return atomic_choose(at, value, [](T a, T b) { return a < b ? b : a; });
}

// A fence of every kind orders both earlier and later accesses, as the fences of the device do.
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __nanosleep(unsigned) { ferry::emulator::let_others_run(); }

template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}

template <typename... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Parameters...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
