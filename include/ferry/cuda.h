// CUDA ranks: dispatch and combine where tokens, received rows and results are in device memory.
//
//   ferry::cuda::Exchange exchange(group, config, device);
//   ferry::cuda::Received received;
//   exchange.dispatch({.tokens = ..., .topk_ids = ..., .stream = stream}, received);
//   (run the experts on received.rows(), on the same stream)
//   exchange.combine({.handle = received.handle, .expert_rows = ..., .topk_weights = ...,
//                     .out = ..., .stream = stream});
//
// The order of rows, the arithmetic and the results equal those of ferry::Exchange, bit for bit.
// Shapes use T tokens of this rank, H hidden, K top-k, E experts, R ranks, L experts of this rank.
// Ranks are threads or processes of one host, on one GPU or on GPUs that can read each other's
// memory. Every pointer of these structs is memory that the device can use. docs/cuda.md has the
// limits and the reasons.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "ferry/exchange.h"

namespace ferry::internal {
class CudaExchange;
struct CudaRoute;
}  // namespace ferry::internal

namespace ferry::cuda {

// A cudaStream_t; null is the legacy default stream.
using Stream = void*;

// True when this ferry was built with CUDA; and the number of devices here, 0 without a driver.
FERRY_EXPORT bool built() noexcept;
FERRY_EXPORT int num_devices() noexcept;

// The routing of a dispatch. Valid until freed, for any number of combines and cached dispatches of
// its exchange. Free it once all work that uses it was issued on its stream.
class FERRY_EXPORT Handle {
 public:
  Handle() = default;
  explicit operator bool() const noexcept { return route_ != nullptr; }

  std::int64_t num_tokens() const noexcept;
  // Rows received, gaps and padding included. -1 while the host does not know the number: the
  // dispatch did not wait for counts, and its kernels have not written them yet.
  std::int64_t num_rows() const noexcept;
  // [L], copies on the host; empty while num_rows() is -1.
  std::span<const std::int64_t> tokens_per_expert() const noexcept;
  std::span<const std::int64_t> aligned_tokens_per_expert() const noexcept;

  // The same counts as in ferry::Handle, in device memory. The dispatch writes them.
  const std::int64_t* device_tokens_per_expert() const noexcept;          // [L]
  const std::int64_t* device_aligned_tokens_per_expert() const noexcept;  // [L]
  const std::int64_t* device_expert_offsets() const noexcept;             // [L + 1]
  const std::int64_t* device_running_counts() const noexcept;             // [L, R]
  const std::int64_t* device_running_rows_per_rank() const noexcept;      // [R]

  const std::shared_ptr<internal::CudaRoute>& route() const noexcept { return route_; }
  explicit Handle(std::shared_ptr<internal::CudaRoute> route) : route_(std::move(route)) {}

 private:
  std::shared_ptr<internal::CudaRoute> route_;
};

struct DispatchArgs {
  Rows tokens = {};       // [T, H]
  TopkIds topk_ids = {};  // [T, K]; leave empty when `cached` is given
  // [T, K]; given by all ranks or by none: a rank without tokens gives any address.
  const float* topk_weights = nullptr;
  Handle cached = {};  // reuse this routing: no ids, no counts, same slots
  // Waits on the host until the number of rows is known, which most consumers need, and returns
  // this dispatch's errors. False, and always with `cached`: only issues the work, as graph capture
  // needs; the next check() returns errors.
  bool wait_for_counts = true;
  Stream stream = nullptr;
};

// Rows received, in the exchange's window: valid until the `depth`-th dispatch after this one
// (ExchangeConfig::depth), whose rows take their place. Rows and metadata as in ferry::Received.
struct Received {
  void* data = nullptr;  // [num_rows, H], dense; kPadded: [L, C, H]
  // Gaps and padding included. If the host did not wait for counts, the largest possible number.
  std::int64_t num_rows = 0;
  std::int64_t hidden = 0;
  DataType dtype = DataType::kBf16;       // the type of the wire
  const std::int32_t* sources = nullptr;  // [num_rows, 3]: source rank, token, k
  // [num_rows], kRankMajor [num_rows, K]; null where no topk_weights were given.
  const float* weights = nullptr;
  const std::int32_t* topk_ids = nullptr;  // kRankMajor [num_rows, K], else null
  // Fp8 wires: [num_rows, scale_columns] of 4 bytes, dense; null otherwise.
  const void* scales = nullptr;
  std::int64_t scale_columns = 0;
  Handle handle = {};

