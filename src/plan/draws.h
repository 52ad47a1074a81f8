// Draws: a token draws K different experts, in proportion to their odds. missed() is the
// probability that none of them is on some ranks.
#pragma once

#include <vector>

namespace ferry::internal {

class Draws {
 public:
  // Finds odds with which expert e is drawn by the share shares[e] of the tokens; the shares add up
  // to K. `first` [ranks + 1]: the experts of rank r are first[r] to first[r + 1] - 1.
  Draws(const std::vector<double>& shares, const std::vector<int>& first, int top_k);

  // `ranks`: in ascending order.
  double missed(const std::vector<int>& ranks) const;

 private:
  // [K + 1]: for each number of draws n, the sum over all sets of n experts of the product of their
  // odds. These are coefficients of a polynomial; the polynomial of two disjoint sets of experts is
  // the product of theirs.
  using Sums = std::vector<double>;

  void multiply(Sums& sums, const Sums& others) const;
  void multiply_by_expert(Sums& sums, double odds) const;
  // [experts]: the shares of tokens that draw each expert with these odds.
  std::vector<double> drawn(const std::vector<double>& odds) const;
  // Multiplies `sums` by the sums of the ranks from `begin` to `end` - 1.
  void multiply_by_ranks(Sums& sums, int begin, int end) const;

  const int top_k_;
  int leaves_ = 1;  // a power of two, at least the number of ranks
  // [2 * leaves]: the sums of rank r are at leaves + r; element i is the product of 2i and 2i + 1.
  std::vector<Sums> trees_;
};

}  // namespace ferry::internal
