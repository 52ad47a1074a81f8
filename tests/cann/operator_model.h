// CANN's operators as slow loops over the inputs of all ranks, written only from the description of
// the operators. The model shares with ferry the scalar conversions, and the row functions of the
// oracle for fp8, constant experts and the norm. It has its own destinations, order of rows,
// counts, int8, masks, shared ranks and sums.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "ferry/types.h"

namespace ferry::test {

using Bytes = std::vector<std::byte>;

// The inputs of one rank.
struct OperatorInput {
  std::int64_t bs = 0;
  Bytes x = {};                         // (Bs, H)
  std::vector<std::int32_t> ids = {};   // (Bs, K)
  std::vector<std::uint8_t> mask = {};  // (Bs) or (Bs, K), or empty
  int mask_columns = 1;
  std::vector<float> expert_scales = {};  // (Bs, K)
  std::vector<float> token_scales = {};   // (Bs, token_scale_columns)
  Bytes shared_x = {}, residual = {};     // (Bs, H), or empty
};

// One dispatch and combine of all ranks.
struct OperatorCase {
  int version = 4;
  int ep = 1, tp = 1;
  int moe = 1, shared_num = 0, shared_ranks = 0;
  int zero = 0, copy = 0, constant = 0;
  std::int64_t h = 1;
  int k = 1;
  std::int64_t global_bs = 0;
  DataType type = DataType::kBf16;
  int quant_mode = 0, comm_quant_mode = 0, token_nums_type = 1;
  std::vector<float> factors;  // scales of quant modes 1 and 2
  int factor_rows = 0;
  std::int64_t factor_columns = 0;
  int token_scale_columns = 0;
  std::vector<std::int32_t> elastic;
  bool weights_travel = true, plain_sum = false, views = false;
  Bytes alpha1, alpha2, v, gamma;
  float eps = 1e-5F;
  std::uint64_t seed = 0;
  std::vector<OperatorInput> inputs;  // [ep * tp]

  bool norm() const { return !gamma.empty(); }
};

// The outputs of dispatch on one rank.
struct OperatorRows {
  using Source = std::array<int, 3>;  // rank of the group, token, k
  std::vector<Source> sources;
  Bytes rows;
  std::vector<float> scales;
  std::vector<float> weights;
  std::vector<std::int32_t> triplets, expand_idx, ep_counts, tp_counts;
  std::vector<std::int64_t> token_nums;
  bool outside = false;  // elastic_info excludes the rank
};
std::vector<OperatorRows> model_dispatch(const OperatorCase& c);

// The outputs of combine on one rank.
struct OperatorResult {
  Bytes x_out, y_out;
  std::vector<float> rstd;
};
// expert_rows: [ranks][rows, H] of c.type.
std::vector<OperatorResult> model_combine(const OperatorCase& c,
                                          const std::vector<OperatorRows>& dispatched,
                                          const std::vector<Bytes>& expert_rows);

}  // namespace ferry::test
