"""Clauses of deep_ep: Buffer's normal kernels in a node. T tokens of a rank, N received rows, R ranks, E experts."""

import torch

from .clauses import clause
from .deep_ep_oracle import Inputs
from .routing import ids_of_ranks

_TOKENS = [11, 4, 0, 17, 8, 1, 23, 6]  # tokens by rank; one rank has none
_HIDDEN, _BYTES = 256, 1 << 28


def _inputs(world, **given):
    return Inputs(**{"seed": world.seed, "num_tokens": _TOKENS[:world.size], "hidden": _HIDDEN,
                     "num_experts": 4 * world.size, "top_k": 4, **given})


def _buffer(world):
    buffer = world.api.Buffer(world.group, _BYTES, 0, explicitly_destroy=True)
    world.at_end(buffer.destroy)
    return buffer


def _layout(world, buffer, inputs):
    made = buffer.get_dispatch_layout(world.place(inputs.topk_idx[world.rank]), inputs.num_experts)
    return dict(zip(("num_tokens_per_rank", "num_tokens_per_rdma_rank", "num_tokens_per_expert", "is_token_in_rank"),
                    made))


def _send(world, buffer, inputs, topk=True, x=None, **more):
    rank, arguments = world.rank, _layout(world, buffer, inputs)
    if topk:
        arguments.update(topk_idx=world.place(inputs.topk_idx[rank]),
                         topk_weights=world.place(inputs.topk_weights[rank]))
    return buffer.dispatch(world.place(inputs.x[rank]) if x is None else x, **arguments, **more)


def _outputs(inputs):
    """Returns made-up outputs of the experts for the received rows of each rank. Their sum can have other bits if it is
    added in another order or rounded more than once, so that a test finds that."""
    return [(inputs.received(rank, inputs.x).float() * (0.37 + rank)).bfloat16() for rank in range(inputs.num_ranks)]


def _check_sum(world, inputs, buffer, handle, what="combined_x"):
    """A combine of all outputs."""
    outputs = _outputs(inputs)
    world.same(what, buffer.combine(world.place(outputs[world.rank]), handle)[0], inputs.combined(world.rank, outputs))


def _sent(world, **shape):
    """Makes a dispatch and returns (inputs, buffer, the results of the dispatch)."""
    inputs, buffer = _inputs(world, **shape), _buffer(world)
    return inputs, buffer, _send(world, buffer, inputs)


@clause("layout.ranks")
def layout_ranks(world):
    """get_dispatch_layout counts a token once for each rank that has one of its experts, as int32, and returns these
    ranks as bool [T, R]."""
    inputs = _inputs(world)
    layout = _layout(world, _buffer(world), inputs)
    world.same("is_token_in_rank", layout["is_token_in_rank"], inputs.mask(world.rank))
    world.same("num_tokens_per_rank", layout["num_tokens_per_rank"], inputs.mask(world.rank).sum(0).int())


@clause("layout.experts")
def layout_experts(world):
    """get_dispatch_layout counts a token once for each of its experts; -1 counts as nothing."""
    inputs = _inputs(world, unused=0.5)
    layout = _layout(world, _buffer(world), inputs)
    world.same("num_tokens_per_expert", layout["num_tokens_per_expert"], inputs.per_expert(world.rank))


@clause("layout.node")
def layout_node(world):
    """num_tokens_per_rdma_rank is None inside a node."""
    layout = _layout(world, _buffer(world), _inputs(world))
    world.equal("num_tokens_per_rdma_rank", layout["num_tokens_per_rdma_rank"], None)


@clause("dispatch.rows")
def rows(world):
    """recv_x has one row for each token that has an expert here, ordered by source rank, then token."""
    inputs, _, (recv_x, *_) = _sent(world)
    world.same("recv_x", recv_x, inputs.received(world.rank, inputs.x))


@clause("dispatch.topk_idx")
def topk_idx(world):
    """recv_topk_idx has ids of local experts in their columns, and -1 in those of other ranks' experts."""
    inputs, _, (_, idx, *_) = _sent(world)
    world.same("recv_topk_idx", idx, inputs.received_topk(world.rank)[0])


