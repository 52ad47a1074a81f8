// Exchange: one dispatch/combine pair and the object that does it.
//
//   ferry::Exchange exchange(group, {.max_tokens = 128, .hidden = 7168, .num_experts = 256,
//                                    .top_k = 8});
//   ferry::Received received;
//   exchange.dispatch({.tokens = ..., .topk_ids = ...}, received);
//   (run the experts on received.rows())
//   exchange.combine({.handle = received.handle, .expert_rows = ..., .topk_weights = ...,
//                     .out = ...});
//
// Shapes use T tokens of this rank, H hidden, K top-k, E experts, R ranks, L experts of this rank,
// N received rows. docs/numerics.md gives the arithmetic, docs/window_layout.md the order of rows.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ferry/config.h"
#include "ferry/export.h"
#include "ferry/group.h"
#include "ferry/status.h"
#include "ferry/types.h"

namespace ferry {

namespace internal {
class ExchangeState;
struct Route;
}  // namespace internal

// The routing of a dispatch: slots and counts, without a buffer. Valid until freed, for any number
// of combines and cached dispatches of its exchange. Copies share it.
class FERRY_EXPORT Handle {
 public:
  Handle() = default;
  explicit operator bool() const noexcept { return route_ != nullptr; }

  std::int64_t num_tokens() const noexcept;  // T of the dispatch
  std::int64_t num_rows() const noexcept;    // rows received, gaps and padding included

  // [L]: rows of each local expert; and the same rounded up to expert_alignment.
  std::span<const std::int64_t> tokens_per_expert() const noexcept;
  std::span<const std::int64_t> aligned_tokens_per_expert() const noexcept;
  // [L + 1]: first row of each local expert, then num_rows (expert layouts; empty for kRankMajor).
  std::span<const std::int64_t> expert_offsets() const noexcept;
  // [L, R]: inclusive running sum over (local expert, source rank) of rows sent (CANN's
  // epRecvCounts). With tp_size > 1 [tp_size, L, R / tp_size], a block per tp_rank, this rank's
  // first, each with sums of its own. R counts the active ranks.
  std::span<const std::int64_t> running_counts() const noexcept;
  // [R]: kRankMajor, inclusive running sum of rows over source ranks; empty otherwise.
  std::span<const std::int64_t> running_rows_per_rank() const noexcept;
  // kRankMajor, empty otherwise: tokens that each source rank dispatched, [R]; and how many of them
  // went to each rank, [R, R]. R counts the active ranks; with tp_size > 1 sources are [tp_size, R
  // / tp_size], and they send to the R / tp_size ranks of a domain.
  std::span<const std::int64_t> tokens_per_rank() const noexcept;
  std::span<const std::int64_t> rows_sent() const noexcept;
  // The ranks that took part in the dispatch, if not all did: its active_ranks, or the ranks of the
  // view. Empty: all.
  std::span<const int> active_ranks() const noexcept;

  const std::shared_ptr<const internal::Route>& route() const noexcept { return route_; }
  explicit Handle(std::shared_ptr<const internal::Route> route) : route_(std::move(route)) {}

