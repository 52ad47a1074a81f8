"""Clauses of deep_ep: ElasticBuffer. T tokens of a rank, M the most tokens of a rank, N received tokens, P expanded
rows, K top-k.

The rows of a source, and those of an expert when expanded, may have any order; recv_src_metadata contains the order.
"""

import torch

from . import elastic_oracle as oracle
from .clauses import clause
from .deep_ep_oracle import Inputs
from .routing import ids_of_ranks

_TOKENS = [9, 0, 12, 5, 7, 1, 10, 3]  # tokens by rank
_M, _HIDDEN, _ALIGNMENT = 16, 256, 4


class _Round:
    """One dispatch, its results, and the order of its received tokens."""

    def __init__(self, world, expand=False, sync=True, x=None, alignment=_ALIGNMENT, multiple_reduction=True,
                 inputs=None, **more):
        self.world, self.rank, self.expand, self.alignment = world, world.rank, expand, alignment
        self.inputs = inputs or Inputs(world.seed, _TOKENS[:world.size], hidden=_HIDDEN, num_experts=4 * world.size,
                                       top_k=3)
        self.buffer = world.api.ElasticBuffer(
            world.group, num_max_tokens_per_rank=_M, hidden=_HIDDEN, num_topk=self.inputs.top_k,
            allow_hybrid_mode=False, allow_multiple_reduction=multiple_reduction, explicitly_destroy=True)
        world.at_end(self.buffer.destroy)
        inputs, rank = self.inputs, self.rank
        self.recv_x, self.idx, self.weights, self.handle, event = self.buffer.dispatch(
            world.place(inputs.x[rank] if x is None else x(inputs)[rank]), topk_idx=world.place(inputs.topk_idx[rank]),
            topk_weights=world.place(inputs.topk_weights[rank]), num_experts=inputs.num_experts, do_expand=expand,
            num_max_tokens_per_rank=_M, expert_alignment=alignment, do_cpu_sync=sync, **more)
        event.current_stream_wait()
        self.real = len(inputs.arrivals(rank))
        self.metadata = self.handle.recv_src_metadata[:self.real].cpu()
        self.order = self.metadata[:, 0].argsort()  # row of each token, in the oracle's order

    def sorted(self, rows):
        """Returns the received rows in the oracle's order."""
        return rows[:self.real].cpu()[self.order]

    def places(self):
        """Returns int64 [N, K], tokens in the oracle's order: the row of each entry in the expanded layout, or -1."""
        return self.metadata[self.order, 2:].long()

    def outputs(self, expanded):
        """Returns (x of this rank for combine, the rows of all ranks in the oracle's order)."""
        of = [(x.float() * 1.37).bfloat16() for x in self.inputs.x]
        ranks = range(self.inputs.num_ranks)
        if not expanded:
            everybodys = [(self.inputs.received(r, of).float() * (0.5 + r)).bfloat16() for r in ranks]
            mine = torch.zeros(len(self.recv_x), _HIDDEN, dtype=torch.bfloat16)
            mine[self.order] = everybodys[self.rank]
            return mine, everybodys
        everybodys = []
        for r in ranks:
            rows = oracle.expanded(self.inputs, r, self.alignment, of).float()
            factors = torch.tensor([0.5 + slot.k + r for slot in oracle.slots(self.inputs, r, self.alignment)])
            everybodys.append((rows * factors.reshape(-1, 1)).bfloat16())
        mine = torch.zeros(len(self.recv_x), _HIDDEN, dtype=torch.bfloat16)
        where = {slot: row for row, slot in enumerate(oracle.slots(self.inputs, self.rank, self.alignment))}
        for (source, token), places in zip(self.inputs.arrivals(self.rank), self.places()):
            for k, place in enumerate(places.tolist()):
                if place >= 0:
                    mine[place] = everybodys[self.rank][where[oracle.Slot(source, token, k)]]
        return mine, everybodys


