// The enums of the C ABI (ferry/ferry.h). Compiles as C11 and as C++20.
#pragma once

// NOLINTBEGIN(readability-identifier-naming)

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ferry_code {
  FERRY_OK = 0,
  FERRY_INVALID_ARGUMENT,  // this rank's call was refused; nothing was sent; the group is usable
  FERRY_PEER_REJECTED,     // another rank's call was refused; nothing was sent; usable
  FERRY_MISMATCH,          // ranks called different operations, or with different settings; usable
  FERRY_CAPACITY,          // more rows than the caller's fixed capacity, or no memory; usable
  FERRY_PEER_LOST,         // a rank died or left; the group is broken
  FERRY_TIMEOUT,           // a rank did not arrive before the deadline; the group is broken
  FERRY_BROKEN,            // the group broke earlier, or in this call, which failed inside ferry
  FERRY_CLOSED,            // the group was destroyed, or went on without this rank
  FERRY_SYSTEM,            // the system or allocator refused something, or a call failed in ferry
  FERRY_INTERRUPTED,       // the host program ended a wait of the culprit; the group is broken
} ferry_code;

typedef enum ferry_data_type {
  FERRY_TYPE_BF16,
  FERRY_TYPE_FP16,
  FERRY_TYPE_FP32,
  FERRY_TYPE_BYTES,     // opaque, one byte per element; can be dispatched, not combined
  FERRY_TYPE_INT8,      // received rows of an int8 wire
  FERRY_TYPE_FP8_E4M3,  // received rows of an fp8 wire
  // For collectives only, which take BYTES as unsigned integers of 8 bits.
  FERRY_TYPE_FP64,
  FERRY_TYPE_INT16,
  FERRY_TYPE_INT32,
  FERRY_TYPE_INT64,
  FERRY_TYPE_UINT16,
  FERRY_TYPE_UINT32,
  FERRY_TYPE_UINT64,
} ferry_data_type;

typedef enum ferry_index_type { FERRY_INDEX_INT32, FERRY_INDEX_INT64 } ferry_index_type;

typedef enum ferry_layout {
  FERRY_LAYOUT_RANK_MAJOR,    // [N, H], by source rank, token
  FERRY_LAYOUT_EXPERT_MAJOR,  // [N, H], by local expert, source rank, token, k
  FERRY_LAYOUT_PADDED,        // [L, capacity, H], inside each expert as in EXPERT_MAJOR
} ferry_layout;

typedef enum ferry_wire {
  FERRY_WIRE_NONE,
  FERRY_WIRE_INT8,         // a float32 scale per row; smooth scales if given
  FERRY_WIRE_INT8_STATIC,  // the caller's scales; none are sent
  FERRY_WIRE_FP8,          // a float32 scale per 128 channels
  FERRY_WIRE_FP8_POW2,     // as FP8, each scale rounded up to a power of two
  FERRY_WIRE_FP8_UE8M0,    // as FP8_POW2, of each scale only the exponent, four in an int32
} ferry_wire;

typedef enum ferry_combine_wire {
  FERRY_COMBINE_WIRE_NONE,
  FERRY_COMBINE_WIRE_INT8_BLOCK8,    // int8 with a scale per 8 elements
  FERRY_COMBINE_WIRE_INT8_BLOCK128,  // the same per 128
  FERRY_COMBINE_WIRE_LOGFMT10,       // 10 bits an element in blocks of 128
} ferry_combine_wire;

typedef enum ferry_scale_order {
  FERRY_SCALE_ORDER_ROW_MAJOR,     // [rows, scales]
  FERRY_SCALE_ORDER_COLUMN_MAJOR,  // [scales, rows], columns start at multiples of 16 bytes
} ferry_scale_order;

typedef enum ferry_shared_rule {
  FERRY_SHARED_RULE_BY_RANK,   // rank r, shared expert j: rank r % G + j * G, G ranks per expert
  FERRY_SHARED_RULE_BY_TOKEN,  // one shared expert: a rank divides its tokens into S runs
} ferry_shared_rule;

typedef enum ferry_replica_choice {
  FERRY_REPLICA_CHOICE_BY_RANK,   // instance rank % count
  FERRY_REPLICA_CHOICE_BY_TOKEN,  // instance token % count
  FERRY_REPLICA_CHOICE_BY_TABLE,  // ferry_dispatch_args.replica_table
} ferry_replica_choice;

typedef enum ferry_algorithm {
  FERRY_ALGORITHM_AUTO,          // chosen from the topology
  FERRY_ALGORITHM_FULLMESH,      // a token crosses to another node once for every rank there
  FERRY_ALGORITHM_HIERARCHICAL,  // once for every node
  FERRY_ALGORITHM_ALLGATHER,     // every token crosses to every node
} ferry_algorithm;

typedef enum ferry_node_sums {
  FERRY_NODE_SUMS_ROW_TYPE,  // a sum that a node returns is rounded to the rows' type
  FERRY_NODE_SUMS_FP32,      // it stays float32
  FERRY_NODE_SUMS_EXACT,     // every row is returned: the result is that of one node
} ferry_node_sums;

typedef enum ferry_partials {
  FERRY_PARTIALS_NONE,      // one rounding, at the end
  FERRY_PARTIALS_PER_RANK,  // the summands of one rank are added and rounded first
} ferry_partials;

typedef enum ferry_operation_kind {
  FERRY_OPERATION_DISPATCH,
  FERRY_OPERATION_COMBINE,
} ferry_operation_kind;

#ifdef __cplusplus
}
#endif

// NOLINTEND(readability-identifier-naming)
