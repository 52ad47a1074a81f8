// The docstrings of dispatch, combine and Collectives.
#pragma once

namespace ferry::python {

inline constexpr const char* kDispatchDoc =
    R"(Sends each token to the ranks of its experts, and returns the rows that this rank
receives, as ferry.Received.

tokens: [T, H] of the exchange's dtype; rows may have a pitch.
topk_ids: int32 or int64 [T, K]; -1: not sent.
topk_weights: float32 [T, K], sent with the rows.
handle: of an earlier dispatch, whose routing is used again; topk_ids is not given then.
token_mask [T], topk_mask [T, K]: bool or uint8; false: not sent.
scales: float32 [1 or experts, 1 or H], smooth scales of wire "int8", scales of "int8_static".
token_scales: [T, n], scale_bytes in each row, sent unchanged.
replica_table: int32 [logical experts], the instance that this rank's tokens go to.
active_ranks: the ranks that take part. Their order numbers them as sources, and is that of sums
    over ranks.
deadline: seconds of every wait; None: the deadline of the group.

Collective. A refused call raises ferry.InvalidArgument on this rank and ferry.PeerRejected on the
other ranks; the group can be used after that.)";

inline constexpr const char* kCombineDoc =
    R"(Returns expert rows to their sources and sums them: out[t] = biases + sum over k of
topk_weights[t, k] * row, in float32, rounded once. docs/numerics.md has the order of the sum.

expert_rows: [handle.num_rows, H'] in dispatch order (padded: [L, C, H']), read in place where
    they are ferry's memory unless in_place is False. Rows that are read in place may be written
    again when Exchange.may_write returns True; rows that are copied, once combine or combine_send
    has returned.
handle: of the dispatch.
topk_weights: float32 [T, K]; None: plain sum.
bias: one or two [T, H'] of out's dtype.
row_weights: float32 [N] (rank_major [N, K]), sent back to their sources, which write them to
    out_topk_weights [T, K].
out: [T, H'], written and returned; made like expert_rows, of out_dtype, when None.
dispatched: a dict of the arguments of dispatch, in place of a handle, and for copy and constant
    experts.
constants: (alpha1, alpha2, v), each [constant_experts, H].
shared_output: [T, H'], added unweighted.
residual [T, H'], gamma [H'], epsilon, y [T, H'], rstd [T]: fused RMSNorm; y and rstd are written.
partials: "per_rank" (expert layouts): the rows of one rank are summed and rounded to their type
    first, and added in the place of its highest k.
deadline: seconds of every wait; None: the deadline of the group.

Collective; errors as for dispatch.)";

inline constexpr const char* kCollectivesDoc =
    R"(The collectives of a group, over contiguous arrays on the CPU whose sizes all ranks know.

group: of ferry.init, ferry.spawn or ferry.run_threads.
deadline: seconds that a call may wait; None: the deadline of the group.
window_bytes: the memory of each rank through which its data pass, in chunks; equal on all ranks.
shared_bytes: what empty() can hand out on each rank at a time; equal on all ranks. They are address
    space in each process, of all ranks together, until they are handed out.
creation_deadline: seconds in which the ranks must come to make it; None: the deadline of the group.

Arrays have any shape and are taken as their elements in memory order. Counts are in elements, a
list of one for each rank. Elements of any type can be moved; bf16, fp16, float32, float64, integers
and bool can be reduced. op: "sum", "avg" (floating-point), "product", "min", "max", and for
integers "band", "bor", "bxor"; the sum of bools is "bor". Ranks are reduced in ascending order,
bf16 and fp16 in float32 and rounded once (docs/numerics.md). deadline of a call: seconds; None:
that of the object.

Making it and all calls except those for messages and close are collective: every rank makes the
same calls in the same order, one at a time. Another thread may move messages meanwhile (send, recv,
progress), also one at a time. ferry.InvalidArgument for an argument that is refused, and
ferry.PeerRejected on the other ranks; ferry.Mismatch on all ranks when their calls differ, naming
the ranks and values; the group can be used after each. ferry.PeerLost, ferry.Timeout: the group is
broken.)";

}  // namespace ferry::python
