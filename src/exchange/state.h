// ExchangeState: the inside of an Exchange. Holds the segment, the pool, the crew and the
// operations in flight.
//   config.cc      what a configuration may be, and creation
//   arguments.cc   what a call may be
//   operations.cc  the life of an operation: numbers, records, errors, read_through
//   (docs/protocol.md) dispatch.cc    count, place, send | receive combine.cc     publish | reduce
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exchange/crew.h"
#include "ferry/exchange.h"
#include "group/state.h"
#include "group/wait.h"
#include "kernels/kernels.h"
#include "memory/pool.h"
#include "memory/window_layout.h"
#include "routing/expert_map.h"
#include "routing/placement.h"
#include "routing/route.h"

namespace ferry::internal {

// Throws Error(kInvalidArgument) unless the configuration is legal for `num_ranks` ranks; fills in
// the defaults.
ExchangeConfig complete_config(ExchangeConfig config, int num_ranks);

// Bytes from one row to the next: without gaps, and as the caller has them.
inline std::int64_t dense_pitch(const Rows& rows) noexcept {
  return rows.hidden * static_cast<std::int64_t>(element_bytes(rows.dtype));
}
inline std::int64_t pitch_of(const Rows& rows) noexcept {
  return rows.pitch_bytes ? rows.pitch_bytes : dense_pitch(rows);
}

class ExchangeState {
 public:
  ExchangeState(std::shared_ptr<GroupState> group, const ExchangeConfig& config);
  ~ExchangeState();
  ExchangeState(const ExchangeState&) = delete;
  ExchangeState& operator=(const ExchangeState&) = delete;

  Status dispatch_send(const DispatchArgs& args, Operation& operation);
  Status dispatch_recv(Operation operation, Received& received);
  Status combine_send(const CombineArgs& args, Operation& operation);
  Status combine_recv(Operation operation);
  bool poll(Operation operation) noexcept;
  Status allocate_outputs(std::int64_t num_rows, std::int64_t hidden, DataType dtype,
                          OutputRows& outputs);

  const ExchangeConfig& config() const noexcept { return config_; }
  int num_local_experts() const noexcept { return map_.num_local(rank_); }
  WindowBytes window_bytes() const noexcept;
  const ExchangeStats& stats() const noexcept { return stats_; }
  const OperationTimes& last_dispatch_times() const noexcept { return dispatch_times_; }
  const OperationTimes& last_combine_times() const noexcept { return combine_times_; }

 private:
  // An operation between its halves.
  struct InFlight {
    std::uint64_t number = 0;
    Kind kind = Kind::kNone;
    bool finished = false;
    Status status = {};  // of the receive half, once finished
    std::shared_ptr<const Route> route = {};
    std::chrono::nanoseconds deadline{0};
    std::shared_ptr<Pin> pin = {};  // dispatch: the posted buffer
    int buffer = -1;                // dispatch
    bool weights = false;           // dispatch: weights travelled
    CombineArgs combine = {};       // combine
    OperationTimes times = {};
  };

  // Where a rank's outputs lie in this address space.
  struct PublishedRows {
    const std::byte* rows;
    std::int64_t pitch_bytes;
    const float* weights;
  };

  // operations.cc
  Status begin();
  Status settle(std::uint64_t through);
  Status finish(InFlight& operation);
  void conclude(std::uint64_t number) noexcept;
  InFlight* find(Operation operation, Kind kind) noexcept;
  Status collect(Operation operation, Kind kind, InFlight& collected);
  Status refuse(Kind kind, const Status& refusal, std::chrono::nanoseconds deadline);
  Status examine(std::uint64_t number) const;
  Status name_mismatch(std::uint64_t number) const;
  Status await(const InFlight& operation, const char* phase, std::uint64_t value,
               std::vector<std::int64_t>* wait_ns, const std::vector<bool>* only = nullptr);
  Status await_read_through(const InFlight& operation, std::uint64_t number);
  std::uint64_t min_read_through() const noexcept;
  Agreed agreed_weights(std::uint64_t number) const noexcept;
  void publish(std::uint64_t number, Stage stage) noexcept;

