// ExchangeState: the inside of an Exchange. Makes it with all ranks together, owns its parts, and
// keeps what outlives an operation.
//   state.cc       making it, ending it, window memory for outputs
//   operations.cc  numbers, sends, keeps and collects a Dispatch or a Combine
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "exchange/parts/parts.h"
#include "exchange/setup/record.h"
#include "ferry/exchange.h"
#include "group/state.h"

namespace ferry::internal {

class ExchangeState {
 public:
  // Collective. Throws on all ranks together (agreement.h), or when memory is refused.
  ExchangeState(const std::shared_ptr<GroupState>& group, const ExchangeConfig& config);
  ~ExchangeState();
  ExchangeState(const ExchangeState&) = delete;
  ExchangeState& operator=(const ExchangeState&) = delete;

  GroupState& group() const noexcept { return *parts_.group; }
  // Before a receive half that is a call of its own.
  void begin_receive(Operation operation) noexcept { parts_.protocol.begin_receive(operation); }
  // After a receive half: what onlookers see (Counter).
  void count() noexcept;
  Status dispatch_send(const DispatchArgs& args, Operation& operation);
  Status dispatch_recv(Operation operation, Received& received);
  Status dispatch_memory(Operation operation, Received& received);
  Status ready_experts(Operation operation, std::vector<bool>& ready);
  Status combine_send(const CombineArgs& args, Operation& operation);
  Status combine_recv(Operation operation);
  bool poll(Operation operation) noexcept { return parts_.protocol.poll(operation); }
  Status refuse(OperationKind kind, const Status& why, std::span<const int> active_ranks);
  Status skip(std::string_view why, const Digests& digests, std::span<const int> active_ranks);
  Status allocate_outputs(std::int64_t num_rows, std::int64_t hidden, DataType dtype,
                          OutputRows& outputs);
  Status may_write(const void* rows, bool& may);

  const ExchangeConfig& config() const noexcept { return parts_.setup->config; }
  int num_local_experts() const noexcept { return parts_.setup->num_local_experts(); }
  WindowBytes window_bytes() const noexcept;
  ExchangeStats stats() const noexcept;
  std::vector<CrossedBytes> crossed_bytes() const;
  const AlgorithmChoice& algorithm() const noexcept { return parts_.setup->choice; }
  const OperationTimes& last_dispatch_times() const noexcept { return dispatch_times_; }
  const OperationTimes& last_combine_times() const noexcept { return combine_times_; }

 private:
  ExchangeParts parts_;
  OperationTimes dispatch_times_, combine_times_;
  ExchangeStats counted_ = {};  // what onlookers see already
  std::uint64_t counted_window_bytes_ = 0;
};

}  // namespace ferry::internal
