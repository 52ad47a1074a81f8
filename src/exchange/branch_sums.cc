#include "exchange/branch_sums.h"

#include <algorithm>
#include <cstring>

namespace ferry::internal {

BranchSums::BranchSums(std::int64_t hidden, DataType type, int num_tiers)
    : hidden_(hidden), type_(type) {
  for (int tier = 0; tier < num_tiers; ++tier) of_tier_.emplace_back(hidden, 0);
}

std::byte* BranchSums::own() {
  if (!own_) own_ = std::make_unique_for_overwrite<std::byte[]>(hidden_ * element_bytes(type_));
  return own_.get();
}

// Those of tiers further in are of the one group that this rank is in.
void BranchSums::add_to(Summands& total, std::span<const Sum> sums, int tier) {
  for (std::size_t i = 0; i < sums.size();) {
    std::size_t end = i;
    while (end < sums.size() && sums[end].tier < tier) ++end;
    total.add(end == i ? sums[i].row : sum_of(sums.subspan(i, end - i), tier - 1), type_);
    i = std::max(end, i + 1);
  }
}

// A group of which one part has rows has the sum of that part.
const void* BranchSums::sum_of(std::span<const Sum> sums, int tier) {
  if (sums.size() == 1) return sums[0].row;
  const auto inside = [tier](const Sum& sum) { return sum.tier < tier; };
  if (std::all_of(sums.begin(), sums.end(), inside)) return sum_of(sums, tier - 1);
  Summands& total = of_tier_[tier];
  total.clear();
  std::byte* out = total.scratch();
  add_to(total, sums, tier);
  total.reduce({.rows = nullptr,
                .weights = nullptr,
                .num_rows = 0,
                .row_type = type_,
                .bias = {nullptr, nullptr},
                .out = out,
                .out_type = type_,
                .hidden = hidden_,
                .stores = Stores::kCached},
               false);
  return out;
}

void BranchSums::sum(int tier, void* out) {
  std::memcpy(out, sum_of(sums_, tier), hidden_ * element_bytes(type_));
}

}  // namespace ferry::internal