  Rows rows() const noexcept { return {data, num_rows, hidden, dtype, 0}; }
};

// out[t] = bias[0][t] + bias[1][t] + sum over k ascending of w[t,k] * expert row of (t,k), in
// float32, rounded once. kRankMajor adds the caller's rows over ranks ascending, unweighted.
struct CombineArgs {
  Handle handle = {};
  // [handle rows, H'], dense, in dispatch order. Read in place where they lie in the window (in
  // received rows, or at outputs()); other rows are copied there first.
  Rows expert_rows = {};
  const float* topk_weights = nullptr;  // [T, K]; null: plain sum; kRankMajor: null
  std::array<const void*, 2> bias = {nullptr, nullptr};  // [T, H'] dense, type of out
  void* out = nullptr;                                   // [T, H'] dense, written here
  DataType out_dtype = DataType::kBf16;
  Stream stream = nullptr;
};

// One caller at a time. Every dispatch and combine is collective: the same order on every rank. The
// calls of one exchange are made on one stream, or on streams that wait for each other.
class FERRY_EXPORT Exchange {
 public:
  Exchange() = default;
  // Collective. `device` is this rank's. Layouts, wires none and fp8, alignment, zero_gaps,
  // capacities, expert_rank and depth of the configuration are supported; kInvalidArgument names a
  // setting that CUDA does not support. All memory is allocated here: row_capacity 0 means every
  // token of every rank, max_output_row_bytes 0 a row of the tokens' type. Throws Error on all
  // ranks when one of them refuses, two differ, memory is refused or a device cannot access
  // another.
  Exchange(const Group& group, const ExchangeConfig& config, int device);

  [[nodiscard]] Status dispatch(const DispatchArgs& args, Received& received) noexcept;
  [[nodiscard]] Status combine(const CombineArgs& args) noexcept;

  // Halves: send issues the work that needs no row of another rank, recv the rest. They may use
  // different streams, if that of recv waits for that of send. One dispatch and one combine may be
  // between their halves. A send that returns an error ends the operation: no recv follows.
  [[nodiscard]] Status dispatch_send(const DispatchArgs& args, Received& received) noexcept;
  [[nodiscard]] Status dispatch_recv(Stream stream) noexcept;
  [[nodiscard]] Status combine_send(const CombineArgs& args) noexcept;
  [[nodiscard]] Status combine_recv(Stream stream) noexcept;

  // Rows of the window for the outputs of the next combine, which then need no copy: [row capacity,
  // max_output_row_bytes]. With a depth of 2 or more they may be written, in the order of the
  // stream, once the receive half of the combine before was issued (docs/cuda.md).
  void* outputs() const;

  // The latest error that kernels have reported since the last check, or none. Does not wait
  // for kernels. After a rejected call, a mismatch or a lack of capacity, all ranks get the error
  // and the exchange stays usable. After a rank died, departed or missed the group's deadline, the
  // exchange stays broken.
  [[nodiscard]] Status check() noexcept;
  // Waits for the work that was issued, then does what check() does.
  [[nodiscard]] Status finish() noexcept;

  const ExchangeConfig& config() const;
  int device() const;
  int num_local_experts() const;       // L
  std::int64_t row_capacity() const;   // rows that this rank can receive
  std::uint64_t device_bytes() const;  // device memory of this rank's window
  // True when another rank is a thread of this process and uses this device: calls then wait on the
  // host until that rank has made its call (docs/cuda.md).
  bool shares_device() const;

 private:
  std::shared_ptr<internal::CudaExchange> state_;
};

}  // namespace ferry::cuda
