// TokenSum: computes the results of tokens of a combine. The summands of a token are, in the order
// of docs/numerics.md: the biases, routed rows, copies and constants by k, rows of shared experts
// (kRankMajor: all rows by member, then copies and constants by k), the caller's shared output, the
// residual. Rows of this node are read where they lie. Sums of other nodes must have arrived
// before.
#pragma once

#include <cstdint>
#include <span>

#include "exchange/combine/combine_call.h"
#include "exchange/combine/published_outputs.h"
#include "exchange/combine/subtree_sums.h"
#include "exchange/sums/row_sum.h"
#include "exchange/sums/summands.h"

namespace ferry::internal {

class TokenSum {
 public:
  TokenSum(const CombineCall& call, const PublishedOutputs& outputs,
           const SubtreeSums& sums) noexcept
      : call_(call), outputs_(outputs), sums_(sums) {}

  // Writes the results of some tokens. Any thread may call it, but only one thread for each token.
  void reduce(std::span<const std::int32_t> tokens, Stores stores) const;

 private:
  // Memory of one worker.
  struct Job {
    Summands& sum;
    RowSum* rows;  // null where rows_are_summands()
    Stores stores;
  };
  struct Special {
    std::int64_t token;
    int expert;  // number among the zero, copy and constant experts, in this order
    float weight;
  };

  void reduce_token(std::int64_t token, const Job& job) const;
  void collect(std::int64_t token, const Job& job) const;
  void add_entries(std::int64_t token, const Job& job, bool rows) const;
  void add_row(TokenEntry at, const Job& job) const;
  void add_special(const Special& special, Summands& sum) const;
  bool rows_are_summands() const noexcept;
  void find_rows(std::int64_t token, RowSum& rows) const;
  void find_row(TokenEntry at, RowSum::Row& row) const;
  void prefetch(std::int64_t token) const noexcept;

  const CombineCall& call_;
  const PublishedOutputs& outputs_;
  const SubtreeSums& sums_;
};

}  // namespace ferry::internal