 private:
  std::shared_ptr<const internal::Route> route_;
};

// Top-k expert ids, [num_tokens, top_k]; -1 means "not sent".
struct TopkIds {
  const void* data = nullptr;
  std::int64_t num_tokens = 0;
  int top_k = 0;
  IndexType type = IndexType::kInt64;
};

// Factors of the int8 wires, [num_rows, num_channels] float32: one row for all, or a row per expert
// (shared experts first, then the experts that top-k ids name; not with kRankMajor); one value per
// row, or one per channel. Finite.
struct ScaleRows {
  const float* data = nullptr;
  int num_rows = 0;
  std::int64_t num_channels = 0;
};

// For refuse_dispatch and refuse_combine: an invalid rank, as the ranks of the call are not known.
inline constexpr int kUnknownRanks[] = {-1};

// A number that the caller gives with a call, such as a digest of settings on which its ranks must
// agree. All ranks get the numbers of all. ferry neither reads nor compares them.
struct Digests {
  std::uint64_t mine = 0;  // not 0 where `all` is given
  // The numbers of the active ranks, in their order; 0 for a rank that refused. dispatch_send, skip
  // and combine_recv (or combine_send) write them, with any outcome, and so do refuse_dispatch and
  // refuse_combine, equally on all active ranks. They are not written when a rank made no call, or
  // names other active ranks. The vector must live until the operation has ended.
  std::vector<std::uint64_t>* all = nullptr;
};

// Pointers of the arguments of dispatch and combine: null means that an array is not given. For an
// array without elements any address that is not null will do; if T is 0, null is allowed too.
struct DispatchArgs {
  Rows tokens = {};       // [T, H]
  TopkIds topk_ids = {};  // [T, K]; leave empty when `cached` is given
  // [T, K]; sent with the rows. Given on all ranks with tokens, or on none of them.
  const float* topk_weights = nullptr;
  const std::uint8_t* token_mask = nullptr;  // [T]; 0: the token is not sent
  const std::uint8_t* topk_mask = nullptr;   // [T, K]; 0: the entry is not sent
  Handle cached = {};  // reuse this routing, of as many tokens: no ids, no masks, same slots
  std::chrono::nanoseconds deadline{0};  // of each call of this operation; 0: the group's
  // With wire kInt8 smooth scales, which may be null; with kInt8Static the scales.
  ScaleRows scales = {};
  // The caller's scales of each token: [T, ExchangeConfig::scale_bytes], dense.
  const void* token_scales = nullptr;
  // [logical experts], kByTable: the instance, an index into Replicas::instances[expert], that this
  // rank's tokens go to.
  const std::int32_t* replica_table = nullptr;
  // The ranks that take part, in the order that numbers them as sources; the same on each of them.
  // Rows are neither sent to other ranks nor awaited from them, and entries for their experts are
  // not sent. A rank outside may make the same call, so that its operations have the same numbers:
  // it sends and receives nothing. Empty: all ranks of the view; an entry for an expert of a rank
  // that the view lacks is then refused.
  std::span<const int> active_ranks = {};
  Digests digests = {};

  // The ranks that take part, in the form of active_ranks: those of the cached handle, unless
  // active_ranks names others.
  std::span<const int> chosen_ranks() const noexcept {
    return active_ranks.empty() ? cached.active_ranks() : active_ranks;
  }
};

// Scales that came with received rows: of the wire (float32, or int32 with kFp8Ue8m0), or the
// caller's. Element (row, column) is element_bytes at data + row * row_stride + column *
// column_stride; kPadded: row counts inside its expert, experts are section_stride apart.
struct Scales {
  const void* data = nullptr;  // null: the rows have none
  std::int64_t columns = 0;    // per row
  std::int64_t element_bytes = 4;
  std::int64_t row_stride = 0, column_stride = 0, section_stride = 0;  // bytes
};

// Rows received by a dispatch. They lie in the window, or in memory of their own if too many views
// of the window are alive; the buffer is free for reuse when this object is released or destroyed.
// Gap rows of kExpertMajor have source -1 and weight 0; with zero_gaps their elements are 0. Rows
// of kPadded past an expert's count are undefined, elements and metadata; with zero_gaps they are
// like gap rows. The caller may modify the rows until it gives them to a combine that reads them in
// place; from then on, when Exchange::may_write allows it.
struct FERRY_EXPORT Received {
  void* data = nullptr;       // [num_rows, H], dense; kPadded: [L, C, H]
  std::int64_t num_rows = 0;  // gaps and padding included
  // Rows that may be read and written at data: those past num_rows are undefined, and take memory
  // when they are accessed.
  std::int64_t room_rows = 0;
  std::int64_t hidden = 0;
  DataType dtype = DataType::kBf16;  // type of the wire
  // [num_rows, 3]: source rank, token, k (kRankMajor: lowest local k). Sources are numbered by
  // their place in handle.active_ranks(), with tp_size > 1 by their rank in the expert-parallel
  // domain.
  std::span<const std::int32_t> sources;
  // Expert layouts [num_rows], 1 for shared experts; kRankMajor [num_rows, K], 0 where not local.
  // Empty when no rank gave topk_weights.
  std::span<const float> weights;
  // kRankMajor [num_rows, K]: local expert at its k, else -1. Empty otherwise.
  std::span<const std::int32_t> topk_ids;
  Scales scales = {};
  Handle handle;

