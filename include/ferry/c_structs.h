// The structs of the C ABI; ferry/ferry.h has the functions and includes this file, docs/c_abi.md
// has the rules. Compiles as C11 and as C++20.
//
// Every struct begins with struct_size and version, and only ever grows at its end; a field that
// the caller's struct is too short for reads as 0. In C:
//   ferry_stats stats = {FERRY_INIT(ferry_stats)};
//   ferry_config config = {FERRY_INIT(ferry_config), .max_tokens = 128, .hidden = 7168};
// Elsewhere: zero the struct, then set struct_size and version.
//
// Shapes use T tokens of this rank, H hidden, K top-k, E experts, R ranks, L experts of this rank,
// N received rows, as ferry/exchange.h does, which gives each field's full meaning. A pointer may
// be NULL only if its comment says so. Enumerations in structs are int32_t and have no default (0
// is the first one). For other numbers 0 is the default if the comment names one.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ferry/c_enums.h"
#include "ferry/export.h"

// NOLINTBEGIN(readability-identifier-naming)

// The value for `version`. It changes only if a field changes its meaning, not when a struct grows.
#define FERRY_ABI_VERSION 1

#define FERRY_INIT(type) .struct_size = sizeof(type), .version = FERRY_ABI_VERSION

#ifdef __cplusplus
extern "C" {
#endif

// Opaque objects.
typedef struct ferry_group ferry_group;        // one rank's membership
typedef struct ferry_exchange ferry_exchange;  // one dispatch/combine pair
typedef struct ferry_plan ferry_plan;          // the time of each strategy on a machine
typedef struct ferry_handle ferry_handle;  // the slots and counts of a dispatch, without its buffer

// Allocates a group and the objects made from it: exchanges, collectives, handles, and the owners
// of received rows and of output rows. The threads that call ferry call it. It must outlive every
// object of its group.
typedef struct ferry_allocator {
  uint32_t struct_size, version;
  void* (*allocate)(size_t bytes, void* context);  // aligned as by malloc; NULL: no memory
  void (*release)(void* memory, void* context);
  void* context;  // handed through; may be NULL
} ferry_allocator;

// A caller's own all-gather. It is called only while the group is made: once on each rank, or twice
// if the ranks are on several hosts. Every rank gives `bytes` bytes at `mine`, as many as the other
// ranks in that call. When it returns 0, `all` has the bytes of all ranks, in rank order.
typedef struct ferry_all_gather {
  uint32_t struct_size, version;
  int (*gather)(const void* mine, void* all, size_t bytes, void* context);
  void* context;  // handed through; may be NULL
} ferry_all_gather;

typedef struct ferry_group_options {
  uint32_t struct_size, version;
  int64_t deadline_ns;  // for each call of the group and its exchanges; 0: 100 s
  const char* name;  // distinguishes groups that the same ranks make at the same time; may be NULL
  const ferry_allocator* allocator;  // copied; NULL: malloc and free
  // Such as "host:2,rank:4"; NULL: FERRY_TOPOLOGY, else the hosts that are found.
  const char* topology;
  // Called every few milliseconds of a wait, by the waiting thread. A result other than 0 ends the
  // wait as a deadline does, with FERRY_INTERRUPTED and this rank as the culprit. It can return a
  // variable that a signal handler sets. It may be called as long as the group or one of its
  // exchanges lives, and must not call ferry. NULL: waits end at the deadline.
  int (*interrupted)(void* context);
  void* interrupted_context;  // handed through; may be NULL
  int64_t newcomer;           // not 0: takes the place of a lost rank, as ferry_group_admit() says
  // The ranks that the group begins with, ascending and equal on all of them; NULL and 0: all. A
  // process of another rank is a newcomer. Only for ferry_group_connect() and
  // ferry_group_from_environment().
  const int32_t* members;
  int64_t num_members;
} ferry_group_options;

// The configuration of an exchange. All fields but `workers` must be equal on all ranks; they are
// compared when it is created.
typedef struct ferry_config {
  uint32_t struct_size, version;
  int64_t max_tokens;            // most tokens that any rank gives to one dispatch
  int64_t hidden;                // H, elements in a token
  int32_t num_experts;           // E, without shared and special ones
  int32_t top_k;                 // K, 1 to 32
  int32_t dtype;                 // ferry_data_type of the tokens
  int32_t layout;                // ferry_layout of received rows
  int64_t expert_alignment;      // EXPERT_MAJOR: an expert's first row is a multiple; 0: 1
  int64_t row_capacity;          // not PADDED: rows a rank can receive; 0: no limit but memory
  int64_t expert_capacity;       // PADDED: rows per expert; 0: max_tokens for each of token_ranks
  int64_t max_output_row_bytes;  // widest row that combine takes; 0: hidden * 4
  const int32_t* expert_rank;    // [E]: owner of each expert; NULL: contiguous blocks
  int32_t zero_gaps;             // not 0: gap rows and padding rows are set to zero
  int32_t depth;                 // operations in flight, 1 to 16; 0: 2
  int32_t workers;               // threads that move rows for this rank; 0: 1
  int32_t tp_size;               // tensor-parallel ranks that receive the same rows; 0: 1
  int32_t wire;                  // ferry_wire
  int32_t combine_wire;          // ferry_combine_wire
  int32_t scale_order;           // ferry_scale_order
  int32_t shared_rule;           // ferry_shared_rule
  int64_t scale_bytes;           // WIRE_NONE: bytes of the caller's scales of each token
  int32_t num_shared_experts;    // experts that every token goes to, at most 4
  int32_t num_shared_ranks;      // S, a multiple of num_shared_experts: ranks [0, S) hold them
  // Experts without a rank: their ids follow the others, in this order. Combine computes them.
  int32_t num_zero_experts;
  int32_t num_copy_experts;
  int32_t num_constant_experts;
  // Replicas: top-k ids name logical experts; the instances of e are replica_instances[i] with
  // replica_offsets[e] <= i < replica_offsets[e + 1].
  int32_t replica_choice;            // ferry_replica_choice
  int64_t num_logical_experts;       // 0: no replicas
  const int64_t* replica_offsets;    // [num_logical_experts + 1], begins with 0, does not descend
  const int32_t* replica_instances;  // [replica_offsets[num_logical_experts]]: experts in [0, E)
  int32_t algorithm;                 // ferry_algorithm
  int32_t node_sums;                 // ferry_node_sums
  const int32_t* token_ranks;        // the ranks that dispatch tokens; NULL: all
  const int32_t* expert_ranks;       // the ranks that own experts; NULL: all
  int32_t num_token_ranks, num_expert_ranks;
} ferry_config;

// Bytes of shared memory of one rank.
typedef struct ferry_window {
  uint32_t struct_size, version;
  uint64_t expected_bytes;  // committed: balanced routing and a margin, one receive buffer
  uint64_t worst_bytes;     // reserved: all buffers, every token of every rank sent here
} ferry_window;

// All arrays must stay valid until dispatch_send returns, or, if this is `dispatched` of a combine,
// until combine_recv returns.
typedef struct ferry_dispatch_args {
  uint32_t struct_size, version;
  const void* tokens;          // [T, H]
  int64_t num_tokens;          // T
  int64_t hidden;              // H
  int64_t tokens_pitch_bytes;  // bytes from one token to the next; 0: dense
  const void* topk_ids;        // [T, K] of topk_ids_type, dense, -1: not sent; NULL with `cached`
  int32_t dtype;               // ferry_data_type of the tokens
  int32_t topk_ids_type;       // ferry_index_type
  int32_t top_k;               // K
  int32_t num_scale_rows;      // rows of `scales`: 1, or one per expert, shared experts first (not
                               // with RANK_MAJOR)
  const float* topk_weights;   // [T, K] float32, sent with the rows; NULL on all ranks with tokens,
                               // or on none
  const uint8_t* token_mask;   // [T], 0: the token is not sent; may be NULL
  const uint8_t* topk_mask;    // [T, K], 0: the entry is not sent; may be NULL
  const ferry_handle* cached;  // reuse this routing: no ids, no masks, same slots; may be NULL
  int64_t deadline_ns;         // of each call of this operation; 0: the group's
  // [num_scale_rows, num_scale_channels] float32, finite. WIRE_INT8: smooth scales, may be NULL;
  // WIRE_INT8_STATIC: the scales; NULL for other wires.
  const float* scales;
  int64_t num_scale_channels;  // 1 or H
  const void* token_scales;    // [T, scale_bytes], dense; NULL when scale_bytes is 0
  // [num_logical_experts], only with REPLICA_CHOICE_BY_TABLE: for each logical expert the instance,
  // counted from 0, that gets this rank's tokens.
  const int32_t* replica_table;
  // [num_active_ranks]: the ranks that take part, in the order that numbers them as sources; the
  // same on each of them. NULL: all ranks of the view.
  const int32_t* active_ranks;
  int64_t num_active_ranks;
} ferry_dispatch_args;

// Rows received by a dispatch, filled by ferry_dispatch and ferry_dispatch_recv. The rows are valid
// until ferry_received_release. The caller may modify them until it gives them to a combine that
// reads them in place; from then on, when ferry_may_write gives 1. The struct must be initialised
// before its first use.
typedef struct ferry_received {
  uint32_t struct_size, version;
  void* owner;       // set by the library: keeps the rows; NULL: no rows
  void* data;        // [N, H] of dtype, dense; PADDED: [L, capacity, H]
  int64_t num_rows;  // N, gaps and padding included
  int64_t hidden;    // H
  // The next three are NULL without rows.
  const int32_t* sources;      // [N, 3]: source rank, token, k; gap rows have rank -1
  const float* weights;        // [N], RANK_MAJOR [N, K]; NULL when no rank gave topk_weights
  const int32_t* topk_ids;     // RANK_MAJOR [N, K]: local expert at its k, else -1; else NULL
  const ferry_handle* handle;  // valid until release; ferry_handle_keep makes a copy that lasts
  int32_t dtype;               // ferry_data_type of the wire
  // Scale (row, column) is scale_element_bytes at scales + row * scale_row_stride + column *
  // scale_column_stride; PADDED: row counts inside its expert, experts are scale_section_stride
  // apart. All strides in bytes. float32; int32 with WIRE_FP8_UE8M0; or the caller's bytes.
  int32_t scale_element_bytes;
  const void* scales;  // NULL: the rows have none
  int64_t scale_columns;
  int64_t scale_row_stride;
  int64_t scale_column_stride;
  int64_t scale_section_stride;
} ferry_received;

// Rows of the window that the caller fills, so that combine need not copy them. Filled by
// ferry_allocate_outputs, given back by ferry_output_rows_release. Once they were given to a
// combine, they may be filled again when ferry_may_write gives 1.
typedef struct ferry_output_rows {
  uint32_t struct_size, version;
  void* owner;  // set by the library: keeps the rows; NULL: no rows
  void* data;   // [num_rows, hidden] of the requested dtype, dense
  int64_t num_rows;
  int64_t hidden;
} ferry_output_rows;

// All arrays must stay valid and unchanged until combine_recv returns, except for expert rows that
// are copied: combine_send has read those. H' is the width of the expert rows. The results (out,
// out_topk_weights, y, rstd) do not lie in the window, and do not overlap each other or an input.
// Exceptions, in exactly the same memory: a dense out, or y, may replace a bias, shared_output or
// residual; out may replace the dispatched tokens, and out_topk_weights topk_weights.
typedef struct ferry_combine_args {
  uint32_t struct_size, version;
  const ferry_handle* handle;  // from the dispatch; NULL: found from `dispatched`
  const void* expert_rows;     // [num_rows, H'] in dispatch order; read in place in the window
  int64_t num_rows;            // the number of received rows
  int64_t hidden;              // H'
  int64_t rows_pitch_bytes;    // from one expert row to the next; 0: dense
  int32_t dtype;               // ferry_data_type of the expert rows: BF16, FP16 or FP32
  int32_t out_dtype;           // ferry_data_type of out: BF16, FP16 or FP32
  const float* topk_weights;   // [T, K] float32; NULL: plain sum
  const void* bias[2];         // [T, H'] dense, type of out; each may be NULL
  const float* row_weights;    // as ferry_received.weights, returned to the sources; or NULL
  void* out;                   // [T, H'], written here
  int64_t out_pitch_bytes;     // from one result to the next; 0: dense
  float* out_topk_weights;     // [T, K], written here; needs row_weights; may be NULL
  int64_t deadline_ns;         // of each call of this operation; 0: the group's
  // The arguments of the dispatch: needed for copy and constant experts, and in place of a handle.
  // The struct may be destroyed once this call returns; its arrays must stay valid. May be NULL.
  const ferry_dispatch_args* dispatched;
  // Constant experts, w * (alpha1 * token + alpha2 * constants): each [num_constant_experts, H] of
  // the tokens' type; NULL without such experts.
  const void* alpha1;
  const void* alpha2;
  const void* constants;
  const void* shared_output;  // [T, H'] dense, type of out, added unweighted; may be NULL
  // Residual and RMSNorm after the sum: z = sum + residual, out = z, y = z / rms(z) * gamma.
  const void* residual;  // [T, H'] dense, type of out; NULL: no norm
  const void* gamma;     // [H'], type of out
  void* y;               // [T, H'], type of out, the norm's result, written here
  float* rstd;           // [T] float32, written here; may be NULL
  double epsilon;        // for the norm, used as float32; 0: 1e-6
  int64_t partials;      // ferry_partials; PER_RANK: EXPERT_MAJOR and PADDED only
  int64_t copy_rows;     // not 0: expert rows in the window are copied too, not read in place
} ferry_combine_args;

// The counts of a handle; pointers are valid as long as the handle.
typedef struct ferry_counts {
  uint32_t struct_size, version;
  int64_t num_tokens;                        // T of the dispatch
  int64_t num_rows;                          // N
  int64_t num_local_experts;                 // L
  const int64_t* tokens_per_expert;          // [L]
  const int64_t* aligned_tokens_per_expert;  // [L]: rounded up to expert_alignment
  const int64_t* expert_offsets;             // [L + 1]: first rows; NULL for RANK_MAJOR
  // [L, R]: inclusive running sum over (local expert, source rank) of rows sent, R counting the
  // active ranks; with tp_size > 1 [tp_size, L, R / tp_size], this rank's tp_rank first.
  const int64_t* running_counts;
  int64_t num_running_counts;  // elements
  // RANK_MAJOR [R]: inclusive running sum of rows over source ranks; else NULL.
  const int64_t* running_rows_per_rank;
  int64_t num_running_rows;  // elements
} ferry_counts;

typedef struct ferry_stats {
  uint32_t struct_size, version;
  uint64_t dispatches;
  uint64_t combines;
  uint64_t rows_sent;
  uint64_t rows_received;
  uint64_t bytes_sent;      // row bytes written to windows by dispatch
  uint64_t bytes_pulled;    // row bytes read from windows by combine
  uint64_t bytes_copied;    // row bytes copied into the window by combine, or out of it by dispatch
  uint64_t window_growths;  // times a receive buffer had to grow
  uint64_t link_row_bytes;  // bytes of rows, scales and sums that this rank sent to other nodes
  uint64_t link_bytes;      // all bytes that it sent there
} ferry_stats;

// The times of the last finished operation of a kind.
typedef struct ferry_times {
  uint32_t struct_size, version;
  int64_t num_spans;  // for ferry_exchange_span
  // [num_sources]: nanoseconds that this rank waited for each source; valid until the next
  // operation of the kind finishes.
  const int64_t* wait_ns;
  int64_t num_sources;
} ferry_times;

typedef struct ferry_span {
  uint32_t struct_size, version;
  // Static text. Dispatch: count, counts, place, send, receive; combine: publish, outputs,
  // sums (between nodes), reduce.
  const char* phase;
  int64_t begin_ns;  // CLOCK_MONOTONIC
  int64_t end_ns;
} ferry_span;

// The input of a plan (docs/plan.md); read during the call only.
typedef struct ferry_plan_args {
  uint32_t struct_size, version;
  const char* machine;         // a preset, levels, or lines
  const ferry_config* config;  // max_tokens: of each rank
  const double* loads;         // [E]: how often each expert is chosen; NULL: equally
  int32_t groups;              // equal groups of experts; 0: 1
  int32_t groups_chosen;       // groups in which the experts of a token are; 0: all
} ferry_plan_args;

// One strategy on the machine. Texts are valid as long as the plan.
typedef struct ferry_prediction {
  uint32_t struct_size, version;
  const char* strategy;
  const char* limited_by;
  double dispatch_us;
  double combine_us;
  double dispatch_bound_us;  // no order of messages over the same ways is faster
  double combine_bound_us;
  // Bytes that come over links in a dispatch: to the rank that receives the most for its own
  // experts, and to the rank that receives the most to pass on. ferry_window_bytes has the memory
  // of a rank.
  double received_bytes;
  double staged_bytes;
} ferry_prediction;

#ifdef __cplusplus
}
#endif

// NOLINTEND(readability-identifier-naming)
