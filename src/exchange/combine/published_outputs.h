// PublishedOutputs: the addresses, in this process, of the outputs of all ranks of this node. They
// are taken from the records, as these come or all at once when all are here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange/combine/combine_call.h"

namespace ferry::internal {

struct PublishedRows {
  const std::byte* rows = nullptr;  // null: the rank is of another node, or its record is missing
  std::int64_t pitch_bytes = 0;
  const float* weights = nullptr;  // [rows, weights per row]
  bool encoded = false;            // the rows are encoded in combine_wire
};

class PublishedOutputs {
 public:
  explicit PublishedOutputs(const CombineCall& call) noexcept : call_(call) {}

  // Sets the outputs of all ranks of this node. Call when the records of all ranks are here.
  void find_all();
  // Adds the outputs of ranks whose records have come since the last call. True if it added some.
  // A rank whose call differs from this rank's ends the combine with an error later: from then on
  // nothing is added.
  bool find_more();

  const PublishedRows& of(int member, int tp_rank) const noexcept {
    return outputs_[call_.active().index(member, tp_rank)];
  }
  // The row of a sent entry, at the rank that has the tp_rank of this rank.
  const std::byte* row_of(RowRef ref) const noexcept {
    const PublishedRows& theirs = of(ref.member, call_.active().tp_rank);
    return theirs.rows + ref.row * theirs.pitch_bytes;
  }
  // On one node: whether all rows of a token are published.
  bool are_here(std::int64_t token) const noexcept;

 private:
  PublishedRows of_rank(int rank) const;
  bool makes_this_call(int rank) const noexcept;

  const CombineCall& call_;
  std::vector<PublishedRows> outputs_;  // [active ranks]
  bool mismatch_ = false;
};

}  // namespace ferry::internal
