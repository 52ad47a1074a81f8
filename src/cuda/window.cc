#include "cuda/window.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/round_up.h"
#include "exchange/configuration.h"
#include "ferry/status.h"

namespace ferry::internal {

namespace {

constexpr std::size_t kUnit =
    256;  // parts of a window begin at multiples of it, as cudaMalloc does

void refuse(const char* name, const std::string& value, const char* need) {
  throw Error(Code::kInvalidArgument,
              fmt::format("{} is {}, an exchange of CUDA ranks needs {}", name, value, need));
}

void require_zero(const char* name, std::int64_t value) {
  if (value != 0) refuse(name, std::to_string(value), "0");
}

// The next free offset of something that grows.
class Offsets {
 public:
  std::size_t take(std::uint64_t bytes) {
    const std::size_t at = end_;
    end_ += round_up(static_cast<std::size_t>(bytes), kUnit);
    return at;
  }
  std::size_t end() const noexcept { return end_; }

 private:
  std::size_t end_ = 0;
};

void lay_out_buffer(const CudaShape& shape, std::int64_t rows, CudaWindow& window) {
  Offsets at;
  window.buffer.rows = at.take(rows * shape.row_bytes);
  window.buffer.scales = at.take(rows * shape.scale_columns * 4);
  window.buffer.sources = at.take(rows * 3 * sizeof(std::int32_t));
  const std::int64_t entries = shape.rank_major() ? shape.top_k : 1;
  window.buffer.weights = at.take(rows * entries * sizeof(float));
  window.buffer.topk_ids = at.take(shape.rank_major() ? rows * entries * sizeof(std::int32_t) : 0);
  window.buffer.bytes = at.end();
}

std::int64_t scale_columns(const ExchangeConfig& config) {
  const std::int64_t groups = (config.hidden + 127) / 128;
  if (config.wire == Wire::kNone) return 0;
  return config.wire == Wire::kFp8Ue8m0 ? (groups + 3) / 4 : groups;
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
  shape.row_bytes = config.hidden * static_cast<std::int64_t>(element_bytes(shape.wire_dtype()));
  shape.scale_columns = scale_columns(config), shape.zero_gaps = config.zero_gaps;
  shape.row_capacity = config.row_capacity;
  if (shape.row_capacity > 0) return shape;
  const std::int64_t tokens = config.max_tokens * shape.num_ranks;
  const std::int64_t per_token = shape.rank_major() ? 1 : config.top_k;
  const std::int64_t gaps =
      shape.rank_major() ? 0 : map.max_num_local() * (config.expert_alignment - 1);
  shape.row_capacity = tokens * per_token + gaps;
  return shape;
}

std::int64_t cuda_buffer_rows(const CudaShape& shape, const ExpertMap& map) {
  return shape.layout == Layout::kPadded ? map.max_num_local() * shape.expert_capacity
                                         : shape.row_capacity;
}

CudaWindow cuda_window(const ExchangeConfig& config, const CudaShape& shape, const ExpertMap& map) {
  const auto ranks = static_cast<std::size_t>(shape.num_ranks);
  const std::int64_t rows = cuda_buffer_rows(shape, map);
  CudaWindow window{};
  Offsets at;
  for (std::size_t* flags : {&window.counts_flags, &window.rows_flags, &window.outputs_flags,
                             &window.done_flags, &window.abort_flags})
    *flags = at.take(ranks * sizeof(std::uint64_t));
  for (int odd = 0; odd < 2; ++odd) {
    window.count_records[odd] = at.take(ranks * sizeof(CudaCountRecord));
    window.output_records[odd] = at.take(ranks * sizeof(CudaOutputRecord));
    window.counts[odd] = at.take(ranks * shape.count_row_size() * sizeof(std::int32_t));
  }
  lay_out_buffer(shape, rows, window);
  window.first_buffer = at.take(config.depth * window.buffer.bytes);
  window.output_bytes =
      round_up(static_cast<std::size_t>(rows * config.max_output_row_bytes), kUnit);
  window.first_output = at.take(config.depth * window.output_bytes);
  window.bytes = at.end();
  return window;
}

}  // namespace ferry::internal
