#include "cuda/window.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/round_up.h"
#include "exchange/setup/configuration.h"
#include "ferry/status.h"
#include "kernels/wire_formats.h"
#include "memory/accumulator.h"
#include "memory/window_layout.h"

namespace ferry::internal {

namespace {

constexpr std::size_t kUnit = 256;  // parts begin at multiples, as memory of cudaMalloc does

void refuse(const char* name, const std::string& value, const char* need) {
  throw Error(Code::kInvalidArgument,
              fmt::format("{} is {}, an exchange of CUDA ranks needs {}", name, value, need));
}

void require_zero(const char* name, std::int64_t value) {
  if (value != 0) refuse(name, std::to_string(value), "0");
}

CudaWindow::Buffer lay_out_buffer(const CudaShape& shape) {
  const auto rows = static_cast<std::size_t>(shape.row_capacity);
  const std::size_t entries = shape.rank_major() ? shape.top_k : 1;
  CudaWindow::Buffer buffer{};
  Accumulator at;
  buffer.rows = at.take(checked_mul(rows, shape.row_bytes), kUnit);
  buffer.scales = at.take(checked_mul(rows, shape.scale_columns * 4), kUnit);
  buffer.sources = at.take(checked_mul(rows, 3 * sizeof(std::int32_t)), kUnit);
  buffer.weights = at.take(checked_mul(rows, entries * sizeof(float)), kUnit);
  buffer.topk_ids = at.take(0, kUnit);
  if (shape.rank_major()) at.take(checked_mul(rows, entries * sizeof(std::int32_t)), kUnit);
  buffer.bytes = at.align(kUnit);
  return buffer;
}

}  // namespace

ExchangeConfig cuda_config(const ExchangeConfig& config, int num_ranks) {
  ExchangeConfig c = config;
  if (c.max_output_row_bytes == 0)
    c.max_output_row_bytes = c.hidden * static_cast<std::int64_t>(element_bytes(c.dtype));
  c = complete_config(c, num_ranks);
  if (c.wire == Wire::kInt8 || c.wire == Wire::kInt8Static)
    refuse("wire", wire_name(c.wire), "none, fp8, fp8_pow2 or fp8_ue8m0");
  if (c.combine_wire != CombineWire::kNone)
    refuse("combine_wire", wire_name(c.combine_wire), "none");
  if (c.scale_order != ScaleOrder::kRowMajor) refuse("scale_order", "column-major", "row-major");
  if (c.tp_size != 1) refuse("tp_size", std::to_string(c.tp_size), "1");
  require_zero("scale_bytes", c.scale_bytes);
  require_zero("shared.num_experts", c.shared.num_experts);
  require_zero("the number of special experts", c.special.total());
  require_zero("the number of token_ranks", static_cast<std::int64_t>(c.token_ranks.size()));
  require_zero("the number of expert_ranks", static_cast<std::int64_t>(c.expert_ranks.size()));
  require_zero("the number of replicas", static_cast<std::int64_t>(c.replicas.instances.size()));
  return c;
}

CudaShape cuda_shape(const ExchangeConfig& config, const ExpertMap& map, int rank) {
  CudaShape shape{};
  shape.num_ranks = map.num_members(), shape.rank = rank;
  shape.num_experts = config.num_experts, shape.top_k = config.top_k;
  shape.layout = config.layout, shape.dtype = config.dtype, shape.wire = config.wire;
  shape.hidden = config.hidden, shape.alignment = config.expert_alignment;
  shape.expert_capacity = config.expert_capacity;
  const WireFormat& format = wire_format(config.wire);
  shape.row_bytes = config.hidden * static_cast<std::int64_t>(element_bytes(shape.wire_dtype()));
  shape.scale_columns = format.encode ? format.num_scales(config.hidden) : 0;
  shape.zero_gaps = config.zero_gaps;
  shape.row_capacity = worst_rows(config, map.max_num_local(), shape.num_ranks);
  FERRY_CHECK(map.num_columns(), ==, shape.num_experts);
  FERRY_CHECK(shape.rank, <, shape.num_ranks);
  FERRY_CHECK(shape.row_bytes, >, 0);
  return shape;
}

CudaWindow cuda_window(const ExchangeConfig& config, const CudaShape& shape) {
  const auto ranks = static_cast<std::size_t>(shape.num_ranks);
  CudaWindow window{};
  Accumulator at;
  for (std::size_t* flags : {&window.counts_flags, &window.rows_flags, &window.outputs_flags,
                             &window.done_flags, &window.abort_flags})
    *flags = at.take(ranks * sizeof(std::uint64_t), kUnit);
  const std::size_t counts = checked_mul(ranks, shape.count_row_size() * sizeof(std::int32_t));
  for (int odd = 0; odd < 2; ++odd) {
    window.count_records[odd] = at.take(ranks * sizeof(CudaCountRecord), kUnit);
    window.output_records[odd] = at.take(ranks * sizeof(CudaOutputRecord), kUnit);
    window.counts[odd] = at.take(counts, kUnit);
  }
  window.buffer = lay_out_buffer(shape);
  window.first_buffer = at.take(checked_mul(config.depth, window.buffer.bytes), kUnit);
  window.output_bytes =
      round_up(checked_mul(shape.row_capacity, config.max_output_row_bytes), kUnit);
  window.first_output = at.take(checked_mul(config.depth, window.output_bytes), kUnit);
  window.bytes = at.align(kUnit);
  FERRY_CHECK(window.buffer.bytes % kUnit, ==, 0U);
  FERRY_CHECK(window.output_bytes % kUnit, ==, 0U);
  FERRY_CHECK(window.first_buffer + config.depth * window.buffer.bytes, <=, window.first_output);
  FERRY_CHECK(window.first_output + config.depth * window.output_bytes, <=, window.bytes);
  return window;
}

}  // namespace ferry::internal
