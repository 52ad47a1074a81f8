// The oracle: dispatch and combine as the slow obvious loops of docs/numerics.md, over the inputs
// of all ranks. Every test compares with it bit for bit. It shares no code with the engine but the
// scalar conversions of kernels.h and the public types.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ferry/exchange.h"

namespace ferry::internal {

// What one rank gives to a dispatch.
struct RankInput {
  std::int64_t num_tokens = 0;
  std::vector<std::byte> tokens = {};         // [T, H] dense
  std::vector<std::int64_t> topk_ids = {};    // [T, K]
  std::vector<float> topk_weights = {};       // [T, K], or empty
  std::vector<std::uint8_t> token_mask = {};  // [T], or empty
  std::vector<std::uint8_t> topk_mask = {};   // [T, K], or empty
  // DispatchArgs::scales, [factor_rows, factor_channels], or empty.
  std::vector<float> factors = {};
  int factor_rows = 0;
  std::int64_t factor_channels = 0;
  std::vector<std::byte> token_scales = {};      // [T, scale_bytes], or empty
  std::vector<std::int32_t> replica_table = {};  // [logical experts], or empty
  // The same for every rank, those outside included; of a rank outside nothing else is read. Empty:
  // all take part.
  std::vector<int> active_ranks = {};
  // Equal for ranks that share memory; given for ranks outside as well. Where it differs,
  // ExchangeConfig::algorithm is not kAuto.
  int node = 0;
  // The groups that the node is in, from the outside in, as many for every rank.
  std::vector<int> outer = {};
};

// Scales beside rows, as struct Scales describes them.
struct ReferenceScales {
  std::vector<std::byte> bytes =
      {};  // those of gap and padding rows, and between columns, are zero
  std::int64_t columns = 0;
  std::int64_t element_bytes = 4;
  std::int64_t row_stride = 0, column_stride = 0, section_stride = 0;
  std::int64_t section_rows = 0;  // kPadded: rows of an expert; else all

  // Where element (row, column) begins.
  std::int64_t offset(std::int64_t row, std::int64_t column) const {
    if (section_rows == 0) return 0;
    return row / section_rows * section_stride + row % section_rows * row_stride +
           column * column_stride;
  }
};

// What one rank must receive; all empty for a rank outside. Elements have the meaning of Received
// and Handle.
struct RankReceived {
  std::int64_t num_rows = 0;
  DataType dtype = DataType::kBf16;
  std::vector<std::byte>
      rows;  // [num_rows, H]; gap and padding rows are zero here, compare them only with zero_gaps
  std::vector<std::uint8_t>
      row_valid;  // [num_rows]: 1 for a received row, 0 for a gap or padding row
  std::vector<std::int32_t> sources;
  std::vector<float> weights;
  std::vector<std::int32_t> topk_ids;
  ReferenceScales scales;
  std::vector<std::int64_t> tokens_per_expert, aligned_tokens_per_expert, expert_offsets;
  std::vector<std::int64_t> running_counts, running_rows_per_rank;
  std::vector<std::int64_t> tokens_per_rank, rows_sent;
};

std::vector<RankReceived> reference_dispatch(const ExchangeConfig& config,
                                             const std::vector<RankInput>& inputs);

// What one rank gives to a combine (its expert side and its token side).
struct RankOutput {
  std::vector<std::byte> expert_rows = {};  // [num_rows, hidden] of row_type, in dispatch order
  std::vector<float> row_weights = {};      // shape of RankReceived::weights, or empty
  bool weighted = false;                    // apply the rank's own topk_weights
  std::array<std::vector<std::byte>, 2> bias = {};  // [T, hidden] of out_type, or empty
  DataType out_type = DataType::kBf16;
  // Of the constant experts, each [constant experts, hidden] of the tokens' type.
  std::vector<std::byte> alpha1 = {}, alpha2 = {}, v = {};
  std::vector<std::byte> shared_output = {};  // [T, hidden] of out_type, or empty
  // ResidualNorm: [T, hidden] and [hidden] of out_type, or empty.
  std::vector<std::byte> residual = {}, gamma = {};
  float epsilon = 1e-6F;
  Partials partials = Partials::kNone;
};

// All empty for a rank outside.
struct RankCombined {
  std::vector<std::byte> out;           // [T, hidden] of out_type
  std::vector<float> out_topk_weights;  // [T, K], when row_weights were given
  std::vector<std::byte> y;             // [T, hidden] of out_type, when a residual was given
  std::vector<float> rstd;              // [T], likewise
};

std::vector<RankCombined> reference_combine(const ExchangeConfig& config,
                                            const std::vector<RankInput>& inputs,
                                            const std::vector<RankOutput>& outputs,
                                            std::int64_t hidden, DataType row_type);

}  // namespace ferry::internal
