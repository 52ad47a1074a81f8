// The C ABI: groups, exchanges, dispatch, combine, their halves, collectives, sizes and errors.
// docs/c_abi.md has the rules, and the parts that only C++ has; examples/dispatch_combine.c is a
// whole program.
//
// Functions that can fail return a ferry_code; FERRY_OK is 0; they never throw. Arguments that a
// dispatch or combine refuses (such as a bad struct_size or a bad id) are refused on all ranks:
// FERRY_INVALID_ARGUMENT on this rank and FERRY_PEER_REJECTED on the others, and the next call
// works (docs/gotchas.md). Other calls with an invalid NULL or a bad struct have no effect: correct
// them and call again. Results are written to the last arguments. On failure objects are set to
// NULL; structs with counts, sizes or times stay as they were. "The same order" means: the same
// collective calls in the same order on every rank.
#pragma once

#include "ferry/c_structs.h"

// NOLINTBEGIN(readability-identifier-naming)

#ifdef __cplusplus
extern "C" {
#endif

// ---- this library

// The version, such as "0.2.0"; and the FERRY_ABI_VERSION of the library's build.
FERRY_EXPORT const char* ferry_version(void);
FERRY_EXPORT uint32_t ferry_abi_version(void);

// ---- errors and names

// The message of the last call of this thread that did not return FERRY_OK, and the rank that
// caused the error, or -1 when none can be named. The message names values, limits and after a wait
// the missing ranks. It is valid until the next such call of this thread, or the end of the thread.
// Before the first error they are "" and -1. Messages are cut at 2047 bytes.
FERRY_EXPORT const char* ferry_last_error_message(void);
FERRY_EXPORT int32_t ferry_last_error_rank(void);
// Sets the last error of this thread and returns `code`. For libraries that build on this one, such
// as libferry_plan.
FERRY_EXPORT ferry_code ferry_set_last_error(ferry_code code, const char* message, int32_t rank);

// Stable lower-case names, such as "peer_rejected", "bf16", as static text; "unknown" for a number
// without a name.
FERRY_EXPORT const char* ferry_code_name(int32_t code);
FERRY_EXPORT const char* ferry_data_type_name(int32_t data_type);
FERRY_EXPORT const char* ferry_layout_name(int32_t layout);
FERRY_EXPORT const char* ferry_wire_name(int32_t wire);
FERRY_EXPORT const char* ferry_combine_wire_name(int32_t combine_wire);

// 1 when the next call on the group can succeed after this code.
FERRY_EXPORT int32_t ferry_code_group_usable(int32_t code);
// Bytes of one element; 0 for a number that is not a type.
FERRY_EXPORT size_t ferry_element_bytes(int32_t data_type);

// ---- groups: the ranks that exchange tokens, as processes of one host or of several, or as
// threads of one process. `options` may be NULL. Creation is collective: if a rank does not take
// part, the others get FERRY_TIMEOUT.

// Reads, in this order: FERRY_ADDR (with FERRY_RANK, FERRY_SIZE), torchrun, Open MPI, Hydra
// (MPICH), PMIx, Slurm.
FERRY_EXPORT ferry_code ferry_group_from_environment(const ferry_group_options* options,
                                                     ferry_group** group);
// Processes that agree on `address`. tcp://host:port, where rank 0 can be reached: of any hosts
// that have the same FERRY_SECRET (ferry/group.h). Any other text, of 1 to 64 bytes: of one host.
FERRY_EXPORT ferry_code ferry_group_connect(const char* address, int32_t rank, int32_t size,
                                            const ferry_group_options* options,
                                            ferry_group** group);
// Processes, of one host or of several, that already have an all-gather (MPI, a store).
FERRY_EXPORT ferry_code ferry_group_from_all_gather(int32_t rank, int32_t size,
                                                    const ferry_all_gather* all_gather,
                                                    const ferry_group_options* options,
                                                    ferry_group** group);
// Threads of this process: groups[i], of [size], is for the thread that is rank i. Not collective:
// one thread makes them all.
FERRY_EXPORT ferry_code ferry_group_threads(int32_t size, const ferry_group_options* options,
                                            ferry_group** groups);
// Makes `size` threads, calls body(group of rank i, context) on thread i and waits for all. The
// groups end with their bodies; bodies do not destroy them. Returns the first code, by rank, that
// is not FERRY_OK, with that rank's last message.
FERRY_EXPORT ferry_code ferry_run_threads(int32_t size,
                                          ferry_code (*body)(ferry_group* group, void* context),
                                          void* context, const ferry_group_options* options);

// Leaves the group and frees the object; NULL has no effect. Local, returns at once. Ranks that
// later wait for this one get FERRY_PEER_LOST, and calls of the group's exchanges FERRY_CLOSED.
// Received rows and handles stay valid.
FERRY_EXPORT void ferry_group_destroy(ferry_group* group);

FERRY_EXPORT int32_t ferry_group_rank(const ferry_group* group);  // -1 for NULL
FERRY_EXPORT int32_t ferry_group_size(const ferry_group* group);  // -1 for NULL
// The launcher that was found and the reason, such as "torchrun", "RANK=3 and WORLD_SIZE=8 are
// set". Valid as long as the group; NULL for NULL.
FERRY_EXPORT const char* ferry_group_launcher(const ferry_group* group);
FERRY_EXPORT const char* ferry_group_reason(const ferry_group* group);
// 0 for NULL, and after a rank died, departed, or missed a deadline: ferry_group_survive() or a new
// group is then needed.
FERRY_EXPORT int32_t ferry_group_usable(const ferry_group* group);
// The view that the group is in: its number, from 1, and its ranks, ascending. `members` has room
// for R; `num_members` of them are written.
FERRY_EXPORT ferry_code ferry_group_view(const ferry_group* group, uint64_t* number,
                                         int32_t* members, int32_t* num_members);
// Collective among the ranks of the view that live. Begins the next view, without the ranks that
// died or left; exchanges go on, and others are made by these ranks. No other call of this rank on
// the group or its exchanges may be in progress (FERRY_INVALID_ARGUMENT if another thread is seen
// to wait in one). FERRY_TIMEOUT names a rank that is alive and did not come (`deadline_ns` 0: the
// deadline of the group); the call may be repeated. FERRY_PEER_LOST between nodes: the
// ranks that can be reached are too few to go on.
FERRY_EXPORT ferry_code ferry_group_survive(ferry_group* group, int64_t deadline_ns);
// Ends the process of a rank (SIGKILL) that is alive and does not come to ferry_group_survive().
// Local; returns when the process has ended, or FERRY_TIMEOUT at the deadline of the group.
// FERRY_INVALID_ARGUMENT: the group is usable; or the rank is this one, a thread of this process,
// of another host, or not in the view. FERRY_SYSTEM: the kernel refuses.
FERRY_EXPORT ferry_code ferry_group_fence(ferry_group* group, int32_t rank);
// Collective among the ranks of the view, between two operations, while the group is usable: lets
// processes take the places of `ranks`, which the view lacks; NULL and 0: of all that it lacks.
// They join with `newcomer` in their options, and wait there until this call. Begins the next view,
// which has them; where it ends with an error, this view goes on on all ranks, and the call may be
// repeated. FERRY_PEER_REJECTED: no process came for a rank in time (`deadline_ns` 0: the deadline
// of the group), or it died. FERRY_PEER_LOST: a member died, and the view is over. Between nodes, a
// newcomer that dies when all are ready may be missing in the next view, which begins all the same:
// FERRY_PEER_REJECTED. Exchanges that all members have go on: the newcomers join them
// (ferry_exchange_join). Only for processes.
FERRY_EXPORT ferry_code ferry_group_admit(ferry_group* group, const int32_t* ranks,
                                          int32_t num_ranks, int64_t deadline_ns);

// Collective. Waits until every rank has called it.
FERRY_EXPORT ferry_code ferry_group_barrier(ferry_group* group);
// Collective. Gathers `bytes` (equal on all ranks) from every rank, in rank order, into `all` of
// R * bytes. The bytes of a rank that the view lacks are 0.
FERRY_EXPORT ferry_code ferry_group_all_gather(ferry_group* group, const void* mine, size_t bytes,
                                               void* all);

// ---- exchanges: one dispatch/combine pair. One caller at a time per exchange.

// Collective. FERRY_INVALID_ARGUMENT names a setting that is not legal, FERRY_MISMATCH the settings
// that differ between ranks, FERRY_CAPACITY or FERRY_SYSTEM the memory that was refused. The other
// ranks get FERRY_PEER_REJECTED for what one rank was refused. If `group` is destroyed first, calls
// of the exchange return FERRY_CLOSED.
FERRY_EXPORT ferry_code ferry_exchange_create(const ferry_group* group, const ferry_config* config,
                                              ferry_exchange** exchange);
// On a rank that took the place of a lost one, in the view that began with it: joins the first
// exchange of this configuration that all members had made before and that this rank has not
// joined. Local. The members go on with the exchange. FERRY_INVALID_ARGUMENT: the members have no
// such exchange; names the settings in which theirs differ.
FERRY_EXPORT ferry_code ferry_exchange_join(const ferry_group* group, const ferry_config* config,
                                            ferry_exchange** exchange);
// Local, returns at once; NULL has no effect. Operations between their halves end without a receive
// half. Received rows, output rows and handles stay valid.
FERRY_EXPORT void ferry_exchange_destroy(ferry_exchange* exchange);

// The bytes of an exchange of `config` on `num_ranks` ranks; no group is needed.
FERRY_EXPORT ferry_code ferry_window_bytes(const ferry_config* config, int32_t num_ranks,
                                           ferry_window* window);
// The same for `rank`: without experts it reserves no receive buffers, without tokens no lists of
// rows that it sends.
FERRY_EXPORT ferry_code ferry_rank_window_bytes(const ferry_config* config, int32_t num_ranks,
                                                int32_t rank, ferry_window* window);

// The configuration that the exchange was created with, with defaults filled in; its arrays are
// valid as long as the exchange.
FERRY_EXPORT ferry_code ferry_exchange_config(const ferry_exchange* exchange, ferry_config* config);
// L, experts of this rank; -1 for NULL.
FERRY_EXPORT int32_t ferry_exchange_num_local_experts(const ferry_exchange* exchange);
// The bytes of this rank; `expected_bytes` are committed now.
FERRY_EXPORT ferry_code ferry_exchange_window_bytes(const ferry_exchange* exchange,
                                                    ferry_window* window);
FERRY_EXPORT ferry_code ferry_exchange_stats(const ferry_exchange* exchange, ferry_stats* stats);
// The last finished operation of `kind` (ferry_operation_kind), and its span 0 <= index <
// num_spans.
FERRY_EXPORT ferry_code ferry_exchange_times(const ferry_exchange* exchange, int32_t kind,
                                             ferry_times* times);
FERRY_EXPORT ferry_code ferry_exchange_span(const ferry_exchange* exchange, int32_t kind,
                                            int64_t index, ferry_span* span);

// ---- operations: collective, the same order on every rank. The rows that `received` held are
// released first; `received` is filled on success and empty after a failure. Only if `args` is a
// bad struct does `received` stay as it was.

FERRY_EXPORT ferry_code ferry_dispatch(ferry_exchange* exchange, const ferry_dispatch_args* args,
                                       ferry_received* received);
FERRY_EXPORT ferry_code ferry_combine(ferry_exchange* exchange, const ferry_combine_args* args);

// Halves; at most `depth` operations are in flight, one more is FERRY_INVALID_ARGUMENT. `operation`
// gets the number by which the receive half names the operation, or 0 on failure. Receive halves
// may be called in any order.
FERRY_EXPORT ferry_code ferry_dispatch_send(ferry_exchange* exchange,
                                            const ferry_dispatch_args* args, uint64_t* operation);
FERRY_EXPORT ferry_code ferry_dispatch_recv(ferry_exchange* exchange, uint64_t operation,
                                            ferry_received* received);
FERRY_EXPORT ferry_code ferry_combine_send(ferry_exchange* exchange, const ferry_combine_args* args,
                                           uint64_t* operation);
FERRY_EXPORT ferry_code ferry_combine_recv(ferry_exchange* exchange, uint64_t operation);
// Local. 1 when the receive half would not wait, except that a combine between nodes may wait for
// the sums that it then requests; also 1 for NULL and for an operation that is not in flight.
FERRY_EXPORT int32_t ferry_poll(ferry_exchange* exchange, uint64_t operation);

// ---- rows and handles: local calls

// Releases the rows and empties the struct; no effect when it holds none.
FERRY_EXPORT ferry_code ferry_received_release(ferry_received* received);

// Window memory [num_rows, hidden] of `dtype` (ferry_data_type) for expert outputs; the rows that
// `outputs` held are released first. FERRY_CAPACITY when too many views are alive or memory is
// refused.
FERRY_EXPORT ferry_code ferry_allocate_outputs(ferry_exchange* exchange, int64_t num_rows,
                                               int64_t hidden, int32_t dtype,
                                               ferry_output_rows* outputs);
FERRY_EXPORT ferry_code ferry_output_rows_release(ferry_output_rows* outputs);
// `may`: 1 when no rank reads, for a combine, the view of the window that `rows` points into, so
// that it may be written again; 1 for any other memory too. Does not wait, and must not be polled
// in a loop (ferry/exchange.h). On failure it is 0: FERRY_INVALID_ARGUMENT for rows that were
// released.
FERRY_EXPORT ferry_code ferry_may_write(ferry_exchange* exchange, const void* rows, int32_t* may);

// Makes a copy of a handle that outlives the received rows, for any number of combines and cached
// dispatches of its exchange; ferry_handle_free frees it, and takes NULL. The caller must not free
// ferry_received.handle.
FERRY_EXPORT ferry_code ferry_handle_keep(const ferry_handle* handle, ferry_handle** kept);
FERRY_EXPORT void ferry_handle_free(ferry_handle* handle);
FERRY_EXPORT ferry_code ferry_handle_counts(const ferry_handle* handle, ferry_counts* counts);

#ifdef __cplusplus
}
#endif

// NOLINTEND(readability-identifier-naming)

#include "ferry/c_collectives.h"
