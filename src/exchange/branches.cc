#include "exchange/branches.h"

namespace ferry::internal {

void Branches::insert(int branch, int way, std::int64_t item) noexcept {
  int at = num_items_++;
  for (; at > 0 && branch_[at - 1] > branch; --at) {
    branch_[at] = branch_[at - 1];
    way_[at] = way_[at - 1];
    items_[at] = items_[at - 1];
  }
  branch_[at] = branch;
  way_[at] = way;
  items_[at] = item;
}

void Branches::divide() noexcept {
  for (int i = 0; i < num_items_; ++i) {
    if (i == 0 || branch_[i] != branch_[i - 1]) begin_[num_branches_++] = i;
  }
}

}  // namespace ferry::internal
