// ExchangeState: the inside of an Exchange. Holds the segment, the pool, the crew and the
// operations in flight.
//   config.cc             what a configuration may be, and creation
//   arguments.cc          what a dispatch may be, and its ids as a route; combine_arguments.cc
//   operations.cc         the life of an operation: numbers, records, errors, read_through
//                         (docs/protocol.md)
//   dispatch.cc           count, place, send | receive; send_rows.cc, received.cc
//   combine.cc            publish | reduce; terms.cc: what a token is the sum of
//   cross_rows.cc         between nodes: rows that go out; incoming_sums.cc: sums that come home
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/round_up.h"
#include "exchange/home_rows.h"
#include "exchange/internode/message_stream.h"
#include "exchange/internode/subtree_sums.h"
#include "exchange/internode/subtrees.h"
#include "exchange/limits.h"
#include "exchange/summands.h"
#include "exchange/worker_pool.h"
#include "ferry/exchange.h"
#include "group/state.h"
#include "group/wait.h"
#include "kernels/kernels.h"
#include "kernels/wire_formats.h"
#include "memory/pool.h"
#include "memory/window_layout.h"
#include "memory/window_view.h"
#include "routing/active_set.h"
#include "routing/placement.h"
#include "routing/route.h"

namespace ferry::internal {

class Forwarder;

// Throws Error(kInvalidArgument) unless the configuration is legal for `num_ranks` ranks; fills in
// the defaults.
ExchangeConfig complete_config(ExchangeConfig config, int num_ranks);

// Of a complete configuration.
WindowShape window_shape(const ExchangeConfig& config, const ExpertMap& map, int num_ranks,
                         int num_windows);

const char* kind_name(Kind kind) noexcept;

// Bytes from one row to the next: without gaps, and as the caller has them.
inline std::int64_t dense_pitch(const Rows& rows) noexcept {
  return rows.hidden * static_cast<std::int64_t>(element_bytes(rows.dtype));
}
inline std::int64_t pitch_of(const Rows& rows) noexcept {
  return rows.pitch_bytes ? rows.pitch_bytes : dense_pitch(rows);
}

// From the first byte of the first row to the last of the last.
inline std::size_t extent_of(const Rows& rows) noexcept {
  return rows.num_rows ? (rows.num_rows - 1) * pitch_of(rows) + dense_pitch(rows) : 0;
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
  Status refuse_for_front(Kind kind, const Status& why, std::span<const int> active_ranks,
                          bool* by_all);
  Status allocate_outputs(std::int64_t num_rows, std::int64_t hidden, DataType dtype,
                          OutputRows& outputs);

  const ExchangeConfig& config() const noexcept { return config_; }
  int num_local_experts() const noexcept { return everybody_->map.num_local(everybody_->member); }
  WindowBytes window_bytes() const noexcept;
  ExchangeStats stats() const noexcept;
  std::vector<CrossedBytes> crossed_bytes() const;
  const AlgorithmChoice& algorithm() const noexcept { return choice_; }
  const OperationTimes& last_dispatch_times() const noexcept { return dispatch_times_; }
  const OperationTimes& last_combine_times() const noexcept { return combine_times_; }

 private:
  // An operation between its halves.
  struct InFlight {
    std::uint64_t number = 0;
    Kind kind = Kind::kNone;
    bool finished = false;
    Status status = {};  // of the receive half, once finished
    std::shared_ptr<const ActiveSet> active = {};
    std::shared_ptr<const Route> route = {};
    std::shared_ptr<Route> unplaced = {};  // combine: the same, when its slots are not known yet
    std::chrono::nanoseconds deadline{0};
    std::shared_ptr<Pin> pin = {};  // dispatch: the posted buffer
    int buffer = -1;                // dispatch
    bool weights = false;           // dispatch: weights travelled
    CombineArgs combine = {};       // combine
    OperationTimes times = {};
    // Combine between nodes: where the answers of each mate go, null: none; and for each token
    // (from first_share[token]) and branch, where its sum comes, null: rows of this node.
    std::vector<std::byte*> sums = {};
    std::vector<std::size_t> first_share = {};
    std::vector<const std::byte*> shares = {};
  };

  // Where a rank's outputs lie in this address space.
  struct PublishedRows {
    const std::byte* rows;
    std::int64_t pitch_bytes;
    const float* weights;
    bool encoded;
  };

  // What a worker of a combine has.
  struct ReduceJob {
    Summands& sum;
    Summands& part;  // of my node
    SubtreeSums& subtrees;
    HomeRows& rows;
    Stores stores;
  };
  struct TokenEntry {
    std::int64_t token;
    int k;
  };
  using RowScalars = std::array<std::array<float, kMaxTopK>, kMaxEntries>;
  struct SpecialTerm {
    float weight;
    Summands& sum;
  };

  struct Destination {
    int index;  // of the receiver among the active ranks
    std::int64_t row;
  };

  // What the workers of a dispatch share.
  struct SendJob {
    const DispatchArgs& args;
    const Route& route;
    Stores stores;
  };

  // Where the metadata of a row goes.
  struct RowMetadata {
    std::int32_t* source;
    float* weights;
    std::int32_t* ids;
  };

  // What packs rows for another node.
  struct CrossJob {
    const InFlight& operation;
    const SendJob& send;
    MessageStream& stream;
    std::byte* scratch;
  };

  // config.cc
  void index_replicas();
  bool back_words();
  void cross_nodes();

  // operations.cc
  Status begin();
  Status settle(std::uint64_t through);
  Status finish(InFlight& operation);
  void conclude(std::uint64_t number) noexcept;
  Status stay_out(Kind kind, Operation& operation);
  InFlight* find(Operation operation, Kind kind) noexcept;
  Status collect(Operation operation, Kind kind, InFlight& collected);
  Status refuse(Kind kind, const Status& refusal, std::chrono::nanoseconds deadline,
                bool* by_all = nullptr);
  Status examine(const InFlight& operation) const;
  Status name_mismatch(const InFlight& operation) const;
  std::string describe(int rank, std::uint64_t number) const;
  Await awaiting(const InFlight& operation, const char* phase, std::uint64_t value) const noexcept;
  Await awaiting_words(const InFlight& operation, const char* phase,
                       std::uint64_t value) const noexcept;
  Status await(const InFlight& operation, const char* phase, std::uint64_t value,
               std::vector<std::int64_t>* wait_ns, const std::vector<bool>* only = nullptr);
  Status await_read_through(const InFlight& operation, std::uint64_t number, bool patient = false);
  void let_last_set_finish();
  bool lapped(const InFlight& operation) const noexcept;
  std::uint64_t min_read_through() const noexcept;
  Agreed agreed_weights(const InFlight& operation) const noexcept;
  void publish(std::uint64_t number, Stage stage) noexcept;
  Record& new_record(std::uint64_t number, const Terms& terms) noexcept;

  // arguments.cc
  Status check_active(std::span<const int> chosen);
  Status check_dispatch(const DispatchArgs& args);
  Status check_tokens(const Rows& tokens) const;
  Status check_scales(const DispatchArgs& args) const;
  Status check_cached(const DispatchArgs& args) const;
  Status check_ids(const DispatchArgs& args) const;
  Status make_route(const DispatchArgs& args, std::shared_ptr<Route>& route) const;
  Status read_ids(const DispatchArgs& args, std::int64_t token, Route& route) const;
  std::int32_t column_of(const DispatchArgs& args, std::int64_t token,
                         std::int32_t id) const noexcept;
  Status check_replica_table(const DispatchArgs& args) const;

  // combine_arguments.cc
  Status check_combine(const CombineArgs& args) const;
  Status check_combine_handle(const CombineArgs& args) const;
  Status check_weights(const CombineArgs& args, const Route& route) const;
  Status check_special(const CombineArgs& args, const Route& route) const;
  Status check_combine_buffers(const CombineArgs& args, const Route& route) const;
  Status check_out(const CombineArgs& args, const Route& route) const;
  bool released(const Rows& rows) const noexcept;

  // dispatch.cc
  Status post(InFlight& operation, const DispatchArgs& args);
  Status plan(InFlight& operation, Route& route);
  void place_rows(std::uint64_t number, Route& route);
  Status grow(InFlight& operation, const Route& route);
  Status guard_reuse(const InFlight& operation);
  Status receive(InFlight& operation);

  // send_rows.cc
  Status send_rows(const InFlight& operation, const DispatchArgs& args);
  void send_token(const SendJob& job, std::int64_t token, std::byte* scratch);
  void send_entries(const SendJob& job, std::int64_t first, int count, std::byte* scratch);
  RowFactors factors(const SendJob& job, std::int64_t entry) const noexcept;
  void copy_encoded(const SendJob& job, std::int64_t entry, std::span<void*> rows,
                    std::byte* scratch) const;
  void send_all_metadata(const SendJob& job);
  void send_metadata(const SendJob& job, std::int64_t entry, int position);
  void fill_metadata(const SendJob& job, std::int64_t entry, const RowMetadata& to) const;
  const std::byte* scales_of_row(const SendJob& job, std::int64_t entry,
                                 const std::byte* scratch) const noexcept;
  void clear_gaps(const InFlight& operation);

  // received.cc
  void fill_received(const InFlight& operation, Received& received) const;
  void copy_out(Received& received);

  // combine.cc
  Status find_route(InFlight& operation) const;
  Status publish_outputs(const InFlight& operation);
  Status stage(const InFlight& operation, Record& record, bool rows, bool weights);
  void copy_rows_in(const InFlight& operation, std::byte* to, const Record& record);
  Status reduce(InFlight& operation);
  Status place_combined(InFlight& operation);
  void find_outputs(const InFlight& operation);
  void reduce_token(const InFlight& operation, std::int64_t token, const ReduceJob& job) const;
  void bring_weights_home(const InFlight& operation, std::int64_t token) const;
  void find_scalars(const InFlight& operation, std::int64_t token, RowScalars& of_entry) const;

  // terms.cc
  float weight_of(const CombineArgs& args, const Route& route, TokenEntry at) const noexcept;
  void collect_terms(const InFlight& operation, std::int64_t token, const ReduceJob& job) const;
  void add_entries(const InFlight& operation, std::int64_t token, const ReduceJob& job,
                   bool rows) const;
  void add_subtrees(const InFlight& operation, std::int64_t token, const ReduceJob& job) const;
  void find_rows(const InFlight& operation, std::int64_t token, HomeRows& rows) const;
  void find_row(const InFlight& operation, TokenEntry at, HomeRows::Row& row) const;
  void prefetch_outputs(const InFlight& operation, std::int64_t token) const noexcept;
  void add_special(const CombineArgs& args, std::int64_t token, int special,
                   const SpecialTerm& term) const;

  // cross_rows.cc
  Status cross_rows(const InFlight& operation, const SendJob& job);
  Status cross_unit(const CrossJob& cross, std::int64_t first,
                    std::span<const std::int64_t> entries);
  Status append(const InFlight& operation, MessageStream& stream, std::size_t bytes,
                std::byte*& piece);

  // incoming_sums.cc
  HomeFormat home_format(const InFlight& operation) const;
  Status cross_combine(InFlight& operation);
  void ask_for_sums(InFlight& operation);
  void add_terms(const InFlight& operation, std::span<const std::int64_t> entries,
                 std::vector<std::byte>& terms) const;
  Status await_sums(const InFlight& operation);
  Status await_served(const InFlight& operation);
  Status leave(const InFlight& operation, const Status& status);
  Status await_forwarder(const InFlight& operation, const char* phase,
                         const std::atomic<std::uint64_t>* flags, std::uint64_t value,
                         const std::vector<bool>& only);

  ControlWords& control(int rank) const noexcept { return view_.control(rank); }
  Record& record(int rank, std::uint64_t number) const noexcept {
    return view_.record(rank, number);
  }
  std::int32_t* count_row(int rank, std::uint64_t number) const noexcept {
    return view_.count_row(rank, number);
  }
  bool here(int rank) const noexcept { return view_.here(rank); }
  // Of some entries of a token.
  Subtrees subtrees_of(const Route& route, std::int64_t first, int count) const;
  bool everywhere() const noexcept { return choice_.algorithm == Algorithm::kAllgather; }
  int num_sections() const noexcept {
    return config_.layout == Layout::kPadded ? num_local_experts() : 1;
  }
  bool rank_major() const noexcept { return config_.layout == Layout::kRankMajor; }
  // Streaming stores when the rows of all ranks together do not fit the caches.
  Stores stores_for(std::uint64_t bytes) const noexcept;
  PlacementRules rules() const noexcept {
    return {config_.layout, config_.expert_alignment, config_.expert_capacity};
  }
  // Row of mine at another tensor-parallel position of its owner.
  std::int64_t row_at(const Route& route, std::int64_t entry, int position) const noexcept {
    const RowRef ref = route.refs[entry];
    if (route.shifts.empty()) return ref.row;
    const std::size_t columns = route.shifts.size() / route.active->num_positions;
    const std::int32_t column = rank_major() ? ref.member : route.columns[entry];
    return ref.row + route.shifts[position * columns + column];
  }
  // Where a worker keeps the scales of the row that it encodes: behind it, on a line of their own.
  std::size_t scales_in_scratch() const noexcept {
    return round_up(layout_.row_bytes(), kLineBytes);
  }
  std::size_t scratch_bytes() const noexcept {
    return wire_.encode ? scales_in_scratch() + layout_.scale_bytes() : 0;
  }
  // Experts that top-k ids can name: with replicas, logical ones.
  int num_ids() const noexcept {
    return config_.replicas.instances.empty() ? config_.num_experts
                                              : static_cast<int>(config_.replicas.instances.size());
  }

  std::shared_ptr<GroupState> group_;
  ExchangeConfig config_;
  int rank_;
  int size_;
  const WireFormat& wire_;
  const WireFormat& combine_wire_;
  AlgorithmChoice choice_;
  std::shared_ptr<const ActiveSet> everybody_;
  WindowLayout layout_;
  std::uint64_t id_;
  WindowView view_ = {};
  std::shared_ptr<Pool> pool_;
  WorkerPool workers_;
  bool crowded_;
  std::uint64_t cache_bytes_;

  std::uint64_t issued_ = 0;                     // number of the last operation
  std::uint64_t read_through_ = 0;               // my published read_through
  std::vector<std::uint64_t> early_;             // finished operations after read_through_
  std::vector<InFlight> in_flight_;              // sent, not collected; at most depth
  std::shared_ptr<const ActiveSet> active_;      // of the last operation
  std::shared_ptr<const ActiveSet> last_set_;    // of the last one that this rank took part in
  std::uint64_t last_taken_ = 0;                 // its number
  std::vector<std::int32_t> logical_;            // [E] with replicas: the id that each stands for
  std::vector<const std::int32_t*> count_rows_;  // [active ranks] of the routing being placed
  ColumnSums sums_;                              // of the dispatch being sent
  std::vector<std::byte*> posted_;               // [active ranks] receive buffers, being sent to
  std::vector<Scales> scale_strides_;            // [members] of those buffers
  std::vector<PublishedRows> outputs_;           // [active ranks] of the combine being reduced
  ExchangeStats stats_;
  OperationTimes dispatch_times_, combine_times_;
  std::shared_ptr<Forwarder> forwarder_;  // with several nodes; last: messages come until it ends
};

}  // namespace ferry::internal
