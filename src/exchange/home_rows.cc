#include "exchange/home_rows.h"

#include <cstring>

namespace ferry::internal {

void HomeRows::add_term(int i, Summands& sum) const {
  if (format_.partials == Partials::kPerRank) return add_partial(i, sum);
  sum.add(plain(i, sum), format_.type, rows_[i].weight);
}

void HomeRows::add_up(Summands& sum, DataType type, void* out) const {
  for (int i = 0; i < count_; ++i) add_term(i, sum);
  sum.reduce({.rows = nullptr,
              .weights = nullptr,
              .num_rows = 0,
              .row_type = format_.type,
              .bias = {nullptr, nullptr},
              .out = out,
              .out_type = type,
              .hidden = format_.hidden,
              .stores = Stores::kCached},
             format_.weighted);
}

void HomeRows::ship(int i, Summands& sum, void* out) const {
  const void* row = whole(i, sum);
  if (!format_.wire->encode || rows_[i].encoded) {
    std::memcpy(out, row, format_.wire_bytes());
  } else {
    format_.wire->encode(
        {.row = row, .row_type = format_.type, .hidden = format_.hidden, .out = out});
  }
}

// The parts of all tensor-parallel positions, added and rounded to their type.
const void* HomeRows::whole(int i, Summands& sum) const {
  if (rows_[i].num_parts == 1) return rows_[i].parts[0];
  std::byte* total = sum.scratch();
  reduce_rows({.rows = rows_[i].parts.data(),
               .weights = nullptr,
               .num_rows = rows_[i].num_parts,
               .row_type = format_.type,
               .bias = {nullptr, nullptr},
               .out = total,
               .out_type = format_.type,
               .hidden = format_.hidden,
               .stores = Stores::kCached});
  return total;
}

// And through the wire format of combine.
const void* HomeRows::plain(int i, Summands& sum) const {
  const void* row = whole(i, sum);
  if (!format_.wire->encode) return row;
  if (!rows_[i].encoded) {
    std::byte* encoded = sum.encoded();
    format_.wire->encode(
        {.row = row, .row_type = format_.type, .hidden = format_.hidden, .out = encoded});
    row = encoded;
  }
  std::byte* decoded = sum.scratch();
  format_.wire->decode(
      {.encoded = row, .row_type = format_.type, .hidden = format_.hidden, .out = decoded});
  return decoded;
}

void HomeRows::add_partial(int last, Summands& sum) const {
  const int owner = rows_[last].owner;
  for (int later = last + 1; later < count_; ++later) {
    if (rows_[later].owner == owner) return;
  }
  const void* rows[kMaxEntries];
  float weights[kMaxEntries];
  int count = 0;
  for (int i = 0; i <= last; ++i) {
    if (rows_[i].owner != owner) continue;
    rows[count] = plain(i, sum);
    weights[count++] = rows_[i].weight;
  }
  // One row as it is: added to +0 and rounded to its own type it stays what it was.
  if (count == 1 && weights[0] == 1.0f) return sum.add(rows[0], format_.type);
  std::byte* partial = sum.scratch();
  reduce_rows({.rows = rows,
               .weights = format_.weighted ? weights : nullptr,
               .num_rows = count,
               .row_type = format_.type,
               .bias = {nullptr, nullptr},
               .out = partial,
               .out_type = format_.type,
               .hidden = format_.hidden,
               .stores = Stores::kCached});
  sum.add(partial, format_.type);
}

}  // namespace ferry::internal