@clause("elastic.tokens")
def tokens(world):
    """recv_src_metadata[:, 0] is source rank * M + token: each token that has an expert here, once, by source rank."""
    done = _Round(world)
    numbers = [source * _M + token for source, token in done.inputs.arrivals(world.rank)]
    have = done.metadata[:, 0].tolist()
    world.equal("recv_src_metadata[:, 0], sorted", sorted(have), numbers)
    world.equal("the source ranks of the rows", [n // _M for n in have], [n // _M for n in numbers])


@clause("elastic.rows")
def rows(world):
    """recv_x [N, H] has the tokens that recv_src_metadata names."""
    done = _Round(world)
    world.equal("rows of recv_x", len(done.recv_x), done.real)
    world.same("recv_x by token", done.sorted(done.recv_x), done.inputs.received(world.rank, done.inputs.x))


@clause("elastic.topk_idx")
def topk_idx(world):
    """recv_topk_idx has local experts in their columns, -1 for those of other ranks."""
    done = _Round(world)
    world.same("recv_topk_idx by token", done.sorted(done.idx), done.inputs.received_topk(world.rank)[0])


@clause("elastic.topk_weights")
def topk_weights(world):
    """recv_topk_weights has the sender's weights of local experts; those of others are 0 or the sender's."""
    done = _Round(world)
    ids, want = done.inputs.received_topk(world.rank)
    world.same("recv_topk_weights by token", done.sorted(done.weights).masked_fill(ids < 0, 0), want)


@clause("elastic.handle_counts")
def handle_counts(world):
    """The handle has running sums of received tokens by source rank, and the rows of each expert, exact and rounded
    up."""
    done = _Round(world)
    handle, inputs = done.handle, done.inputs
    world.same("psum_num_recv_tokens_per_scaleup_rank", handle.psum_num_recv_tokens_per_scaleup_rank,
               oracle.psum_per_rank(inputs, world.rank))
    world.same("psum_num_recv_tokens_per_expert", handle.psum_num_recv_tokens_per_expert,
               oracle.psum_per_expert(inputs, world.rank, _ALIGNMENT, False))
    counts = oracle.counts(inputs, world.rank)
    world.equal("num_unaligned_recv_tokens_per_expert", handle.num_unaligned_recv_tokens_per_expert.tolist(), counts)
    world.equal("num_recv_tokens_per_expert_list", handle.num_recv_tokens_per_expert_list,
                [oracle.aligned(count, _ALIGNMENT) for count in counts])


@clause("elastic.handle_call")
def handle_call(world):
    """The handle has num_experts, expert_alignment, num_max_tokens_per_rank, do_expand and topk_idx of the call."""
    done = _Round(world, expand=True)
    handle = done.handle
    world.equal("the handle's numbers", (handle.num_experts, handle.expert_alignment, handle.num_max_tokens_per_rank,
                                         bool(handle.do_expand)), (done.inputs.num_experts, _ALIGNMENT, _M, True))
    world.same("handle.topk_idx", handle.topk_idx, done.inputs.topk_idx[world.rank])


@clause("elastic.expanded_rows")
def expanded_rows(world):
    """do_expand: a row for each entry, in its expert's part, which begins at a multiple of the alignment;
    recv_src_metadata[:, 2:] says where."""
    done = _Round(world, expand=True)
    inputs, places = done.inputs, done.places()
    world.equal("rows of recv_x", len(done.recv_x), len(oracle.slots(inputs, world.rank, _ALIGNMENT)))
    world.equal("recv_topk_idx", done.idx, None)
    world.same("psum_num_recv_tokens_per_expert", done.handle.psum_num_recv_tokens_per_expert,
               oracle.psum_per_expert(inputs, world.rank, _ALIGNMENT, True))
    ends = oracle.psum_per_expert(inputs, world.rank, _ALIGNMENT, True).tolist()
    counts, recv_x = oracle.counts(inputs, world.rank), done.recv_x.cpu()
    taken = []
    for (source, token), line in zip(inputs.arrivals(world.rank), places.tolist()):
        for k, local in oracle.entries(inputs, world.rank, source, token):
            taken.append(line[k])
            inside = ends[local] - counts[local] <= line[k] < ends[local]
            world.holds(inside, f"token {token} of rank {source}: row {line[k]} is not in the part of expert {local}")
            if inside:
                world.same(f"recv_x[{line[k]}]", recv_x[line[k]], inputs.x[source][token])
    world.equal("entries that share a row", len(taken) - len(set(taken)), 0)


@clause("elastic.expanded_weights")
def expanded_weights(world):
    """do_expand: recv_topk_weights [P] has the weight of each row's entry."""
    done = _Round(world, expand=True)
    inputs, have = done.inputs, done.weights.cpu()
    world.equal("the shape of recv_topk_weights", tuple(have.shape), (len(done.recv_x),))
    for (source, token), line in zip(inputs.arrivals(world.rank), done.places().tolist()):
        for k, _ in oracle.entries(inputs, world.rank, source, token):
            world.same(f"recv_topk_weights[{line[k]}]", have[line[k]], inputs.topk_weights[source][token, k])


@clause("elastic.zero_padding")
def zero_padding(world):
    """do_zero_padding: rows between experts are zero."""
    done = _Round(world, expand=True, do_zero_padding=True)
    gaps = torch.ones(len(done.recv_x), dtype=torch.bool)
    places = done.places()
    gaps[places[places >= 0]] = False
    world.holds(not bool(done.recv_x.cpu()[gaps].float().any()), "a row between experts is not zero")


@clause("elastic.no_cpu_sync")
def no_cpu_sync(world):
    """do_cpu_sync=False: M * R rows, an empty list, and the same rows and counts at their beginning."""
    done = _Round(world, sync=False)
    world.equal("rows of recv_x", len(done.recv_x), _M * world.size)
    world.equal("num_recv_tokens_per_expert_list", list(done.handle.num_recv_tokens_per_expert_list), [])
    world.same("recv_x by token", done.sorted(done.recv_x), done.inputs.received(world.rank, done.inputs.x))
    world.same("psum_num_recv_tokens_per_scaleup_rank", done.handle.psum_num_recv_tokens_per_scaleup_rank,
               oracle.psum_per_rank(done.inputs, world.rank))
    x, everybodys = done.outputs(False)
    world.same("combined_x", done.buffer.combine(world.place(x), done.handle)[0],
               oracle.combined(done.inputs, world.rank, everybodys))


def _pairs(inputs):
    generator = torch.Generator().manual_seed(3)
    return [(x.float().clamp(-4, 4).to(torch.float8_e4m3fn), torch.rand(len(x), 2, generator=generator))
            for x in inputs.x]


@clause("elastic.scales")
def scales(world):
    """A pair (float8 rows, scales of 4 bytes) arrives bit for bit."""
    done = _Round(world, x=_pairs)
    pairs = _pairs(done.inputs)
    for part in range(2):
        have = done.sorted(done.recv_x[part]) if len(done.recv_x[part]) == done.real else done.recv_x[part]
        world.same(f"recv_x[{part}] by token", have, done.inputs.received(world.rank, [pair[part] for pair in pairs]))


@clause("elastic.column_major_scales")
def column_major_scales(world):
    """use_tma_aligned_col_major_sf: scales have strides (1, rows rounded up to 4)."""
    done = _Round(world, x=_pairs, use_tma_aligned_col_major_sf=True)
    factors = done.recv_x[1]
    world.holds(len(factors) < 2 or factors.stride() == (1, oracle.aligned(len(factors), 4)),
                f"the strides of the scales are {factors.stride()}")


@clause("elastic.cached")
def cached(world):
    """With a handle the rows of another x come in the same places, and the same handle comes back."""
    for expand in (False, True):
        done = _Round(world, expand=expand)
        other = [x * 3 for x in done.inputs.x]
        recv_x, _, _, handle, _ = done.buffer.dispatch(world.place(other[world.rank]), handle=done.handle,
                                                       do_expand=expand, num_sms=done.handle.num_sms)
        world.holds(handle is done.handle, "another handle came back")
        gap = torch.ones(len(recv_x), dtype=torch.bool)
        rows = done.places()[done.places() >= 0] if expand else torch.arange(done.real)
        gap[rows] = False
        world.same("recv_x", recv_x.cpu().masked_fill(gap[:, None], 0),
                   (done.recv_x.cpu() * 3).masked_fill(gap[:, None], 0))


@clause("elastic.statistics")
def statistics(world):
    """cumulative_local_expert_recv_stats int32 [L] is added to."""
    stats = world.place(torch.full((4,), 5, dtype=torch.int32))
    done = _Round(world, cumulative_local_expert_recv_stats=stats)
    world.equal("cumulative_local_expert_recv_stats", stats.tolist(),
                [5 + count for count in oracle.counts(done.inputs, world.rank)])


def _sums(name, expand, multiple_reduction, text):
    def check(world):
        done = _Round(world, expand=expand, multiple_reduction=multiple_reduction)
        x, everybodys = done.outputs(expand)
        out = done.buffer.combine(world.place(x), done.handle)[0]
        world.same("combined_x", out, oracle.combined(done.inputs, world.rank, everybodys, alignment=_ALIGNMENT,
                                                      expand=expand, multiple_reduction=multiple_reduction))

    check.__doc__ = text
    return clause(name)(check)


_sums("elastic.combine", False, True, "combine adds the rows of a token, ranks ascending, in float32, and rounds once.")
_sums("elastic.combine_expanded", True, True, "Expanded rows of a rank are added in k order and rounded, then those "
      "sums in the place of the rank's highest k.")
_sums("elastic.combine_every_row", True, False, "Without multiple reduction every expanded row is added in k order, "
      "and rounded once.")


@clause("elastic.combine_bias")
def combine_bias(world):
    """bias, one tensor or two, is what the sum starts with."""
    done = _Round(world)
    x, everybodys = done.outputs(False)
    generator = torch.Generator().manual_seed(5)
    shape = done.inputs.x[world.rank].shape
    bias = [torch.randn(shape, generator=generator).bfloat16() for _ in range(2)]
    for given in (bias[:1], bias):
        argument = world.place(given[0] if len(given) == 1 else tuple(given))
        world.same(f"combined_x with {len(given)} biases",
                   done.buffer.combine(world.place(x), done.handle, bias=argument)[0],
                   oracle.combined(done.inputs, world.rank, everybodys, given))


@clause("elastic.combine_weights")
def combine_weights(world):
    """topk_weights return with the values that the owner of each expert gave, and 0 where the id is -1."""
    done = _Round(world)
    x, _ = done.outputs(False)
    returned = done.buffer.combine(world.place(x), done.handle, topk_weights=done.weights)[1]
    ids, weights = done.inputs.topk_idx[world.rank], done.inputs.topk_weights[world.rank]
    world.same("combined_topk_weights", returned, weights.masked_fill(ids < 0, 0))


@clause("elastic.barrier")
def barrier(world):
    """barrier() returns on all ranks, and dispatches before and after it are not disturbed."""
    done = _Round(world)
    done.buffer.barrier()
    world.same("recv_x by token", done.sorted(done.recv_x), done.inputs.received(world.rank, done.inputs.x))


@clause("trace.elastic")
def trace(world):
    """The ids of a router trace (--routing, or skewed ones): rows and sums of an expanded exchange are right."""
    ids, num_experts = ids_of_ranks(world, _M)
    inputs = Inputs(world.seed, [_M] * world.size, hidden=_HIDDEN, num_experts=num_experts, top_k=ids[0].shape[1])
    inputs.choose(ids)
    done = _Round(world, expand=True, inputs=inputs)
    world.equal("the tokens of the rows", sorted(done.metadata[:, 0].tolist()),
                [source * _M + token for source, token in inputs.arrivals(world.rank)])
    x, everybodys = done.outputs(expanded=True)
    world.same("combined_x", done.buffer.combine(world.place(x), done.handle)[0],
               oracle.combined(inputs, world.rank, everybodys, alignment=_ALIGNMENT, expand=True))
