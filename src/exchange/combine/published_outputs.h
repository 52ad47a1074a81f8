// PublishedOutputs: where the outputs of all ranks of this node lie in this address space, as their
// records say. Filled in as the records come, or at once when all are here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange/combine/combine_call.h"

namespace ferry::internal {

struct PublishedRows {
  const std::byte* rows = nullptr;  // null: of another node, or not known yet
  std::int64_t pitch_bytes = 0;
  const float* weights = nullptr;  // [rows, weights per row]
  bool encoded = false;            // in the wire format of combine
};

class PublishedOutputs {
 public:
  explicit PublishedOutputs(const CombineCall& call) noexcept : call_(call) {}

  // The records of all ranks are here.
  void find_all();
  // Adds the outputs of ranks whose records have come since the last call; true when there were
  // some. A rank that does not make this rank's call ends the combine with an error: from then on
  // nothing is added.
  bool find_more();

  const PublishedRows& of(int member, int tp_rank) const noexcept {
    return outputs_[call_.active().index(member, tp_rank)];
  }
  // The row of an entry that was sent, at the rank of this rank's own place in tensor parallelism.
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
