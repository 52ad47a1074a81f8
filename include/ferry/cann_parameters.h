// The parameters of CANN's MoeDistributeDispatch, MoeDistributeCombine and
// MoeDistributeCombineAddRmsNorm, versions 1 to 4, under the operators' own names in snake_case
// (expandX is expand_x). docs/cann.md has the facts and the differences.
//
// Shapes: Bs tokens of this rank, H hidden, K top-k, ep ranks of the expert-parallel group, localE
// experts of this rank, S shared-expert ranks, A rows that this rank can receive (max_rows).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "ferry/exchange.h"
#include "ferry/types.h"

namespace ferry::cann {

// The caller's dense matrix [rows, columns]; a vector has one column.
template <typename T>
struct Matrix {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 1;
};

// Memory of the caller for dense rows [num_rows, hidden].
struct RowsOut {
  void* data = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t hidden = 0;
  DataType dtype = DataType::kBf16;
};

// Attributes of both operators; all but the two rank ids are equal on all ranks.
struct Attributes {
  // The rule that assigns tokens to shared-expert ranks: 1 is SharedRule::kByToken, 2 to 4 kByRank.
  int version = 4;
  std::string_view group_ep = {};  // the communicator's
  std::int64_t ep_world_size = 0;
  std::int64_t ep_rank_id = 0;
  std::int64_t moe_expert_num = 0;
  std::string_view group_tp = {};  // the communicator's; used when tp_world_size > 1
  std::int64_t tp_world_size = 0;  // 0, 1: no tp; rank = ep_rank_id * tp_world_size + tp_rank_id
  std::int64_t tp_rank_id = 0;
  std::int64_t expert_shard_type = 0;  // 0: the first ranks hold the shared experts
  std::int64_t shared_expert_num = 1;  // ignored when there are no shared-expert ranks
  std::int64_t shared_expert_rank_num = 0;
  // ep times the largest Bs of any rank in any call; 0: all ranks have the same Bs.
  std::int64_t global_bs = 0;
  std::string_view comm_alg = {};  // "", "fullmesh", "fullmesh_v1", "fullmesh_v2", "hierarchy"
  std::int64_t zero_expert_num = 0, copy_expert_num = 0, const_expert_num = 0;
};

struct DispatchArgs {
  Attributes attributes = {};
  std::int64_t quant_mode = 0;  // 0 none, 1 static int8, 2 int8 per row, 3 fp8 per 128 channels
  std::int64_t expert_token_nums_type = 1;  // 0 running sum, 1 counts

  Rows x = {};                                 // (Bs, H)
  Matrix<const std::int32_t> expert_ids = {};  // (Bs, K); -1: not sent
  // quant_mode 1: (1, 1), (1, H) or (shared + moe, 1 or H). 2: the same, or nothing. 0: (Bs, n) of
  // the caller, which are sent with the tokens to dynamic_scales.
  Matrix<const float> scales = {};
  Matrix<const std::uint8_t> x_active_mask = {};    // (Bs) or (Bs, K), any pattern
  Matrix<const float> expert_scales = {};           // (Bs, K): weights that are sent with the rows
  std::span<const std::int32_t> elastic_info = {};  // (4 + 2 * ep)
  // (ep), input and output: the largest wait for each source so far, in microseconds; the caller
  // clears it.
  std::span<std::int64_t> performance_info = {};

  // Outputs; empty ones are not written. One of expand_x and received must be given.
  RowsOut expand_x = {};                                 // (max(tp, 1) * A, H)
  std::span<float> dynamic_scales = {};                  // a row of scales for each row of expand_x
  std::span<std::int32_t> expand_idx = {};               // (Bs * K)
  std::span<std::int32_t> assist_info_for_combine = {};  // (max(tp, 1) * A * 3) or more
  std::span<std::int64_t> expert_token_nums = {};        // (localE); a shared-expert rank: (1)
  std::span<std::int32_t> ep_recv_counts = {};           // (max(tp, 1) * localE * ep)
  std::span<std::int32_t> tp_recv_counts = {};           // (max(tp, 1))
  std::span<float> expand_scales = {};                   // (max(tp, 1) * A)
  // In place of the copy in expand_x: the rows where they arrived, with their metadata.
  Received* received = nullptr;
};

struct CombineArgs {
  Attributes attributes = {};
  std::int64_t comm_quant_mode = 0;  // 0 none, 2 int8 per 8 elements
  std::int64_t out_dtype = 0;        // 0: that of x_out
  std::int64_t group_list_type = 0;  // reserved, ignored

  // In dispatch order; rows past the received ones are not read. Read in place when it is
  // Received::data of the last dispatch.
  Rows expand_x = {};
  Matrix<const std::int32_t> expert_ids = {};  // (Bs, K), as given to dispatch
  // Outputs of dispatch, checked as far as possible; the routing follows from the ids. Without
  // ep_send_counts, expand_x has as many rows as were received.
  std::span<const std::int32_t> expand_idx = {};
  std::span<const std::int32_t> assist_info_for_combine = {};
  std::span<const std::int32_t> ep_send_counts = {};
  std::span<const std::int32_t> tp_send_counts = {};
  Matrix<const float> expert_scales = {};           // (Bs, K); version 4, empty: plain sum
  Matrix<const std::uint8_t> x_active_mask = {};    // as given to dispatch
  std::span<const float> expand_scales = {};        // ignored: weights are applied at the source
  std::span<const std::int32_t> elastic_info = {};  // as given to dispatch
  Rows shared_expert_x = {};                        // (Bs, H), added unweighted
  Rows ori_x = {};                                  // (Bs, H): the tokens of copy, constant experts
  Rows const_expert_alpha1 = {}, const_expert_alpha2 = {}, const_expert_v = {};  // (const, H)
  std::span<std::int64_t> performance_info = {};                                 // as for dispatch
  const void* activation_scale = nullptr;  // these three: reserved, null
  const void* weight_scale = nullptr;
  const void* group_list = nullptr;

  RowsOut x_out = {};  // (Bs, H)
};

// combine, then z = sum + residual_x, x_out = z, y_out = z / rms(z) * gamma.
struct CombineAddRmsNormArgs {
  CombineArgs combine = {};
  Rows residual_x = {};  // (Bs, H), the operator's (Bs, 1, H)
  Rows gamma = {};       // (1, H)
  float norm_eps = 1e-6F;
  RowsOut y_out = {};              // (Bs, H)
  std::span<float> rstd_out = {};  // (Bs); may be empty
};

}  // namespace ferry::cann
