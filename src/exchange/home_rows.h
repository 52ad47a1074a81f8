// HomeRows: expert rows of one token on their way home: where they lie, whose they are, what they
// weigh. All rows of a token, or those of one node that are summed there. One per worker, used
// again for every token. Filled and summed by terms.cc at the source and by served_sums.cc at a
// mate.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "exchange/limits.h"
#include "exchange/summands.h"
#include "ferry/types.h"
#include "kernels/wire_formats.h"

namespace ferry::internal {

// What the rows of one combine are.
struct HomeFormat {
  const WireFormat* wire;  // of combine
  DataType type;
  std::int64_t hidden;
  Partials partials;
  bool weighted;

  std::size_t plain_bytes() const noexcept { return hidden * element_bytes(type); }
  std::size_t wire_bytes() const noexcept {
    return wire->encode ? wire->encoded_bytes(hidden, type) : plain_bytes();
  }
};

class HomeRows {
 public:
  explicit HomeRows(const HomeFormat& format) : format_(format) {}

  struct Row {
    std::array<const void*, kMaxPositions> parts;  // by tensor-parallel position, mine first
    int num_parts;
    int owner;  // equal for the rows of one rank
    float weight;
    bool encoded;  // in the wire format already; one part then
  };

  void clear() noexcept { count_ = 0; }
  Row& add() noexcept { return rows_[count_++]; }
  int count() const noexcept { return count_; }
  const HomeFormat& format() const noexcept { return format_; }

  // Adds row `i` as a term of the sum. With Partials::kPerRank the rows of its rank come as one, in
  // the place of the last of them.
  void add_term(int i, Summands& sum) const;
  // Their sum alone, as one row of `type`.
  void add_up(Summands& sum, DataType type, void* out) const;
  // Row `i` as it crosses a link: wire_bytes() at `out`.
  void ship(int i, Summands& sum, void* out) const;

 private:
  const void* whole(int i, Summands& sum) const;
  const void* plain(int i, Summands& sum) const;
  void add_partial(int last, Summands& sum) const;

  HomeFormat format_;
  int count_ = 0;
  std::array<Row, kMaxEntries> rows_;
};

}  // namespace ferry::internal