  // arguments.cc
  Status check_dispatch(const DispatchArgs& args);
  Status check_ids(const DispatchArgs& args);
  Status read_ids(const DispatchArgs& args, std::int64_t token);
  Status check_cached(const DispatchArgs& args) const;
  Status check_combine(const CombineArgs& args) const;
  Status check_combine_buffers(const CombineArgs& args) const;
  bool released(const Rows& rows) const noexcept;

  // dispatch.cc
  Status post(InFlight& operation, const DispatchArgs& args);
  Status plan(InFlight& operation, Route& route);
  Status grow(InFlight& operation, const Route& route);
  Status guard_reuse(const InFlight& operation);
  void send_rows(const InFlight& operation, const DispatchArgs& args);
  void send_token(const DispatchArgs& args, const Route& route, std::int64_t token, Stores stores);
  void send_all_metadata(const DispatchArgs& args, const Route& route);
  void send_metadata(const DispatchArgs& args, const Route& route, std::int64_t token, int k);
  void clear_gaps(const InFlight& operation);
  Status receive(InFlight& operation);
  void fill_received(const InFlight& operation, Received& received) const;
  void copy_out(Received& received);

  // combine.cc
  Status publish_outputs(const InFlight& operation, Record& record);
  Status stage(const CombineArgs& args, Record& record, bool rows, bool weights);
  void copy_rows_in(const Rows& from, const Route& route, std::byte* to);
  Status reduce(InFlight& operation);
  void find_outputs(std::uint64_t number);
  void reduce_token(const CombineArgs& args, std::int64_t token, Stores stores) const;
  void bring_weights_home(const CombineArgs& args, std::int64_t token) const;

  std::byte* at(std::size_t offset) const noexcept { return segment_->data() + offset; }
  ControlWords& control(int rank) const noexcept {
    return *reinterpret_cast<ControlWords*>(at(layout_.control(rank)));
  }
  Record& record(int rank, std::uint64_t number) const noexcept {
    return *reinterpret_cast<Record*>(at(layout_.record(rank, number)));
  }
  std::int32_t* count_row(int rank, std::uint64_t number) const noexcept {
    return reinterpret_cast<std::int32_t*>(at(layout_.count_row(rank, number)));
  }
  std::byte* window(int rank) const noexcept { return at(layout_.window(rank)); }
  int num_sections() const noexcept {
    return config_.layout == Layout::kPadded ? num_local_experts() : 1;
  }
  bool rank_major() const noexcept { return config_.layout == Layout::kRankMajor; }
  // Streaming stores when the rows of all ranks together do not fit the caches.
  Stores stores_for(std::uint64_t bytes) const noexcept;
  PlacementRules rules() const noexcept {
    return {map_, config_.layout, config_.expert_alignment, config_.expert_capacity, rank_};
  }

  std::shared_ptr<GroupState> group_;
  ExchangeConfig config_;
  int rank_;
  int size_;
  ExpertMap map_;
  WindowLayout layout_;
  std::uint64_t id_;
  std::shared_ptr<Segment> segment_;
  std::shared_ptr<Pool> pool_;
  Crew crew_;
  bool crowded_;
  std::uint64_t cache_bytes_;

  std::uint64_t issued_ = 0;                     // number of the last operation
  std::uint64_t read_through_ = 0;               // my published read_through
  std::vector<std::uint64_t> early_;             // finished operations after read_through_
  std::vector<InFlight> in_flight_;              // sent, not collected; at most depth
  std::vector<std::int32_t> experts_;            // [T, K] of the dispatch being sent, -1: not sent
  std::vector<const std::int32_t*> count_rows_;  // [R] of the dispatch being sent
  ColumnSums sums_;                              // of the dispatch being sent
  std::vector<std::byte*> posted_;               // [R] receive buffers of the dispatch being sent
  std::vector<PublishedRows> outputs_;           // [R] of the combine being reduced
  ExchangeStats stats_;
  OperationTimes dispatch_times_, combine_times_;
};

}  // namespace ferry::internal
