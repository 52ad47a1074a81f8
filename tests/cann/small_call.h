// SmallCall: memory and arguments of one legal small dispatch and combine on a rank, for tests that
// change a few of them. Every output is larger than needed.
#pragma once

#include <cstring>
#include <vector>

#include "exchange/frame.h"
#include "ferry/cann.h"

namespace ferry::test {

class SmallCall {
 public:
  static constexpr int kRanks = 3;
  static constexpr std::int64_t kBs = 5, kH = 16, kK = 2, kMoe = 6;
  static constexpr std::int64_t kRoom = 4096;  // elements of each output

  explicit SmallCall(int rank)
      : x(kBs * kH * 2),
        ids(kBs * kK),
        weights(kBs * kK, 0.5F),
        factors(64, 1.0F),
        zeros(kRoom * 4) {
    for (int i = 0; i < kBs * kK; ++i) ids[i] = (rank + i) % static_cast<int>(kMoe);
    fill_outputs();
  }

  cann::Attributes attributes(int rank) const {
    return {.group_ep = "ep",
            .ep_world_size = kRanks,
            .ep_rank_id = rank,
            .moe_expert_num = kMoe,
            .group_tp = "tp"};
  }

  cann::DispatchArgs dispatch(int rank) {
    return {.attributes = attributes(rank),
            .x = {x.data(), kBs, kH, DataType::kBf16},
            .expert_ids = {ids.data(), kBs, kK},
            .expand_x = {expand_x.data(), kRoom / kH, kH, DataType::kBf16},
            .dynamic_scales = scales,
            .expand_idx = expand_idx,
            .assist_info_for_combine = assist,
            .expert_token_nums = token_nums,
            .ep_recv_counts = ep_counts,
            .tp_recv_counts = tp_counts,
            .expand_scales = row_weights};
  }

  // Counts of the rows of the legal dispatch: ten entries over six experts from each rank.
  cann::CombineArgs combine(int rank) {
    return {.attributes = attributes(rank),
            .expand_x = {zeros.data(), kRoom / kH, kH, DataType::kBf16},
            .expert_ids = {ids.data(), kBs, kK},
            .assist_info_for_combine = assist,
            .ep_send_counts = ep_counts,
            .tp_send_counts = tp_counts,
            .expert_scales = {weights.data(), kBs, kK},
            .x_out = {x_out.data(), kBs, kH, DataType::kBf16}};
  }

  cann::CombineAddRmsNormArgs add_rms_norm(int rank) {
    return {.combine = combine(rank),
            .residual_x = {zeros.data(), kBs, kH, DataType::kBf16},
            .gamma = {zeros.data(), 1, kH, DataType::kBf16},
            .y_out = {y_out.data(), kBs, kH, DataType::kBf16},
            .rstd_out = rstd};
  }

  // True as long as no operator has written an output.
  bool untouched() const {
    const auto is_pattern = [](const auto& values) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
      for (std::size_t i = 0; i < values.size() * sizeof(values[0]); ++i) {
        if (bytes[i] != kPattern) return false;
      }
      return true;
    };
    return is_pattern(expand_x) && is_pattern(scales) && is_pattern(expand_idx) &&
           is_pattern(assist) && is_pattern(token_nums) && is_pattern(ep_counts) &&
           is_pattern(row_weights) && is_pattern(x_out) && is_pattern(y_out) && is_pattern(rstd);
  }
  void fill_outputs() {
    const auto fill = [](auto& values) {
      values.resize(kRoom);
      std::memset(values.data(), kPattern, values.size() * sizeof(values[0]));
    };
    fill(expand_x), fill(scales), fill(expand_idx), fill(assist), fill(token_nums);
    fill(ep_counts), fill(tp_counts), fill(row_weights), fill(x_out), fill(y_out), fill(rstd);
    expand_x.resize(kRoom * 4, std::byte{kPattern});
  }

  std::vector<std::byte> x;
  std::vector<std::int32_t> ids;
  std::vector<float> weights, factors;
  std::vector<std::uint8_t> mask = std::vector<std::uint8_t>(kBs * kK, 1);
  std::vector<std::byte> zeros;
  std::vector<std::int32_t> elastic;
  std::vector<std::int64_t> waits = std::vector<std::int64_t>(kRanks);

  std::vector<std::byte> expand_x, x_out, y_out;
  std::vector<float> scales, row_weights, rstd;
  std::vector<std::int32_t> expand_idx, assist, ep_counts, tp_counts;
  std::vector<std::int64_t> token_nums;

 private:
  static constexpr int kPattern = 0x5a;
};

}  // namespace ferry::test