  Rows rows() const noexcept { return {data, num_rows, hidden, dtype, 0}; }
  void release() noexcept { *this = Received{}; }

  std::shared_ptr<const void> pin;  // keeps the memory
};

// Rows of the window that the caller fills, so that combine need not copy them; free for reuse when
// released. The caller may fill new rows at once. Rows that were given to a combine may be filled
// again when Exchange::may_write allows it.
struct FERRY_EXPORT OutputRows {
  void* data = nullptr;  // [num_rows, hidden], dense
  std::int64_t num_rows = 0;
  std::int64_t hidden = 0;
  DataType dtype = DataType::kBf16;

  Rows rows() const noexcept { return {data, num_rows, hidden, dtype, 0}; }
  void release() noexcept { *this = OutputRows{}; }

  std::shared_ptr<const void> pin;  // keeps the memory
};

// The constant experts' tensors, each [num constant experts, H] of the tokens' type.
struct ConstantExperts {
  const void* alpha1 = nullptr;
  const void* alpha2 = nullptr;
  const void* v = nullptr;
};

// Residual and RMSNorm after the sum: z = sum + residual, out = z, y = z / rms(z) * gamma. All of
// the type of out, dense.
struct ResidualNorm {
  const void* residual = nullptr;  // [T, H']; null: no norm
  const void* gamma = nullptr;     // [H']
  float epsilon = 1e-6F;
  void* y = nullptr;      // [T, H'], written here
  float* rstd = nullptr;  // [T], written here; may be null
};

// out[t] = bias[0][t] + bias[1][t] + sum over k ascending of w[t,k] * expert row of (t,k), then
// rows of shared experts, then shared_output[t], then the residual; in float32, rounded once
// (docs/numerics.md). kRankMajor sums the caller's per-rank rows over ranks in the order of
// active_ranks, then special experts, and weights only those. After an error the outputs are
// undefined.
struct CombineArgs {
  Handle handle = {};
  // [handle.num_rows(), H'] in dispatch order; read in place if they lie in the window and in_place
  // is true; other rows are copied. Copied rows may be written as soon as combine_send returned,
  // rows that are read in place when may_write allows it.
  Rows expert_rows = {};
  bool in_place = true;
  // [T, K]; null: plain sum. kRankMajor: null unless there are copy or constant experts.
  const float* topk_weights = nullptr;
  std::array<const void*, 2> bias = {nullptr, nullptr};  // [T, H'] dense, type of out; may be null
  // On the expert side, in the shape of Received::weights: returned to the sources in
  // out_topk_weights.
  const float* row_weights = nullptr;
  // [T, H'], written here. It and the other results (out_topk_weights, norm.y, norm.rstd) do not
  // lie in the window, and do not overlap each other or an input. Exceptions, in exactly the same
  // memory: a dense `out`, or norm.y, may replace a bias, shared_output or norm.residual; `out` may
  // replace dispatched->tokens, and out_topk_weights topk_weights.
  void* out = nullptr;
  DataType out_dtype = DataType::kBf16;
  std::int64_t out_pitch_bytes = 0;      // 0: dense
  float* out_topk_weights = nullptr;     // [T, K]; needs row_weights on every rank with rows
  std::chrono::nanoseconds deadline{0};  // of each call of this operation; 0: the group's
  // The arguments of the dispatch. Needed for copy and constant experts (its tokens), and instead
  // of a handle, on all ranks: the places of the rows then follow from its ids, masks, replica
  // table and active ranks.
  const DispatchArgs* dispatched = nullptr;
  ConstantExperts constants = {};
  const void* shared_output = nullptr;  // [T, H'] dense, type of out; added unweighted
  ResidualNorm norm = {};
  Digests digests = {};
  // Expert layouts. kPerRank: the summands of a rank, added by ascending k and rounded, are added
  // in the place of the last of them. Each rank chooses for its own tokens.
  Partials partials = Partials::kNone;

