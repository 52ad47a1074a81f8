// CudaExchange: the halves of a dispatch.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "base/check.h"
#include "cuda/arguments.h"
#include "cuda/exchange.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"

namespace ferry::internal {

Status CudaExchange::dispatch_send(const cuda::DispatchArgs& args, bool and_wait,
                                   cuda::Received& received) {
  received = {};
  if (!broken_.ok()) return broken();
  const OnDevice on(device_);
  const Call call = call_on(static_cast<cudaStream_t>(args.stream));
  Status refusal = refusal_of(
      {config_, routes_->exchange(), issued_.dispatch.has_value(), call.capturing}, args);
  if (!refusal.ok() && issued_.dispatch) return refusal;  // no new operation
  const bool wait = args.wait_for_counts && !args.cached && !call.capturing;
  std::shared_ptr<CudaRoute> route =
      args.cached && refusal.ok() ? args.cached.route() : routes_->take();
  CudaDispatchView view{};
  view.common = common_;
  view.buffer = static_cast<int>(issued_.dispatches++ % config_.depth);
  view.cached = static_cast<bool>(args.cached) || !refusal.ok();
  view.refused = static_cast<std::int32_t>(refusal.code());
  if (refusal.ok()) {
    if (!args.cached) route->view.num_tokens = args.topk_ids.num_tokens;
    view.tokens = static_cast<const std::byte*>(args.tokens.data),
    view.pitch_bytes = row_pitch(args.tokens);
    view.ids = args.topk_ids.data, view.wide_ids = args.topk_ids.type == IndexType::kInt64;
    view.weights = args.topk_weights;
  } else {
    route->view.num_tokens = 0;
  }
  view.route = route->view;
  route->ticket = args.cached ? route->ticket : call.capturing ? 0 : ++issued_.tickets;
  view.ticket = args.cached ? 0 : route->ticket;
  launch_count(view, !call.in_steps, call.stream);
  order_.issued(CudaPhase::kCounts);
  if (Status status = await_issued(CudaPhase::kCounts, call); !status.ok()) return status;
  if (call.in_steps) launch_place(view, call.stream);
  launch_send(view, and_wait && !call.in_steps, call.stream);
  order_.issued(CudaPhase::kRows);
  issued_.dispatch = view, issued_.dispatched = route;
  Status status = ended(call);
  if (status.ok()) status = std::move(refusal);
  if (status.ok() && wait) status = await_counts(*route, call.stream);
  if (!status.ok()) {  // the second half too, so that the operation numbers of all ranks stay equal
    static_cast<void>(dispatch_recv(call.stream, and_wait));
    return status;
  }
  received.handle = cuda::Handle(route);
  show(view, received);
  return {};
}

// Waits for the counts that the device writes for the host. The kernels end by their deadline, and
// this wait ends with them, or when the device fails.
Status CudaExchange::await_counts(const CudaRoute& route, cudaStream_t stream) {
  for (std::uint64_t turns = 0; !route.known(); ++turns) {
    if (turns % 1024 != 1023) continue;
    const cudaError_t error = cudaStreamQuery(stream);
    if (error == cudaSuccess && route.known()) break;  // the counts came after the loop read them
    if (error == cudaErrorNotReady || (error == cudaSuccess && turns < (1U << 20))) {
      if (turns > (1U << 16)) std::this_thread::sleep_for(std::chrono::microseconds(50));
      continue;
    }
    broken_ = {Code::kSystem,
               error == cudaSuccess
                   ? "the kernel of a dispatch ended without its counts"
                   : fmt::format("the device failed: {}", cudaGetErrorString(error))};
    return broken_;
  }
  if (route.view.host->code == 0) return {};
  const Status status = check();
  return status.ok() ? Status(Code::kBroken, "a dispatch ended without a report") : status;
}

void CudaExchange::show(const CudaDispatchView& view, cuda::Received& received) const {
  const CudaShape& shape = common_.shape;
  FERRY_CHECK(view.buffer, >=, 0);
  FERRY_CHECK(view.buffer, <, config_.depth);
  FERRY_CHECK(received.handle.num_rows(), <=, buffer_rows_);
  std::byte* buffer =
      common_.mine + common_.at.first_buffer + view.buffer * common_.at.buffer.bytes;
  received.data = buffer + common_.at.buffer.rows;
  const std::int64_t known = received.handle.num_rows();
  received.num_rows = known >= 0 ? known : buffer_rows_;
  received.hidden = config_.hidden, received.dtype = shape.wire_dtype();
  received.sources = reinterpret_cast<const std::int32_t*>(buffer + common_.at.buffer.sources);
  if (view.weights != nullptr)
    received.weights = reinterpret_cast<const float*>(buffer + common_.at.buffer.weights);
  if (shape.rank_major())
    received.topk_ids = reinterpret_cast<const std::int32_t*>(buffer + common_.at.buffer.topk_ids);
  received.scale_columns = shape.scale_columns;
  if (shape.scale_columns > 0) received.scales = buffer + common_.at.buffer.scales;
}

Status CudaExchange::dispatch(const cuda::DispatchArgs& args, cuda::Received& received) {
  Status sent = dispatch_send(args, true, received);
  return sent.ok() ? dispatch_recv(static_cast<cudaStream_t>(args.stream), true) : sent;
}

Status CudaExchange::dispatch_recv(cudaStream_t stream, bool waited) {
  if (!broken_.ok()) return broken();
  if (!issued_.dispatch) return {Code::kInvalidArgument, "dispatch_recv without a dispatch_send"};
  const OnDevice on(device_);
  const Call call = call_on(stream);
  if (Status status = await_issued(CudaPhase::kRows, call); !status.ok()) return status;
  if (!waited || call.in_steps) launch_receive(*issued_.dispatch, stream);
  launch_gaps(*issued_.dispatch, num_local_, stream);
  issued_.dispatch.reset();
  return ended(call);
}

}  // namespace ferry::internal
