// BranchSums: the sums of a token's branches on their way to one. Those of the groups that this
// rank is in are added up first and rounded, as the mate of such a group does for others, so that
// the result does not depend on where the token is at home. One per worker, used again for every
// token. Called by terms.cc and served_sums.cc.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "exchange/summands.h"
#include "ferry/types.h"

namespace ferry::internal {

class SubtreeSums {
 public:
  // Sums of `hidden` elements of `type`.
  SubtreeSums(std::int64_t hidden, DataType type, int num_levels);

  void clear() noexcept { sums_.clear(); }
  // Where the sum of my own node may be made.
  std::byte* own();
  // In the order of Branches; both stay until the result is there.
  void add(int level, const void* sum) { sums_.push_back({level, sum}); }

  // As terms of `total`: one for each group of `level`, all of them inside the same group of
  // the next one out.
  void add_to(Summands& total, int level) { add_to(total, sums_, level); }
  // The sum of all, rounded.
  void sum(int level, void* out);

 private:
  struct Sum {
    int level;
    const void* row;
  };

  void add_to(Summands& total, std::span<const Sum> sums, int level);
  const void* sum_of(std::span<const Sum> sums, int level);

  std::int64_t hidden_;
  DataType type_;
  std::vector<Sum> sums_;
  std::unique_ptr<std::byte[]> own_;
  std::vector<Summands> of_level_;
};

}  // namespace ferry::internal
