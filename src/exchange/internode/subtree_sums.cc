#include "exchange/internode/subtree_sums.h"

#include <algorithm>
#include <cstring>

namespace ferry::internal {

SubtreeSums::SubtreeSums(std::int64_t hidden, DataType type, int num_levels)
    : hidden_(hidden), type_(type) {
  for (int level = 0; level < num_levels; ++level) of_level_.emplace_back(hidden, 0);
}

std::byte* SubtreeSums::own() {
  if (!own_) own_ = std::make_unique_for_overwrite<std::byte[]>(hidden_ * element_bytes(type_));
  return own_.get();
}

// Those of levels further in are of the one group that this rank is in.
void SubtreeSums::add_to(Summands& total, std::span<const Sum> sums, int level) {
  for (std::size_t i = 0; i < sums.size();) {
    std::size_t end = i;
    while (end < sums.size() && sums[end].level > level) ++end;
    total.add(end == i ? sums[i].row : sum_of(sums.subspan(i, end - i), level + 1), type_);
    i = std::max(end, i + 1);
  }
}

// A group of which one part has rows has the sum of that part.
const void* SubtreeSums::sum_of(std::span<const Sum> sums, int level) {
  if (sums.size() == 1) return sums[0].row;
  const auto inside = [level](const Sum& sum) { return sum.level > level; };
  if (std::all_of(sums.begin(), sums.end(), inside)) return sum_of(sums, level + 1);
  Summands& total = of_level_[level];
  total.clear();
  std::byte* out = total.scratch();
  add_to(total, sums, level);
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

void SubtreeSums::sum(int level, void* out) {
  std::memcpy(out, sum_of(sums_, level), hidden_ * element_bytes(type_));
}

}  // namespace ferry::internal
