#include "cuda/arguments.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/route.h"
#include "ferry/status.h"

namespace ferry::internal {

namespace {

// Empty when a kernel may use the pointer.
std::string misplaced(const char* name, const void* pointer) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    cudaGetLastError();
  } else if (attributes.type != cudaMemoryTypeUnregistered) {
    return {};
  }
  return fmt::format("{} is at {}, which is not memory that a device can use", name, pointer);
}

Status invalid(std::string text) { return {Code::kInvalidArgument, std::move(text)}; }

}  // namespace

std::int64_t row_pitch(const Rows& rows) {
  const std::int64_t dense = rows.hidden * static_cast<std::int64_t>(element_bytes(rows.dtype));
  return rows.pitch_bytes == 0 ? dense : rows.pitch_bytes;
}

Status refusal_of(const CudaCall& call, const cuda::DispatchArgs& args) {
  const Rows& tokens = args.tokens;
  if (args.cached && args.cached.route()->exchange != call.exchange)
    return invalid("the handle is of another exchange");
  const std::int64_t num_tokens = args.cached ? args.cached.num_tokens() : args.topk_ids.num_tokens;
  if (tokens.num_rows != num_tokens)
    return invalid(fmt::format("tokens have {} rows, {} has {}", tokens.num_rows,
                               args.cached ? "the handle" : "topk_ids", num_tokens));
  if (num_tokens < 0 || num_tokens > call.config.max_tokens)
    return invalid(
        fmt::format("{} tokens, need 0 to max_tokens {}", num_tokens, call.config.max_tokens));
  if (!args.cached && args.topk_ids.top_k != call.config.top_k)
    return invalid(fmt::format("topk_ids have {} columns, top_k is {}", args.topk_ids.top_k,
                               call.config.top_k));
  if (num_tokens > 0 && (tokens.hidden != call.config.hidden || tokens.dtype != call.config.dtype))
    return invalid(fmt::format("tokens are {} [.., {}], the exchange has {} [.., {}]",
                               data_type_name(tokens.dtype), tokens.hidden,
                               data_type_name(call.config.dtype), call.config.hidden));
  if (num_tokens > 0 &&
      row_pitch(tokens) <
          call.config.hidden * static_cast<std::int64_t>(element_bytes(call.config.dtype)))
    return invalid(
        fmt::format("rows of tokens are {} bytes apart, less than a row", row_pitch(tokens)));
  if (call.capturing && args.wait_for_counts && !args.cached)
    return invalid(
        "a stream that captures a graph cannot wait for counts on the host: wait_for_counts is "
        "true");
  if (call.between_halves) return invalid("the dispatch before has no dispatch_recv yet");
  std::string wrong = num_tokens > 0 ? misplaced("tokens", tokens.data) : "";
  if (wrong.empty() && num_tokens > 0 && !args.cached)
    wrong = misplaced("topk_ids", args.topk_ids.data);
  if (wrong.empty() && num_tokens > 0 && args.topk_weights)
    wrong = misplaced("topk_weights", args.topk_weights);
  return wrong.empty() ? Status() : invalid(wrong);
}

Status refusal_of(const CudaCall& call, const cuda::CombineArgs& args) {
  if (!args.handle || args.handle.route()->exchange != call.exchange)
    return invalid(args.handle ? "the handle is of another exchange" : "combine needs a handle");
  const Rows& rows = args.expert_rows;
  if (rows.dtype > DataType::kFp32 || args.out_dtype > DataType::kFp32)
    return invalid(fmt::format("combine takes and gives bf16, fp16 or fp32, not {} and {}",
                               data_type_name(rows.dtype), data_type_name(args.out_dtype)));
  const auto element = static_cast<std::int64_t>(element_bytes(rows.dtype));
  if (rows.hidden < 1 || rows.hidden * element > call.config.max_output_row_bytes)
    return invalid(
        fmt::format("rows of experts have {} elements of {} bytes, max_output_row_bytes is {}",
                    rows.hidden, element, call.config.max_output_row_bytes));
  if (row_pitch(rows) != rows.hidden * element) return invalid("rows of experts must be dense");
  const std::int64_t known = args.handle.num_rows();
  if (known >= 0 && rows.num_rows < known)
    return invalid(
        fmt::format("{} rows of experts, the dispatch received {}", rows.num_rows, known));
  if (known < 0 && rows.num_rows < 0)
    return invalid(fmt::format("{} rows of experts", rows.num_rows));
  if (args.topk_weights != nullptr && call.config.layout == Layout::kRankMajor)
    return invalid(
        "topk_weights are given, but rank_major combines rows that are weighted already");
  if (call.between_halves) return invalid("the combine before has no combine_recv yet");
  std::string wrong = rows.num_rows > 0 ? misplaced("expert_rows", rows.data) : "";
  if (args.handle.num_tokens() == 0) return wrong.empty() ? Status() : invalid(wrong);
  if (wrong.empty()) wrong = misplaced("out", args.out);
  if (wrong.empty() && args.topk_weights) wrong = misplaced("topk_weights", args.topk_weights);
  for (const void* bias : args.bias)
    if (wrong.empty() && bias) wrong = misplaced("bias", bias);
  return wrong.empty() ? Status() : invalid(wrong);
}

}  // namespace ferry::internal
