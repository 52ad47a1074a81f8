// Draws: K different experts are drawn, each in proportion to its odds: how likely it is that none
// of some ranks is among them.
#pragma once

#include <vector>

namespace ferry::internal {

class Draws {
 public:
  // Odds such that each expert is drawn as often as `shares` [experts] say, which add up to K.
  // `first` [ranks + 1]: the experts of rank r are first[r] to first[r + 1] - 1.
  Draws(const std::vector<double>& shares, const std::vector<int>& first, int top_k);

  // `ranks` ascend.
  double missed(const std::vector<int>& ranks) const;

 private:
  // For each number of draws n up to K, the sum over all sets of n experts of the product of their
  // odds:
  // a polynomial whose product with that of other experts is that of both.
  using Sums = std::vector<double>;

  void multiply(Sums& sums, const Sums& others) const;
  void multiply_by_expert(Sums& sums, double odds) const;
  // [experts] for these odds.
  std::vector<double> drawn(const std::vector<double>& odds) const;
  // Times those of the ranks from `begin` to `end` - 1.
  void multiply_by_ranks(Sums& sums, int begin, int end) const;

  const int top_k_;
  int leaves_ = 1;  // a power of two, at least the number of ranks
  // [2 * leaves]: of rank r at leaves + r, and of i the product of 2i, 2i + 1
  std::vector<Sums> trees_;
};

}  // namespace ferry::internal
