// Collectives in the C ABI: data of any contiguous memory between the ranks of a group. Included by
// ferry/ferry.h, which has the groups, the errors and the rules. ferry/collectives.h has the full
// meaning of the calls, docs/collectives.md an example.
#pragma once

#include "ferry/c_structs.h"

// NOLINTBEGIN(readability-identifier-naming)

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ferry_reduce_op {
  FERRY_REDUCE_SUM,
  FERRY_REDUCE_AVG,  // the sum divided by the number of ranks; floating-point types only
  FERRY_REDUCE_PRODUCT,
  FERRY_REDUCE_MIN,  // NaN where one element is NaN, as MAX
  FERRY_REDUCE_MAX,
  FERRY_REDUCE_BAND,  // bitwise; integer types only, as the two below
  FERRY_REDUCE_BOR,
  FERRY_REDUCE_BXOR,
} ferry_reduce_op;

// One rank's access to the collectives of a group. One caller at a time per object; objects of a
// group are independent.
typedef struct ferry_collectives ferry_collectives;

typedef struct ferry_collectives_options {
  uint32_t struct_size, version;
  int64_t deadline_ns;  // deadline of each call that gives none; 0: that of the group
  // Bytes of the window of each rank, through which data are moved; 0: 2 MiB. Equal on all ranks.
  int64_t window_bytes;
  // Bytes that ferry_collectives_allocate can hand out on each rank at a time. Equal on all ranks.
  // They are address space in each process, of all ranks together, until they are handed out.
  int64_t shared_bytes;
} ferry_collectives_options;

// Memory that ferry_collectives_allocate handed out.
typedef struct ferry_memory ferry_memory;

// The arguments of a collective. A call reads dtype, deadline_ns and the fields that its comment
// below names, and only during the call. Counts are in elements, and R is the number of ranks.
typedef struct ferry_collective_args {
  uint32_t struct_size, version;
  const void* in;
  void* out;
  int64_t count;
  const int64_t* counts;      // [R]
  const int64_t* out_counts;  // [R]
  int32_t dtype;              // ferry_data_type
  int32_t op;                 // ferry_reduce_op
  int64_t root;               // a rank
  int64_t deadline_ns;        // 0: that of the options
} ferry_collective_args;

// A message of one rank to another.
typedef struct ferry_message_args {
  uint32_t struct_size, version;
  const void* in;  // ferry_send
  void* out;       // ferry_recv
  int64_t count;   // elements
  int64_t tag;
  int32_t dtype;        // ferry_data_type
  int32_t peer;         // the receiver; of ferry_recv the sender, or -1: any rank
  int64_t deadline_ns;  // 0: that of the options
} ferry_message_args;

// Returns "sum", "avg", ..., or "unknown" for a number that is not an operation.
FERRY_EXPORT const char* ferry_reduce_op_name(int32_t reduce_op);

// Collective. `options` may be NULL. If `group` is destroyed first, calls of the object return
// FERRY_CLOSED.
FERRY_EXPORT ferry_code ferry_collectives_create(const ferry_group* group,
                                                 const ferry_collectives_options* options,
                                                 ferry_collectives** collectives);
// Local, returns at once; NULL has no effect. Ranks whose later calls need this rank get
// FERRY_MISMATCH.
FERRY_EXPORT void ferry_collectives_destroy(ferry_collectives* collectives);

// Memory of this rank that the other ranks of its node can read, aligned to 4 KiB. Local, any
// thread. Data of ferry_all_gather_v, ferry_reduce_scatter_v and ferry_broadcast that lie there and
// do not fit the caches are read in place: no rank of the node copies them first. FERRY_CAPACITY
// when this many bytes in a row are not left of shared_bytes, or the machine has no memory for
// them. The memory may outlive `collectives`; after ferry_memory_release it is handed out again.
FERRY_EXPORT ferry_code ferry_collectives_allocate(const ferry_collectives* collectives,
                                                   int64_t bytes, ferry_memory** memory);
FERRY_EXPORT void* ferry_memory_data(const ferry_memory* memory);  // NULL for NULL
FERRY_EXPORT void ferry_memory_release(ferry_memory* memory);      // NULL has no effect

// Collective, the same order on every rank. Calls that differ are FERRY_MISMATCH on all ranks; an
// argument that one rank refuses is FERRY_INVALID_ARGUMENT there and FERRY_PEER_REJECTED elsewhere.
// Overlapping memories in a call are refused, except where a comment says that one may be part of
// the other.

// Sends counts[r] elements of `in` to each rank r, in rank order, and receives out_counts[r] from
// each into `out`.
FERRY_EXPORT ferry_code ferry_all_to_all_v(ferry_collectives* collectives,
                                           const ferry_collective_args* args);
// `out`: the counts[r] elements of each rank r, in rank order. `in`: `count` elements, as many as
// counts has for this rank; may be their part of `out`.
FERRY_EXPORT ferry_code ferry_all_gather_v(ferry_collectives* collectives,
                                           const ferry_collective_args* args);
// `out`: block r of `in`, of counts[r] elements on rank r, reduced over all ranks by `op`; may be
// that block.
FERRY_EXPORT ferry_code ferry_reduce_scatter_v(ferry_collectives* collectives,
                                               const ferry_collective_args* args);
// `out`: the `count` elements of `in`, reduced over all ranks by `op`; may be `in`.
FERRY_EXPORT ferry_code ferry_all_reduce(ferry_collectives* collectives,
                                         const ferry_collective_args* args);
// The same on `root` only. On other ranks `out` may be NULL.
FERRY_EXPORT ferry_code ferry_reduce(ferry_collectives* collectives,
                                     const ferry_collective_args* args);
// Copies the `count` elements in `out` of `root` to `out` of every other rank.
FERRY_EXPORT ferry_code ferry_broadcast(ferry_collectives* collectives,
                                        const ferry_collective_args* args);
// `out` of `root`: the counts[r] elements of `in` of each rank r, in rank order. `in` of the root
// may be its part of `out`. On other ranks `out` may be NULL.
FERRY_EXPORT ferry_code ferry_gather_v(ferry_collectives* collectives,
                                       const ferry_collective_args* args);
// `out`: this rank's counts[rank] elements of `in` of `root`, which has them in rank order. `out`
// of the root may be its part of `in`. On other ranks `in` may be NULL.
FERRY_EXPORT ferry_code ferry_scatter_v(ferry_collectives* collectives,
                                        const ferry_collective_args* args);
// Waits until every rank has called it. deadline_ns 0: that of the options.
FERRY_EXPORT ferry_code ferry_barrier(ferry_collectives* collectives, int64_t deadline_ns);

// Messages of one rank to another with one tag arrive in order. ferry_send returns when the message
// has been copied; for a small message it does not wait for the receiver. An argument is refused on
// this rank alone.
FERRY_EXPORT ferry_code ferry_send(ferry_collectives* collectives, const ferry_message_args* args);
// `source`: the sender; may be NULL. A message of another size or type is FERRY_MISMATCH here, and
// stays for the next call.
FERRY_EXPORT ferry_code ferry_recv(ferry_collectives* collectives, const ferry_message_args* args,
                                   int32_t* source);

#ifdef __cplusplus
}
#endif

// NOLINTEND(readability-identifier-naming)
