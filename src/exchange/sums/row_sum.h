// RowSum: the rows of one token, and their sum. Rows of this node are read where they lie. Rows of
// other subtrees have arrived in replies, as one sum for each subtree (or, with NodeSums::kExact,
// row by row). The source of a token uses a RowSum in the same way as a mate that sums for a rank
// that it serves. So a result does not depend on which rank is the source, except with kFullmesh
// (docs/numerics.md, "Between nodes"). Each worker has one and uses it again for every token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/limits.h"
#include "exchange/sums/summands.h"
#include "ferry/types.h"
#include "kernels/wire_formats.h"
#include "topology/subtrees.h"

namespace ferry::internal {

// The type, size and weighting of the rows of one combine.
struct RowFormat {
  const WireFormat* wire;  // wire format of combine
  DataType type;
  std::int64_t hidden;
  Partials partials;
  bool weighted;

  std::size_t plain_bytes() const noexcept { return hidden * element_bytes(type); }
  std::size_t wire_bytes() const noexcept {
    return wire->encode ? wire->encoded_bytes(hidden, type) : plain_bytes();
  }
};

class RowSum {
 public:
  // `sum_type`: the type of the sums of subtrees.
  RowSum(const RowFormat& format, DataType sum_type, int num_levels);

  struct Row {
    std::array<const void*, kMaxTpSize> parts;  // by tensor-parallel rank, this rank's first
    int num_parts;
    int owner;  // the member at which the row lies; -1: no row
    float weight;
    bool encoded;  // already in the wire format, as one part
  };

  const RowFormat& format() const noexcept { return format_; }

  // Begins a token with the items [first, first + count). Set their rows afterwards, by row(),
  // set_rows() or set_sums().
  void clear(std::int64_t first, int count) noexcept;
  Row& row(std::int64_t item) noexcept { return rows_[item - first_]; }

  // Sets the rows of all items. `find_row(item, row)` fills in a row, but not the address of a row
  // of another node. `reply(i)` is the reply for subtree i, which has the rows of the subtree;
  // null: subtree i is this node.
  template <typename FindRow, typename ReplyOf>
  void set_rows(const Subtrees& subtrees, const FindRow& find_row, const ReplyOf& reply);
  // Adds the row of an item as a summand. With Partials::kPerRank the rows of its rank are one
  // summand, in the place of the last of them.
  void add_summand(std::int64_t item, Summands& sum) const;
  // Writes the row of an item in the wire format: wire_bytes() at `out`.
  void ship(std::int64_t item, void* out);

  // Sets the sums of the subtrees, in place of rows. The subtree that is this node gets its rows,
  // which are summed when the sum is used. The arguments are those of set_rows().
  template <typename FindRow, typename ReplyOf>
  void set_sums(const Subtrees& subtrees, const FindRow& find_row, const ReplyOf& reply);
  // Adds the sums to `total`, one summand for each group of `level`. All these groups are in one
  // group of the next level out.
  void add_to(Summands& total, int level) { add_to(total, sums_, level); }
  // Writes the sum over groups of `level`, all in one group of the next level out, rounded to the
  // type of sums.
  void sum(int level, void* out);

 private:
  struct Sum {
    int level;
    const void* row;  // null: this node, whose sum own() makes
  };

  void sum_own(void* out);
  const void* own();
  void add_to(Summands& total, std::span<const Sum> sums, int level);
  const void* sum_of(std::span<const Sum> sums, int level);
  const void* whole(const Row& row, Summands& sum) const;
  // The row as it is after combine's wire format has encoded and decoded it, if there is one.
  const void* plain(const Row& row, Summands& sum) const {
    return format_.wire->encode ? decoded(row, sum) : whole(row, sum);
  }
  const void* decoded(const Row& row, Summands& sum) const;
  void add_partial(const Row& last, Summands& sum) const;

  RowFormat format_;
  DataType sum_type_;
  std::int64_t first_ = 0;
  int count_ = 0;
  std::array<Row, kMaxEntries> rows_;
  std::vector<Sum> sums_;
  Summands part_;  // the rows of this node
  std::unique_ptr<std::byte[]> own_;
  std::vector<Summands> of_level_;
};

// Adds up the scalars of a row over its tensor-parallel ranks, this rank's first.
struct ScalarShape {
  int num_scalars;
  int tp_size;
};
template <typename OwnScalars>
void add_scalars(std::int64_t item, const ScalarShape& shape, const OwnScalars& own, float* sum) {
  for (int tp_rank = 0; tp_rank < shape.tp_size; ++tp_rank) {
    const float* scalars = own(item, tp_rank);
    for (int j = 0; j < shape.num_scalars; ++j)
      sum[j] = tp_rank == 0 ? scalars[j] : sum[j] + scalars[j];
  }
}

// Writes the scalars of all items to `to(item)`. `own(item, tp_rank)` has those of rows of this
// node. `reply(i)` has those of subtree i, one after the other; null: subtree i is this node.
template <typename OwnScalars, typename ReplyOf, typename To>
void set_scalars(const Subtrees& subtrees, const ScalarShape& shape, const OwnScalars& own,
                 const ReplyOf& reply, const To& to) {
  for (int i = 0; i < subtrees.count(); ++i) {
    const std::byte* theirs = reply(i);
    for (const std::int64_t item : subtrees[i].items) {
      if (theirs == nullptr) {
        add_scalars(item, shape, own, to(item));
      } else {
        std::memcpy(to(item), theirs, shape.num_scalars * sizeof(float));
        theirs += shape.num_scalars * sizeof(float);
      }
    }
  }
}

template <typename FindRow, typename ReplyOf>
void RowSum::set_rows(const Subtrees& subtrees, const FindRow& find_row, const ReplyOf& reply) {
  for (int i = 0; i < subtrees.count(); ++i) {
    const std::byte* theirs = reply(i);
    for (const std::int64_t item : subtrees[i].items) {
      Row& found = row(item);
      find_row(item, found);
      if (theirs == nullptr) continue;
      found.parts[0] = theirs;
      found.num_parts = 1;
      found.encoded = format_.wire->encode != nullptr;
      theirs += format_.wire_bytes();
    }
  }
}

template <typename FindRow, typename ReplyOf>
void RowSum::set_sums(const Subtrees& subtrees, const FindRow& find_row, const ReplyOf& reply) {
  sums_.clear();
  for (int i = 0; i < subtrees.count(); ++i) {
    const auto& [next_hop, level, items] = subtrees[i];
    const std::byte* theirs = reply(i);
    sums_.push_back({level, theirs});
    for (const std::int64_t item : items)
      if (theirs == nullptr) find_row(item, row(item));
  }
}

}  // namespace ferry::internal
