// Draws: each token draws K different experts, in proportion to their odds. missed() is the
// probability that a token draws no expert of the given ranks.
#pragma once

#include <vector>

namespace ferry::internal {

class Draws {
 public:
  // Finds odds with which a share shares[e] of the tokens draws expert e. The shares add up to K.
  // `first` is [ranks + 1]: rank r has the experts first[r] to first[r + 1] - 1.
  Draws(const std::vector<double>& shares, const std::vector<int>& first, int top_k);

  // `ranks` is in ascending order.
  double missed(const std::vector<int>& ranks) const;

 private:
  // [K + 1]: element n is a sum over all sets of n experts, in which each set adds the product of
  // its odds. These are coefficients of a polynomial. For two disjoint sets of experts, the
  // polynomial of their union is the product of their polynomials.
  using Sums = std::vector<double>;

  void multiply(Sums& sums, const Sums& others) const;
  void multiply_by_expert(Sums& sums, double odds) const;
  // [experts]: the share of tokens that draw each expert with these odds.
  std::vector<double> drawn(const std::vector<double>& odds) const;
  // Multiplies `sums` by the sums of the ranks from `begin` to `end` - 1.
  void multiply_by_ranks(Sums& sums, int begin, int end) const;

  const int top_k_;
  int leaves_ = 1;  // a power of two, at least the number of ranks
  // [2 * leaves]: the sums of rank r are at leaves + r. Element i is the product of elements 2i and
  // 2i + 1.
  std::vector<Sums> trees_;
};

}  // namespace ferry::internal
