// How unevenly the tokens of a real deployment chose their experts, as a summary for `--routing
// real`.
//
// The source is the expert distributions of DeepSeek-V3/R1 (58 MoE layers, 256 routed experts) in
// the repository GeneratedRandomly/SGLang-reproduce. This file has aggregates only and repeats none
// of its figures. Each layer was cut into 8 groups of 32 neighbouring experts, as in the model's
// own group-limited routing. Two curves were averaged over all layers: the sorted loads of the
// groups over the layer's mean, and the sorted loads of the experts over their group's mean (at 17
// quantiles).
#pragma once

#include <array>
#include <cstdint>

namespace ferry::bench {

struct RealSkew {
  std::array<double, 8> group_load;  // the loads of the groups over their mean, ascending
  // The loads of the experts of a group over their mean, at the quantiles 0, 1/16, .., 1.
  std::array<double, 17> load_in_group;
};

// The load of requests with 1,000 tokens in and 1,000 out. It is used for at most kMostDecodeTokens
// tokens per rank; larger batches are prefill.
inline constexpr RealSkew kDecodeSkew = {{0.60, 0.66, 0.74, 0.80, 0.90, 1.02, 1.26, 2.01},
                                         {0.35, 0.48, 0.55, 0.61, 0.67, 0.73, 0.78, 0.83, 0.89,
                                          0.95, 1.03, 1.11, 1.21, 1.33, 1.50, 1.78, 2.49}};

// The load of prompts of 4,096 tokens.
inline constexpr RealSkew kPrefillSkew = {{0.53, 0.62, 0.70, 0.80, 0.91, 1.05, 1.33, 2.07},
                                          {0.20, 0.31, 0.38, 0.44, 0.51, 0.57, 0.64, 0.71, 0.79,
                                           0.88, 0.98, 1.10, 1.24, 1.44, 1.71, 2.15, 3.53}};

inline constexpr std::int64_t kMostDecodeTokens = 512;

}  // namespace ferry::bench
