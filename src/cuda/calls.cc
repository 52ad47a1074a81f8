// The public cuda::Exchange and cuda::Handle. No exception leaves a call of the data plane.
#include <cuda_runtime_api.h>

#include "base/round_up.h"
#include "cuda/exchange.h"
#include "exchange/public_calls.h"
#include "ferry/cuda.h"

namespace ferry::cuda {

using internal::CudaExchange;
using internal::guarded;
using internal::made;

bool built() noexcept { return true; }

int num_devices() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::int64_t Handle::num_tokens() const noexcept { return route_ ? route_->view.num_tokens : 0; }

std::int64_t Handle::num_rows() const noexcept {
  return route_ && route_->known() ? route_->view.host->num_rows : -1;
}

std::span<const std::int64_t> Handle::tokens_per_expert() const noexcept {
  if (num_rows() < 0) return {};
  return {route_->view.host_experts, static_cast<std::size_t>(route_->num_local)};
}

std::span<const std::int64_t> Handle::aligned_tokens_per_expert() const noexcept {
  const std::span<const std::int64_t> rows = tokens_per_expert();
  if (route_ && route_->aligned.size() != rows.size()) {
    for (const std::int64_t of_expert : rows)
      route_->aligned.push_back(internal::round_up(of_expert, route_->alignment));
  }
  return route_ ? std::span<const std::int64_t>(route_->aligned) : rows;
}

const std::int64_t* Handle::device_tokens_per_expert() const noexcept {
  return route_ ? route_->view.counts.tokens_per_expert : nullptr;
}
const std::int64_t* Handle::device_aligned_tokens_per_expert() const noexcept {
  return route_ ? route_->view.counts.aligned_tokens_per_expert : nullptr;
}
const std::int64_t* Handle::device_expert_offsets() const noexcept {
  return route_ ? route_->view.counts.expert_offsets : nullptr;
}
const std::int64_t* Handle::device_running_counts() const noexcept {
  return route_ ? route_->view.counts.running_counts : nullptr;
}
const std::int64_t* Handle::device_running_rows_per_rank() const noexcept {
  return route_ ? route_->view.counts.running_rows_per_rank : nullptr;
}

Exchange::Exchange(const Group& group, const ExchangeConfig& config, int device) {
  const internal::Making counted(group.state());
  state_ = std::make_shared<CudaExchange>(group.state(), config, device);
}

Status Exchange::dispatch(const DispatchArgs& args, Received& received) noexcept {
  return guarded(state_, [&](CudaExchange& state) { return state.dispatch(args, received); });
}

Status Exchange::dispatch_send(const DispatchArgs& args, Received& received) noexcept {
  return guarded(state_,
                 [&](CudaExchange& state) { return state.dispatch_send(args, false, received); });
}

Status Exchange::dispatch_recv(Stream stream) noexcept {
  return guarded(state_, [&](CudaExchange& state) {
    return state.dispatch_recv(static_cast<cudaStream_t>(stream), false);
  });
}

Status Exchange::combine(const CombineArgs& args) noexcept {
  return guarded(state_, [&](CudaExchange& state) { return state.combine(args); });
}

Status Exchange::combine_send(const CombineArgs& args) noexcept {
  return guarded(state_, [&](CudaExchange& state) { return state.combine_send(args, false); });
}

Status Exchange::combine_recv(Stream stream) noexcept {
  return guarded(state_, [&](CudaExchange& state) {
    return state.combine_recv(static_cast<cudaStream_t>(stream), false);
  });
}

void* Exchange::outputs() const { return made(state_).outputs(); }
Status Exchange::check() noexcept {
  return guarded(state_, [](CudaExchange& state) { return state.check(); });
}
Status Exchange::finish() noexcept {
  return guarded(state_, [](CudaExchange& state) { return state.finish(); });
}
const ExchangeConfig& Exchange::config() const { return made(state_).config(); }
int Exchange::device() const { return made(state_).device(); }
int Exchange::num_local_experts() const { return made(state_).num_local(); }
std::int64_t Exchange::row_capacity() const { return made(state_).buffer_rows(); }
std::uint64_t Exchange::device_bytes() const { return made(state_).window_bytes(); }
bool Exchange::shares_device() const { return made(state_).shares_device(); }

}  // namespace ferry::cuda