  // The ranks that take part, as DispatchArgs::active_ranks: those of the dispatch.
  std::span<const int> chosen_ranks() const noexcept {
    return !handle && dispatched != nullptr ? dispatched->chosen_ranks() : handle.active_ranks();
  }
};

// Identifies an operation between its two halves.
struct Operation {
  std::uint64_t number = 0;  // 0: none
};

// The times of the last finished operation of a kind, in nanoseconds of CLOCK_MONOTONIC.
struct OperationTimes {
  struct Span {
    // Static text. Dispatch: count, counts, place, send, receive. Combine: publish, outputs, sums
    // (between nodes), reduce. A combine may reduce tokens while outputs or sums of others are
    // missing: then reduce and the wait follow each other several times.
    const char* phase = "";
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };
  std::vector<Span> spans;
  // [R]: time that this rank waited for each source. Sources are checked in order, beginning with
  // the next rank, so a wait counts for the first source that was late.
  std::vector<std::int64_t> wait_ns;
  // Dispatch: whether this rank wrote its rows with streaming stores, and whether that was a trial
  // of one of the two kinds (docs/decisions/streaming_stores.md).
  bool streaming_stores = false, store_trial = false;
};

struct ExchangeStats {
  std::uint64_t dispatches = 0, combines = 0;
  std::uint64_t rows_sent = 0, rows_received = 0;
  std::uint64_t bytes_sent = 0;    // row bytes written to windows by dispatch
  std::uint64_t bytes_pulled = 0;  // row bytes read from windows by combine
  // Row bytes copied into the window by combine_send, or out of it by dispatch_recv
  std::uint64_t bytes_copied = 0;
  std::uint64_t window_growths = 0;  // times a receive buffer had to grow
  // Bytes that this rank sent to other nodes: rows (their scales, sums of them), and everything.
  std::uint64_t link_row_bytes = 0, link_bytes = 0;
};

// Sent bytes: those of rows, their scales and sums; and all bytes.
struct CrossedBytes {
  std::uint64_t rows = 0, all = 0;
};

// One caller at a time per exchange; different exchanges may be used concurrently. The constructor,
// dispatches, combines, refusals and skips are collective: every rank makes them in the same order.
// Receive halves may be called in any order. All other calls are local.
class FERRY_EXPORT Exchange {
 public:
  Exchange() = default;
  // Collective. Throws Error on all ranks when one of them refuses its configuration (kPeerRejected
  // on the others), when two differ (kMismatch names the fields), or when memory is refused; the
  // group goes on.
  Exchange(const Group& group, const ExchangeConfig& config);
  // On a rank that took the place of a lost one (GroupOptions::newcomer), in the view that began
  // with it: joins an exchange that all members had made before, and that this rank has not joined.
  // Local. The members go on with it, and wait for this rank in their next operation. If several
  // have this configuration, the one that was made first is joined. Throws Error(kInvalidArgument)
  // if there is none, and names the fields that differ; the group goes on.
  static Exchange join(const Group& group, const ExchangeConfig& config);
  // Replaces the constructor on a rank whose front refuses its arguments and so has no
  // configuration: the other ranks get kPeerRejected with the message of `why`. Throws `why`, or
  // the error that broke the group.
  [[noreturn]] static void refuse(const Group& group, const Status& why);

  // The rows that `received` held before are released first; after an error it is empty.
  [[nodiscard]] Status dispatch(const DispatchArgs& args, Received& received) noexcept;
  [[nodiscard]] Status combine(const CombineArgs& args) noexcept;

