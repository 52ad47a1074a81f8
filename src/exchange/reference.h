// The oracle: dispatch and combine as the slow obvious loops of design 4 and 5, seeing all ranks'
// inputs at once. Every test compares with it bit for bit. It shares no code with the engine but
// the scalar conversions of kernels.h and the public types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ferry/exchange.h"

namespace ferry::internal {

// What one rank gives to a dispatch.
struct RankInput {
  std::int64_t num_tokens = 0;
  std::vector<std::byte> tokens;         // [T, H] dense
  std::vector<std::int64_t> topk_ids;    // [T, K]
  std::vector<float> topk_weights;       // [T, K], or empty
  std::vector<std::uint8_t> token_mask;  // [T], or empty
  std::vector<std::uint8_t> topk_mask;   // [T, K], or empty
};

// What one rank must receive. Elements have the meaning of Received and Handle.
struct RankReceived {
  std::int64_t num_rows = 0;
  std::vector<std::byte>
      rows;  // [num_rows, H]; gap and padding rows are zero here, compare them only with zero_gaps
  std::vector<std::uint8_t>
      row_valid;  // [num_rows]: 1 for a received row, 0 for a gap or padding row
  std::vector<std::int32_t> sources;
  std::vector<float> weights;
  std::vector<std::int32_t> topk_ids;
  std::vector<std::int64_t> tokens_per_expert, aligned_tokens_per_expert, expert_offsets;
  std::vector<std::int64_t> running_counts, running_rows_per_rank;
};

std::vector<RankReceived> reference_dispatch(const ExchangeConfig& config,
                                             const std::vector<RankInput>& inputs);

// What one rank gives to a combine (its expert side and its token side).
struct RankOutput {
  std::vector<std::byte> expert_rows;  // [num_rows, hidden] of row_type, in dispatch order
  std::vector<float> row_weights;      // shape of RankReceived::weights, or empty
  bool weighted = false;               // apply the rank's own topk_weights
  std::vector<std::byte> bias[2];      // [T, hidden] of out_type, or empty
  DataType out_type = DataType::kBf16;
};

struct RankCombined {
  std::vector<std::byte> out;           // [T, hidden] of out_type
  std::vector<float> out_topk_weights;  // [T, K], when row_weights were given
};

std::vector<RankCombined> reference_combine(const ExchangeConfig& config,
                                            const std::vector<RankInput>& inputs,
                                            const std::vector<RankOutput>& outputs,
                                            std::int64_t hidden, DataType row_type);

}  // namespace ferry::internal
