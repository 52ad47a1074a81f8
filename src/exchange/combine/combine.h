// Combine: one combine, from its send half to its receive half. Dispatch has the same structure.
// The source of the tokens reads expert rows where they lie, weights and sums them in float32, and
// writes each result once. The steps are those of docs/protocol.md:
//   send half:     announce (publish outputs) -> between nodes, request the sums of other nodes
//   receive half:  wait for the outputs of all ranks, reduce ready tokens -> reduce the others
//   publish_outputs.h    outputs of this rank              published_outputs.h  outputs of others
//   subtree_sums.h       sums of other nodes               token_sum.h          a token's result
//   pending_tokens.h     tokens not reduced yet            row_weights.h        weights that return
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "exchange/combine/combine_call.h"
#include "exchange/combine/published_outputs.h"
#include "exchange/combine/row_weights.h"
#include "exchange/combine/subtree_sums.h"
#include "exchange/combine/token_sum.h"

namespace ferry::internal {

class Combine final : public InFlight {
 public:
  Combine(ExchangeParts& exchange, const Issued& issued, const CombineArgs& args);

  // Checks the arguments and publishes this rank's outputs. An error is this rank's refusal:
  // nothing was published.
  Status announce();
  // The rest of the send half. An error ends the combine on all ranks with one status, or breaks
  // the group.
  Status request_sums();
  Status receive() override;
  const Route& route() const noexcept { return *call_.route; }
  const CombineArgs& args() const noexcept { return call_.args; }

  OperationTimes times;

 private:
  Status find_route();
  Status place();
  Status reduce();
  Status await_outputs();
  std::int64_t reduce_early();
  Status await_sums();
  Status await_sums(Way& way, const RequestedSums& requests);
  std::int64_t reduce_summed();
  Status await_served();
  std::int64_t reduce_ready(const char* wait);
  void reduce_tokens(std::span<const std::int32_t> tokens);
  std::uint64_t bytes_of_all() const;
  void begin_phase(const char* phase);

  CombineCall call_;
  ExchangeParts& exchange_;
  std::shared_ptr<Route> unplaced_;  // the route, while its slots are not known
  PublishedOutputs outputs_;
  SubtreeSums sums_;
  TokenSum token_sum_;
  RowWeights row_weights_;
  std::int64_t reduce_ns_ = 0;  // time of reduce_tokens(), for the trial of StoreChoice
};

}  // namespace ferry::internal
