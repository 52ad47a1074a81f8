// CudaExchange: the halves of a combine.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/arguments.h"
#include "cuda/exchange.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"

namespace ferry::internal {

bool CudaExchange::in_window(const Rows& rows) const {
  const auto* data = static_cast<const std::byte*>(rows.data);
  return data >= common_.mine + common_.at.first_buffer && data < common_.mine + common_.at.bytes;
}

Status CudaExchange::combine_send(const cuda::CombineArgs& args, bool and_wait) {
  if (!broken_.ok()) return broken();
  const OnDevice on(device_);
  const Call call = call_on(static_cast<cudaStream_t>(args.stream));
  Status refusal =
      refusal_of({config_, routes_->exchange(), issued_.combine.has_value(), call.capturing}, args);
  if (!refusal.ok() && issued_.combine) return refusal;
  FERRY_CHECK(issued_.combine.has_value(), ==, false);
  CudaCombineView view{};
  view.common = common_;
  view.offset = static_cast<std::int64_t>(
      common_.at.first_output + issued_.combines++ % config_.depth * common_.at.output_bytes);
  view.row_type = args.expert_rows.dtype, view.out_type = args.out_dtype,
  view.hidden = args.expert_rows.hidden;
  view.refused = static_cast<std::int32_t>(refusal.code());
  if (refusal.ok()) {
    view.route = args.handle.route()->view;
    view.weights = args.topk_weights, view.out = static_cast<std::byte*>(args.out);
    for (int i = 0; i < 2; ++i) view.bias[i] = static_cast<const std::byte*>(args.bias[i]);
    const auto* rows = static_cast<const std::byte*>(args.expert_rows.data);
    if (in_window(args.expert_rows)) {
      view.offset = rows - common_.mine;
      FERRY_CHECK(view.offset, >=, static_cast<std::int64_t>(common_.at.first_buffer));
    } else {
      view.staged = rows, view.staged_rows = std::min(args.expert_rows.num_rows, buffer_rows_);
    }
    issued_.combined = args.handle.route();
  }
  if (view.staged != nullptr && config_.depth == 1) {
    if (Status status = await_issued(CudaPhase::kReuse, call); !status.ok()) return status;
  }
  launch_stage(view, config_.depth, processors_, call.stream);
  launch_publish(view, and_wait && !call.in_steps, call.stream);
  order_.issued(CudaPhase::kOutputs);
  issued_.combine = view;
  Status status = ended(call);
  if (status.ok()) status = std::move(refusal);
  // Issues the second half too, so that the operation numbers of all ranks stay equal.
  if (!status.ok()) static_cast<void>(combine_recv(call.stream, and_wait));
  return status;
}

Status CudaExchange::combine_recv(cudaStream_t stream, bool waited) {
  if (!issued_.combine) return {Code::kInvalidArgument, "combine_recv without a combine_send"};
  const OnDevice on(device_);
  const Call call = call_on(stream);
  if (Status status = await_issued(CudaPhase::kOutputs, call); !status.ok()) return status;
  if (!waited || call.in_steps) launch_await_outputs(*issued_.combine, stream);
  launch_reduce(*issued_.combine, stream);
  order_.issued(CudaPhase::kReuse);
  issued_.combine.reset();
  return ended(call);
}

Status CudaExchange::combine(const cuda::CombineArgs& args) {
  Status sent = combine_send(args, true);
  return sent.ok() ? combine_recv(static_cast<cudaStream_t>(args.stream), true) : sent;
}

}  // namespace ferry::internal