@clause("dispatch.topk_weights")
def topk_weights(world):
    """recv_topk_weights is 0 where recv_topk_idx is -1, elsewhere the sender's weight."""
    inputs, _, (_, _, weights, *_) = _sent(world)
    world.same("recv_topk_weights", weights, inputs.received_topk(world.rank)[1])


@clause("dispatch.expert_list")
def expert_list(world):
    """num_recv_tokens_per_expert_list is a list of ints: the rows of each local expert."""
    inputs, _, (_, _, _, counts, *_) = _sent(world)
    world.equal("num_recv_tokens_per_expert_list", counts, inputs.expert_list(world.rank))


@clause("dispatch.expert_alignment")
def alignment(world):
    """expert_alignment rounds the reported counts up, and changes no rows."""
    inputs, buffer = _inputs(world), _buffer(world)
    recv_x, _, _, counts, *_ = _send(world, buffer, inputs, expert_alignment=8)
    world.equal("num_recv_tokens_per_expert_list", counts, inputs.expert_list(world.rank, 8))
    world.same("recv_x", recv_x, inputs.received(world.rank, inputs.x))


@clause("dispatch.without_topk")
def without_topk(world):
    """Without topk_idx the same rows come, ids and weights are None, and the counts are those of the layout."""
    inputs, buffer = _inputs(world), _buffer(world)
    recv_x, idx, weights, counts, *_ = _send(world, buffer, inputs, topk=False)
    world.same("recv_x", recv_x, inputs.received(world.rank, inputs.x))
    world.equal("recv_topk_idx and recv_topk_weights", (idx, weights), (None, None))
    world.equal("num_recv_tokens_per_expert_list", counts, inputs.expert_list(world.rank))


