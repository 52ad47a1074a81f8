#include "exchange/sums/row_sum.h"

#include <algorithm>

namespace ferry::internal {

RowSum::RowSum(const RowFormat& format, DataType sum_type, int num_levels)
    : format_(format), sum_type_(sum_type), part_(format.hidden, format.wire_bytes()) {
  for (int level = 0; level < num_levels; ++level) of_level_.emplace_back(format.hidden, 0);
}

void RowSum::clear(std::int64_t first, int count) noexcept {
  first_ = first;
  count_ = count;
  for (int i = 0; i < count; ++i) rows_[i].owner = -1;
}

void RowSum::add_summand(std::int64_t item, Summands& sum) const {
  const Row& row = rows_[item - first_];
  if (format_.partials == Partials::kPerRank) return add_partial(row, sum);
  sum.add(plain(row, sum), format_.type, row.weight);
}

void RowSum::ship(std::int64_t item, void* out) {
  part_.clear();
  const Row& it = row(item);
  const void* row = whole(it, part_);
  if (!format_.wire->encode || it.encoded) {
    std::memcpy(out, row, format_.wire_bytes());
  } else {
    format_.wire->encode(
        {.row = row, .row_type = format_.type, .hidden = format_.hidden, .out = out});
  }
}

// Sums the rows of this node, which are those that are set.
void RowSum::sum_own(void* out) {
  part_.clear();
  for (int i = 0; i < count_; ++i) {
    if (rows_[i].owner >= 0) add_summand(first_ + i, part_);
  }
  part_.reduce(
      {.row_type = format_.type, .out = out, .out_type = sum_type_, .hidden = format_.hidden},
      format_.weighted);
}

const void* RowSum::own() {
  if (!own_)
    own_ = std::make_unique_for_overwrite<std::byte[]>(format_.hidden * element_bytes(sum_type_));
  sum_own(own_.get());
  return own_.get();
}

// Sums of levels further in than `level` belong to one group of `level`: that of this rank.
void RowSum::add_to(Summands& total, std::span<const Sum> sums, int level) {
  for (std::size_t i = 0; i < sums.size();) {
    std::size_t end = i;
    while (end < sums.size() && sums[end].level > level) ++end;
    total.add(end == i ? sums[i].row : sum_of(sums.subspan(i, end - i), level + 1), sum_type_);
    i = std::max(end, i + 1);
  }
}

// If only one part of a group has rows, its sum is the sum of the group.
const void* RowSum::sum_of(std::span<const Sum> sums, int level) {
  if (sums.size() == 1) return sums[0].row ? sums[0].row : own();
  const auto inside = [level](const Sum& sum) { return sum.level > level; };
  if (std::all_of(sums.begin(), sums.end(), inside)) return sum_of(sums, level + 1);
  Summands& total = of_level_[level];
  total.clear();
  std::byte* out = total.scratch();
  add_to(total, sums, level);
  total.reduce({.row_type = sum_type_, .out = out, .out_type = sum_type_, .hidden = format_.hidden},
               false);
  return out;
}

void RowSum::sum(int level, void* out) {
  if (sums_.size() == 1 && sums_[0].row == nullptr) return sum_own(out);
  std::memcpy(out, sum_of(sums_, level), format_.hidden * element_bytes(sum_type_));
}

// The parts of all tensor-parallel ranks, added and rounded to their type.
const void* RowSum::whole(const Row& row, Summands& sum) const {
  if (row.num_parts == 1) return row.parts[0];
  std::byte* total = sum.scratch();
  reduce_rows({.rows = row.parts.data(),
               .num_rows = row.num_parts,
               .row_type = format_.type,
               .out = total,
               .out_type = format_.type,
               .hidden = format_.hidden});
  return total;
}

const void* RowSum::decoded(const Row& row, Summands& sum) const {
  const void* from = whole(row, sum);
  if (!row.encoded) {
    std::byte* encoded = sum.encoded();
    format_.wire->encode(
        {.row = from, .row_type = format_.type, .hidden = format_.hidden, .out = encoded});
    from = encoded;
  }
  std::byte* decoded = sum.scratch();
  format_.wire->decode(
      {.encoded = from, .row_type = format_.type, .hidden = format_.hidden, .out = decoded});
  return decoded;
}

void RowSum::add_partial(const Row& last, Summands& sum) const {
  const Row* const end = rows_.data() + count_;
  const auto same = [&last](const Row& row) { return row.owner == last.owner; };
  if (std::find_if(&last + 1, end, same) != end) return;
  const void* rows[kMaxEntries];
  float weights[kMaxEntries];
  int count = 0;
  for (const Row* row = rows_.data(); row <= &last; ++row) {
    if (!same(*row)) continue;
    rows[count] = plain(*row, sum);
    weights[count++] = row->weight;
  }
  // A single row is used unchanged: adding it to +0 and rounding it to its own type would not
  // change the sum of the token.
  if (count == 1 && weights[0] == 1.0f) return sum.add(rows[0], format_.type);
  std::byte* partial = sum.scratch();
  reduce_rows({.rows = rows,
               .weights = format_.weighted ? weights : nullptr,
               .num_rows = count,
               .row_type = format_.type,
               .out = partial,
               .out_type = format_.type,
               .hidden = format_.hidden});
  sum.add(partial, format_.type);
}

}  // namespace ferry::internal