  // Halves. The arrays of a dispatch must stay valid and unchanged until dispatch_send returns,
  // those of a combine until combine_recv returns, except for expert rows that were copied. At most
  // `depth` operations are between their halves; one more is refused with kInvalidArgument.
  [[nodiscard]] Status dispatch_send(const DispatchArgs& args, Operation& operation) noexcept;
  [[nodiscard]] Status dispatch_recv(Operation operation, Received& received) noexcept;
  [[nodiscard]] Status combine_send(const CombineArgs& args, Operation& operation) noexcept;
  [[nodiscard]] Status combine_recv(Operation operation) noexcept;
  // Call between the halves of a dispatch: returns the memory that dispatch_recv will return,
  // without the weights. dispatch_recv changes only its contents. kCapacity when dispatch_recv will
  // copy the rows, because too many views are alive.
  [[nodiscard]] Status dispatch_memory(Operation operation, Received& received) noexcept;
  // Call between the halves of a dispatch, does not wait: ready[e] is true when all rows of local
  // expert e have arrived. The receive half must still be called, and returns the status of the
  // dispatch.
  [[nodiscard]] Status ready_experts(Operation operation, std::vector<bool>& ready) noexcept;
  // True when the receive half would not wait, except that a combine between nodes may wait for the
  // sums that it then requests.
  bool poll(Operation operation) noexcept;

  // Replaces a dispatch or combine whose arguments a front refuses: the other ranks get
  // kPeerRejected with the message of `why`, and the exchange stays usable. Returns `why`, or the
  // error that broke the group. A `why` whose code says that the group is broken, or ok, becomes
  // kInvalidArgument. `active_ranks` are those of the call (chosen_ranks). With
  // kUnknownRanks, or other invalid ranks, this rank waits for no rank. A rank that
  // is not active refuses for itself alone, without a wait. `digests` (may be null): as
  // Digests::all.
  [[nodiscard]] Status refuse_dispatch(const Status& why, std::span<const int> active_ranks = {},
                                       std::vector<std::uint64_t>* digests = nullptr) noexcept;
  [[nodiscard]] Status refuse_combine(const Status& why, std::span<const int> active_ranks = {},
                                      std::vector<std::uint64_t>* digests = nullptr) noexcept;

  // Replaces a dispatch or combine on a rank that makes this call in another exchange. ok when all
  // active ranks skip: none of them is in a call of this exchange, so all may use the other one.
  // kMismatch when one of them makes a call here: that rank gets kPeerRejected with the text `why`.
  // kPeerRejected when one of them refuses. A rank that is not active does not wait.
  [[nodiscard]] Status skip(std::string_view why, const Digests& digests = {},
                            std::span<const int> active_ranks = {}) noexcept;

  // Window memory for num_rows rows of expert outputs, at most as many as this rank can receive.
  // The rows that `outputs` held before are released first. kCapacity when too many views of the
  // window are alive or memory is refused.
  [[nodiscard]] Status allocate_outputs(std::int64_t num_rows, std::int64_t hidden, DataType dtype,
                                        OutputRows& outputs) noexcept;
  // `may`: true when all ranks have read the rows of the view of the window that `rows` points
  // into, as far as combines read them in place, so that they may be written again. True for a view
  // that no combine was given, and for any other memory, which combine copies. Does not wait, and
  // must not be polled in a loop: a rank may make the next depth - 1 operations before it receives
  // a combine. The result is true once an operation that was sent `depth` or more after the combine
  // is finished on this rank (docs/gotchas.md). kInvalidArgument for rows of a view that was
  // released.
  [[nodiscard]] Status may_write(const void* rows, bool& may) noexcept;

  const ExchangeConfig& config() const;
  int num_local_experts() const;     // L
  WindowBytes window_bytes() const;  // of this rank; `expected` is committed now
  ExchangeStats stats() const;
  // The bytes that this rank sent to other groups of each level of the topology, from the outermost
  // to the nodes: the last equals ExchangeStats::link_row_bytes and link_bytes. Empty on one node.
  std::vector<CrossedBytes> crossed_bytes() const;
  const AlgorithmChoice& algorithm() const;  // never kAuto
  const OperationTimes& last_dispatch_times() const;
  const OperationTimes& last_combine_times() const;

 private:
  std::shared_ptr<internal::ExchangeState> state_;
};

}  // namespace ferry
