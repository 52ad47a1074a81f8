#include "plan/draws.h"

#include <algorithm>

namespace ferry::internal {

Draws::Draws(const std::vector<double>& shares, const std::vector<int>& first, int top_k)
    : top_k_(top_k) {
  std::vector<double> odds = shares;
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<double> now = drawn(odds);
    for (std::size_t i = 0; i < odds.size(); ++i)
      if (now[i] > 0) odds[i] *= shares[i] / now[i];
  }
  const int ranks = static_cast<int>(first.size()) - 1;
  while (leaves_ < ranks) leaves_ *= 2;
  Sums none(top_k + 1);
  none[0] = 1;
  trees_.assign(std::size_t{2} * leaves_, none);
  for (int rank = 0; rank < ranks; ++rank)
    for (int expert = first[rank]; expert < first[rank + 1]; ++expert)
      multiply_by_expert(trees_[leaves_ + rank], odds[expert]);
  for (int i = leaves_ - 1; i > 0; --i) {
    trees_[i] = trees_[2 * i];
    multiply(trees_[i], trees_[2 * i + 1]);
  }
}

double Draws::missed(const std::vector<int>& ranks) const {
  Sums others(top_k_ + 1);
  others[0] = 1;
  int next = 0;
  for (const int rank : ranks) {
    multiply_by_ranks(others, next, rank);
    next = rank + 1;
  }
  multiply_by_ranks(others, next, leaves_);
  return others[top_k_] / trees_[1][top_k_];
}

void Draws::multiply(Sums& sums, const Sums& others) const {
  for (int n = top_k_; n >= 0; --n) {
    double sum = 0;
    for (int of_others = 0; of_others <= n; ++of_others)
      sum += sums[n - of_others] * others[of_others];
    sums[n] = sum;
  }
}

void Draws::multiply_by_expert(Sums& sums, double odds) const {
  for (int n = top_k_; n > 0; --n) sums[n] += sums[n - 1] * odds;
}

// The share of an expert needs the sums over all other experts. They are the product of the sums
// before the expert and the sums after it.
std::vector<double> Draws::drawn(const std::vector<double>& odds) const {
  Sums sums(top_k_ + 1);
  sums[0] = 1;
  std::vector<Sums> before;
  for (const double one : odds) {
    before.push_back(sums);
    multiply_by_expert(sums, one);
  }
  const double all = sums[top_k_];
  std::vector<double> shares(odds.size());
  std::ranges::fill(sums, 0);
  sums[0] = 1;
  for (std::size_t i = odds.size(); i-- > 0;) {
    double without = 0;
    for (int n = 0; n < top_k_; ++n) without += before[i][n] * sums[top_k_ - 1 - n];
    shares[i] = odds[i] * without / all;
    multiply_by_expert(sums, odds[i]);
  }
  return shares;
}

void Draws::multiply_by_ranks(Sums& sums, int begin, int end) const {
  begin += leaves_, end += leaves_;
  for (; begin < end; begin /= 2, end /= 2) {
    if (begin % 2 == 1) multiply(sums, trees_[begin++]);
    if (end % 2 == 1) multiply(sums, trees_[--end]);
  }
}

}  // namespace ferry::internal