def _quantised(inputs):
    generator = torch.Generator().manual_seed(7)
    rows = [x.float().clamp(-4, 4).to(torch.float8_e4m3fn) for x in inputs.x]
    return rows, [torch.rand(len(x), inputs.hidden // 128, generator=generator) for x in inputs.x]


@clause("dispatch.scales")
def scales(world):
    """A pair (float8 rows, float32 scales) arrives bit for bit; the scales may have any strides and come
    contiguous."""
    inputs, buffer = _inputs(world), _buffer(world)
    data, factors = _quantised(inputs)
    strided = factors[world.rank].t().contiguous().t()
    (recv_x, recv_scales), *_ = _send(world, buffer, inputs, x=world.place((data[world.rank], strided)))
    world.same("recv_x[0]", recv_x, inputs.received(world.rank, data))
    world.same("recv_x[1]", recv_scales, inputs.received(world.rank, factors))
    world.holds(recv_scales.is_contiguous(), "recv_x[1] is not contiguous")


@clause("dispatch.worst_tokens")
def worst_tokens(world):
    """num_worst_tokens: that many rows, ids of -1 after the received rows, an empty list, and combine takes these
    rows."""
    inputs, buffer = _inputs(world), _buffer(world)
    most, real = sum(inputs.num_tokens) + 3, len(inputs.arrivals(world.rank))
    recv_x, idx, _, counts, handle, _ = _send(world, buffer, inputs, num_worst_tokens=most)
    world.equal("rows of recv_x and recv_topk_idx", (len(recv_x), len(idx)), (most, most))
    world.equal("num_recv_tokens_per_expert_list", counts, [])
    world.same("recv_x", recv_x[:real], inputs.received(world.rank, inputs.x))
    world.holds(bool((idx[real:] == -1).all()), "recv_topk_idx behind the real rows is not -1")
    outputs = _outputs(inputs)
    padded = torch.zeros(most, inputs.hidden, dtype=torch.bfloat16)
    padded[:real] = outputs[world.rank]
    world.same("combined_x", buffer.combine(world.place(padded), handle)[0], inputs.combined(world.rank, outputs))


@clause("dispatch.handle")
def handle_contents(world):
    """The handle is a tuple of 6; [0] is int32 [R, R], tokens from ranks up to i to rank j; [3] the token that each row
    was; [4] is_token_in_rank."""
    inputs, _, (_, _, _, _, handle, _) = _sent(world)
    counts = torch.stack([inputs.mask(rank).sum(0) for rank in range(world.size)])
    world.equal("the length of the handle", len(handle), 6)
    world.same("handle[0]", handle[0], counts.cumsum(0).int())
    world.same("handle[3]", handle[3], torch.tensor([t for _, t in inputs.arrivals(world.rank)], dtype=torch.int32))
    world.same("handle[4]", handle[4], inputs.mask(world.rank))


@clause("dispatch.cached")
def cached(world):
    """With a handle the rows of another x come along the same routes; ids, weights, list and handle are None."""
    inputs, buffer, (*_, handle, _) = _sent(world)
    other = [x * 3 for x in inputs.x]
    recv_x, idx, weights, counts, again, _ = buffer.dispatch(world.place(other[world.rank]), handle=handle)
    world.same("recv_x", recv_x, inputs.received(world.rank, other))
    world.equal("the other results", (idx, weights, counts, again), (None, None, None, None))


@clause("dispatch.all_to_one")
def all_to_one(world):
    """All tokens of all ranks may go to one rank; the others receive no rows."""
    inputs = _inputs(world, num_experts=world.size, top_k=1, unused=0)
    for ids in inputs.topk_idx:
        ids.fill_(0)
    inputs.route()
    buffer = _buffer(world)
    recv_x, _, _, counts, handle, _ = _send(world, buffer, inputs)
    world.same("recv_x", recv_x, inputs.received(world.rank, inputs.x))
    world.equal("num_recv_tokens_per_expert_list", counts, inputs.expert_list(world.rank))
    _check_sum(world, inputs, buffer, handle)


@clause("dispatch.nothing")
def nothing(world):
    """Tokens whose ids are all -1 go nowhere, and combine gives zeros for them."""
    inputs, buffer, (recv_x, _, _, counts, handle, _) = _sent(world, unused=1.1)
    world.equal("rows of recv_x", len(recv_x), 0)
    world.equal("the sum of the list", sum(counts), 0)
    world.same("combined_x", buffer.combine(recv_x, handle)[0],
               torch.zeros(inputs.num_tokens[world.rank], inputs.hidden, dtype=torch.bfloat16))


@clause("dispatch.kept_results")
def kept_results(world):
    """What a dispatch returned stays what it was through later dispatches and combines."""
    inputs, buffer, (recv_x, idx, weights, _, handle, _) = _sent(world)
    other = _inputs(world, seed=world.seed + 1)
    for _ in range(3):
        later = _send(world, buffer, other)
        buffer.combine(later[0], later[4])
    world.same("recv_x", recv_x, inputs.received(world.rank, inputs.x))
    want_idx, want_weights = inputs.received_topk(world.rank)
    world.same("recv_topk_idx", idx, want_idx)
    world.same("recv_topk_weights", weights, want_weights)
    _check_sum(world, inputs, buffer, handle, "combined_x of the older handle")


@clause("dispatch.async")
def asynchronous(world):
    """async_finish with previous_event and allocate_on_comm_stream: the results are there after current_stream_wait."""
    inputs, buffer = _inputs(world), _buffer(world)
    recv_x, *_, event = _send(world, buffer, inputs, previous_event=world.api.Buffer.capture(), async_finish=True,
                              allocate_on_comm_stream=True)
    event.current_stream_wait()
    world.same("recv_x", recv_x, inputs.received(world.rank, inputs.x))


@clause("combine.sum")
def combine_sum(world):
    """combined_x adds the rows of a token, ranks ascending, in float32, without weights, and rounds once."""
    inputs, buffer, (*_, handle, _) = _sent(world, top_k=min(8, 4 * world.size), unused=0.1)
    _check_sum(world, inputs, buffer, handle)


@clause("combine.bias")
def combine_bias(world):
    """bias, one tensor or two, is what the float32 sum starts with; a token that went nowhere gets it alone."""
    inputs, buffer, (*_, handle, _) = _sent(world, unused=0.6)
    outputs, generator = _outputs(inputs), torch.Generator().manual_seed(5)
    bias = [torch.randn(inputs.num_tokens[world.rank], inputs.hidden, generator=generator).bfloat16() for _ in range(2)]
    mine = world.place(outputs[world.rank])
    world.same("combined_x with one bias", buffer.combine(mine, handle, bias=world.place(bias[0]))[0],
               inputs.combined(world.rank, outputs, bias[:1]))
    world.same("combined_x with two", buffer.combine(mine, handle, bias=world.place(bias))[0],
               inputs.combined(world.rank, outputs, bias))


@clause("combine.topk_weights")
def combine_weights(world):
    """topk_weights [N, K] return summed as the rows are; without them the second result is None."""
    inputs, buffer, (*_, handle, _) = _sent(world)
    outputs = _outputs(inputs)
    weights = [inputs.received_topk(rank)[1] for rank in range(world.size)]
    mine = world.place(outputs[world.rank])
    returned = buffer.combine(mine, handle, topk_weights=world.place(weights[world.rank]))[1]
    world.same("combined_topk_weights", returned, inputs.combined(world.rank, weights))
    world.equal("combined_topk_weights without topk_weights", buffer.combine(mine, handle)[1], None)


@clause("combine.apart")
def combine_apart(world):
    """Half of the ranks have all tokens, the other half the experts that they chose: the first receive no rows and get
    all results, the second receive all rows and get none."""
    half = world.size // 2
    inputs = _inputs(world, num_tokens=[count if rank < half else 0 for rank, count in enumerate(_TOKENS[:world.size])])
    owners = world.size - half
    generator = torch.Generator().manual_seed(world.seed)
    for ids in inputs.topk_idx:
        chosen = torch.rand(len(ids), 4 * owners, generator=generator).argsort(dim=1)[:, :ids.shape[1]] + 4 * half
        ids.copy_(chosen.masked_fill(ids < 0, -1))
    inputs.route()
    buffer = _buffer(world)
    recv_x, *_, handle, _ = _send(world, buffer, inputs)
    world.same("recv_x", recv_x, inputs.received(world.rank, inputs.x))
    world.holds(len(recv_x) == 0 or world.rank >= half, f"rank {world.rank} received {len(recv_x)} rows, need 0")
    _check_sum(world, inputs, buffer, handle)


@clause("combine.repeated")
def combine_repeated(world):
    """A handle is good for any number of combines, in any order with others."""
    inputs, buffer, (recv_x, *_, first, _) = _sent(world)
    second = _send(world, buffer, inputs)[4]
    for handle in (second, first, second):
        _check_sum(world, inputs, buffer, handle)
    backward = buffer.dispatch(world.place(inputs.x[world.rank]), handle=first)[0]
    world.same("a dispatch with the first handle", backward, recv_x.cpu())


@clause("combine.own_memory")
def combine_own_memory(world):
    """x may be written to as soon as a combine that is not asynchronous has returned."""
    inputs, buffer, (*_, handle, _) = _sent(world)
    outputs = _outputs(inputs)
    for _ in range(5):
        x = world.place(outputs[world.rank].clone())
        out = buffer.combine(x, handle)[0]
        x.fill_(float("nan"))
        world.same("combined_x", out, inputs.combined(world.rank, outputs))


@clause("trace.normal")
def trace(world):
    """The ids of a router trace (--routing, or skewed ones): layout, rows, ids, counts and sums are right."""
    ids, num_experts = ids_of_ranks(world, 32)
    inputs = _inputs(world, num_tokens=[32] * world.size, num_experts=num_experts, top_k=ids[0].shape[1])
    inputs.choose(ids)
    buffer = _buffer(world)
    layout = _layout(world, buffer, inputs)
    world.same("num_tokens_per_expert", layout["num_tokens_per_expert"], inputs.per_expert(world.rank))
    recv_x, idx, _, counts, handle, _ = _send(world, buffer, inputs)
    world.same("recv_x", recv_x, inputs.received(world.rank, inputs.x))
    world.same("recv_topk_idx", idx, inputs.received_topk(world.rank)[0])
    world.equal("num_recv_tokens_per_expert_list", counts, inputs.expert_list(world.rank))
    _check_sum(world, inputs, buffer, handle)
