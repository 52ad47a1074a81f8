// Combine: one combine from its send half to its receive half. The mirror of Dispatch. The source
// reads its expert rows where they lie, weights and sums them in float32, and writes each result
// once. The steps are those of docs/protocol.md:
//   send half:     publish outputs
//   receive half:  wait for the outputs of all ranks, reduce what is there -> reduce the rest
// Made by ExchangeState.
//   combine.cc          the halves, results            publish_outputs.cc  where my outputs lie
//   terms.cc            what a token is the sum of     row_weights.cc      weights that return
//   early_tokens.cc     what is reduced while outputs or sums of some ranks are missing
//   internode/incoming_sums.cc  sums of other nodes
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exchange/internode/asked_sums.h"
#include "exchange/parts.h"
#include "exchange/protocol/protocol.h"
#include "exchange/sums/row_sum.h"
#include "exchange/sums/summands.h"
#include "ferry/exchange.h"
#include "routing/route.h"

namespace ferry::internal {

class Combine final : public InFlight {
 public:
  Combine(ExchangeParts& exchange, const Issued& issued, const CombineArgs& args);

  // Checks the arguments and publishes this rank's outputs. An error is this rank's refusal.
  Status announce();
  // Between nodes, the rest of the send half: asks for the sums of other nodes. An error ends the
  // combine on all ranks alike, or breaks the group.
  Status ask();
  Status receive() override;

  OperationTimes times;

 private:
  // Where a rank's outputs lie in this address space.
  struct PublishedRows {
    const std::byte* rows = nullptr;  // null: of another node, or not known yet
    std::int64_t pitch_bytes = 0;
    const float* weights = nullptr;
    bool encoded = false;
  };
  // What a worker has.
  struct ReduceJob {
    Summands& sum;
    RowSum* rows;  // null where rows_are_terms()
    Stores stores;
  };
  struct TokenEntry {
    std::int64_t token;
    int k;
  };
  struct SpecialTerm {
    float weight;
    Summands& sum;
  };
  struct SubtreeRange {
    std::size_t first, end;
  };
  using RowScalars = std::array<std::array<float, kMaxTopK>, kMaxEntries>;

  Status find_route();
  Status reduce();
  Status place();
  Status check_shares() const;
  void find_outputs();
  PublishedRows outputs_of(int peer) const;
  std::uint64_t bytes_of_all() const;
  void begin_phase(const char* phase);
  void reduce_tokens(std::span<const std::int32_t> tokens);
  void reduce_share(std::span<const std::int32_t> tokens, Stores stores) const;
  void reduce_token(std::int64_t token, const ReduceJob& job) const;
  RowFormat row_format() const;

  // early_tokens.cc
  Status await_outputs();
  std::int64_t reduce_early();
  std::int64_t reduce_summed();
  void find_ready(bool (Combine::*is_ready)(std::int64_t) const noexcept, std::int64_t most);
  std::int64_t reduce_ready(const char* wait);
  bool find_more_outputs();
  bool makes_my_call(int peer) const noexcept;
  bool rows_are_here(std::int64_t token) const noexcept;
  bool sums_are_here(std::int64_t token) const noexcept;

  // publish_outputs.cc
  Status publish_outputs();
  Status stage(Record& mine, bool rows, bool weights);
  void copy_rows_in(std::byte* to, const Record& mine);

  // terms.cc
  float weight_of(TokenEntry at) const noexcept;
  void collect_terms(std::int64_t token, const ReduceJob& job) const;
  void add_entries(std::int64_t token, const ReduceJob& job, bool rows) const;
  bool rows_are_terms() const noexcept;
  void add_row(TokenEntry at, const ReduceJob& job) const;
  void find_rows(std::int64_t token, RowSum& rows) const;
  void find_row(TokenEntry at, RowSum::Row& row) const;
  const std::byte* row_at_my_position(RowRef ref) const noexcept;
  void prefetch_outputs(std::int64_t token) const noexcept;
  void add_special(std::int64_t token, int special, const SpecialTerm& term) const;

  // row_weights.cc
  void return_weights(std::int64_t token) const;
  void find_scalars(std::int64_t token, RowScalars& of_entry) const;

  // internode/incoming_sums.cc
  void ask_for_sums();
  const AskedSums& asked_of(std::int64_t token) const {
    return asked_[exchange_.ways.of_token(token, asked_.size())];
  }
  const std::byte* answer_of(std::int64_t token, int subtree) const {
    return asked_of(token).answer(subtrees_[token].first + subtree);
  }
  Term term_of(TokenEntry at) const;
  Status await_sums();
  Status await_sums(Way& way, const AskedSums& all);
  Status await_served();

  ExchangeParts& exchange_;
  const Setup& setup_;
  const CombineArgs args_;
  std::shared_ptr<const Route> route_;
  std::shared_ptr<Route> unplaced_;     // the same, when its slots are not known yet
  std::vector<PublishedRows> outputs_;  // [active ranks]
  bool in_vain_ = false;                // some rank does not make my call: this ends with an error
  std::int64_t reduce_ns_ = 0;          // of the trial (StoreChoice)
  // Between nodes: what other subtrees answer, by the way that a token takes; and which subtrees
  // there are those of each token.
  std::vector<AskedSums> asked_;  // [ways]
  std::vector<SubtreeRange> subtrees_;
};

}  // namespace ferry::internal
