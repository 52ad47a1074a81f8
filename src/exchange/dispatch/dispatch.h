// Dispatch: one dispatch from its send half to its receive half. The mirror of Combine. The steps
// are those of docs/protocol.md:
//   send half:     announce (count) -> place -> guard reuse -> send rows
//   receive half:  wait for the rows of all ranks -> hand over
// Rows leave in send_rows.cc and are handed over in received.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/parts/parts.h"
#include "exchange/protocol/protocol.h"
#include "ferry/exchange.h"
#include "memory/pool.h"
#include "routing/route.h"

namespace ferry::internal {

class Dispatch final : public InFlight {
 public:
  Dispatch(ExchangeParts& exchange, const Issued& issued);

  // Checks the arguments and says which buffer receives and how many rows leave. An error is this
  // rank's refusal: nothing was announced.
  Status announce(const DispatchArgs& args);
  // The rest of the send half. An error ends the dispatch on all ranks with one status, or breaks
  // the group.
  Status send(const DispatchArgs& args);
  Status receive() override;
  // Before receive(): the memory that hand_over() will hand over.
  Status show(Received& received);
  // [L]: whether the sources that have rows for an expert have delivered.
  std::vector<bool> ready_experts() const;
  // After receive().
  void hand_over(Received& received);
  // What a rank has that takes no part: a handle without rows, which keeps it out of whatever is
  // done with the handle.
  void leave_empty();

  OperationTimes times;

 private:
  Status post(const DispatchArgs& args);
  Status plan();
  Status grow();
  Status guard_reuse();
  void fill(Received& received) const;
  void copy_out(Received& received) const;

  ExchangeParts& exchange_;
  const Setup& setup_;
  std::shared_ptr<Route> unplaced_;     // null with a cached handle
  std::shared_ptr<const Route> route_;  // the same, or the handle's
  int buffer_ = -1;                     // posted
  std::shared_ptr<Pin> pin_;            // of the buffer
  bool gave_weights_ = false;           // this rank
  bool weights_ = false;                // weights travelled
  bool shown_ = false;                  // the caller has views of the buffer
};

}  // namespace ferry::internal
