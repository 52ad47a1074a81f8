// RowWeights: the row weights that return to the source of each token with its result.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/limits.h"
#include "exchange/combine/combine_call.h"
#include "exchange/combine/published_outputs.h"
#include "exchange/combine/subtree_sums.h"

namespace ferry::internal {

class RowWeights {
 public:
  RowWeights(const CombineCall& call, const PublishedOutputs& outputs,
             const SubtreeSums& sums) noexcept
      : call_(call), outputs_(outputs), sums_(sums) {}

  // Writes the weights of some tokens to CombineArgs::out_topk_weights. Any thread may call it, but
  // only one thread for each token.
  void write(std::span<const std::int32_t> tokens) const;

 private:
  using Scalars = std::array<std::array<float, kMaxTopK>, kMaxEntries>;  // by entry of a token

  void write_token(std::int64_t token) const;
  void find_scalars(std::int64_t token, Scalars& of_entry) const;
  void add_ranks(std::int64_t token, const Scalars& of_entry, float* out) const;

  const CombineCall& call_;
  const PublishedOutputs& outputs_;
  const SubtreeSums& sums_;
};

}  // namespace ferry::internal
