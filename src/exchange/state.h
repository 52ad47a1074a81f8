// ExchangeState: the implementation of Exchange. All ranks construct it together. It owns the parts
// of the exchange, and the times and counts that outlive an operation.
//   state.cc       construction, destruction, window memory for outputs
//   operations.cc  the send and receive halves of a Dispatch or a Combine
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

class ExchangeState final : public Lasting {
 public:
  // Collective. If one rank cannot make its part, the constructor throws on all ranks
  // (agreement.h). `joins`: this rank is a newcomer, and joins an exchange that the members have;
  // the call is then not collective.
  ExchangeState(const std::shared_ptr<GroupState>& group, const ExchangeConfig& config, bool joins);
  ~ExchangeState() override;
  ExchangeState(const ExchangeState&) = delete;
  ExchangeState& operator=(const ExchangeState&) = delete;

  GroupState& group() const noexcept { return *parts_.group; }
  // Call before a receive half that is a call of its own: it restarts the deadline.
  void begin_receive(Operation operation) noexcept { parts_.protocol.begin_receive(operation); }
  // Call after a receive half: adds what the statistics and the window have grown by since the last
  // call to the counters of the group, which metrics show (Counter).
  void count() noexcept;
  Status dispatch_send(const DispatchArgs& args, Operation& operation);
  Status dispatch_recv(Operation operation, Received& received);
  Status dispatch_memory(Operation operation, Received& received);
  Status ready_experts(Operation operation, std::vector<bool>& ready);
  Status combine_send(const CombineArgs& args, Operation& operation);
  Status combine_recv(Operation operation);
  bool poll(Operation operation) noexcept { return parts_.protocol.poll(operation); }
  Status refuse(OperationKind kind, const Status& why, std::span<const int> active_ranks,
                std::vector<std::uint64_t>* digests);
  Status skip(std::string_view why, const Digests& digests, std::span<const int> active_ranks);
  Status allocate_outputs(std::int64_t num_rows, std::int64_t hidden, DataType dtype,
                          OutputRows& outputs);
  Status may_write(const void* rows, bool& may);

  // These run between two views of the group (Lasting).
  void prepare(std::uint64_t next) noexcept override { parts_.protocol.prepare(next); }
  void renew(const View& view) noexcept override;
  Offer offer() const override;
  void make_place(int rank, std::uint64_t next) override;
  void append_prepared(std::uint64_t next, std::vector<Prepared>& known) const override {
    parts_.protocol.append_prepared(next, known);
  }
  void store_prepared(std::uint64_t next, const std::vector<Prepared>& known) noexcept override {
    parts_.protocol.store_prepared(next, known);
  }

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
  ExchangeStats counted_ = {};  // statistics that count() has added to the group's counters
  std::uint64_t counted_window_bytes_ = 0;
};

}  // namespace ferry::internal
