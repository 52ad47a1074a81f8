#include "exchange/sums/summands.h"

#include <algorithm>

namespace ferry::internal {

std::byte* Summands::scratch() {
  if (used_ == made_.size())
    made_.push_back(std::make_unique_for_overwrite<std::byte[]>(hidden_ * sizeof(float)));
  return made_[used_++].get();
}

std::byte* Summands::encoded() {
  if (!encoded_) encoded_ = std::make_unique_for_overwrite<std::byte[]>(encoded_bytes_);
  return encoded_.get();
}

void Summands::reduce(ReduceRows target, bool weighted) {
  const auto other = [&](DataType type) { return type != types_[0]; };
  if (std::any_of(types_.begin(), types_.begin() + count_, other)) promote();
  target.rows = rows_.data();
  target.weights = weighted ? weights_.data() : nullptr;
  target.num_rows = count_;
  if (count_ > 0) target.row_type = types_[0];
  reduce_rows(target);
}

void Summands::promote() {
  for (int i = 0; i < count_; ++i) {
    if (types_[i] == DataType::kFp32) continue;
    std::byte* wide = scratch();
    reduce_rows({.rows = &rows_[i],
                 .num_rows = 1,
                 .row_type = types_[i],
                 .out = wide,
                 .out_type = DataType::kFp32,
                 .hidden = hidden_});
    rows_[i] = wide;
    types_[i] = DataType::kFp32;
  }
}

}  // namespace ferry::internal
