// Dispatch: one dispatch, from its send half to its receive half. Combine has the same structure.
// The steps are those of docs/protocol.md:
//   send half:     announce (count) -> place -> guard reuse -> send rows
//   receive half:  wait for the rows of all ranks -> hand over
// send_rows.cc sends the rows, received.cc hands over the received ones.
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

  // Checks the arguments, and announces the receive buffer of this rank and the numbers of rows
  // that it sends. An error is this rank's refusal: nothing was announced.
  Status announce(const DispatchArgs& args);
  // The rest of the send half. An error ends the dispatch on all ranks with one status, or breaks
  // the group.
  Status send(const DispatchArgs& args);
  Status receive() override;
  // Call before receive(): sets `received` to the memory that hand_over() will hand over.
  Status show(Received& received);
  // [local experts] Whether all sources that have rows for an expert have delivered them.
  std::vector<bool> ready_experts() const;
  // Call after receive().
  void hand_over(Received& received);
  // For a rank that takes no part: makes a handle without rows. The rank then takes no part in
  // later calls with this handle either.
  void leave_empty();
  const Route& route() const noexcept { return *route_; }

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
  std::shared_ptr<const Route> route_;  // unplaced_, or the route of the cached handle
  int buffer_ = -1;                     // the receive buffer
  std::shared_ptr<Pin> pin_;            // keeps the receive buffer
  bool gave_weights_ = false;           // this rank's call has topk_weights
  bool weights_ = false;                // the received rows have weights
  bool shown_ = false;                  // the caller has views of the buffer
};

}  // namespace ferry::internal
