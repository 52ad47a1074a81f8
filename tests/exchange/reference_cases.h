// Small exchanges of one element per row, for tests of the oracle with results worked out by hand.
#pragma once

#include <cstring>
#include <span>

#include "oracle/reference.h"

namespace ferry::internal {

inline std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

inline std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;
using Ints = std::vector<std::int32_t>;

// Two ranks, three experts: 0 and 1 on rank 0, 2 on rank 1. Rank 0 has two tokens of one element,
// rank 1 has one.
inline ExchangeConfig small_config(Layout layout) {
  ExchangeConfig config;
  config.max_tokens = 2;
  config.hidden = 1;
  config.num_experts = 3;
  config.top_k = 2;
  config.dtype = DataType::kFp32;
  config.layout = layout;
  return config;
}

// One token of one element for each given id row, {first, first + 1, ...}; weights are 2.
inline RankInput tokens(float first, int top_k, const Ids& ids) {
  RankInput input{.num_tokens = static_cast<std::int64_t>(ids.size()) / top_k, .topk_ids = ids};
  Floats values(input.num_tokens, first);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += static_cast<float>(i);
  input.tokens = bytes_of(values);
  input.topk_weights.assign(ids.size(), 2.0F);
  return input;
}

inline ExchangeConfig config_of(int num_experts, int top_k, Layout layout = Layout::kExpertMajor) {
  ExchangeConfig config = small_config(layout);
  config.max_tokens = 8;
  config.num_experts = num_experts;
  config.top_k = top_k;
  return config;
}

// What one element of fp32 each of `values` gives as expert rows.
inline RankOutput rows(const Floats& values) {
  return {.expert_rows = bytes_of(values), .out_type = DataType::kFp32};
}

}  // namespace ferry::internal
