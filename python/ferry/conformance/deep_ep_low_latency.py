"""Clauses of deep_ep: Buffer's low-latency calls. L experts of a rank, M most tokens of a rank, R ranks.

The rows of an expert are in blocks, one for each source rank. The blocks, and the tokens in a block, may have any
order; the handle contains the order.
"""

import torch

from . import low_latency_case as cases
from .clauses import clause
from .routing import ids_of_ranks

_M, _HIDDEN = 8, 2048


def _case(world, **shape):
    tokens = (8, 3, 0, 5, 8, 1, 2, 7)[:world.size]
    return cases.Case(world.size, max_tokens=_M, hidden=_HIDDEN, seed=world.seed, tokens=tokens, top_k=2, **shape)


def _buffer(world, case):
    size = world.api.Buffer.get_low_latency_rdma_size_hint(case.max_tokens, case.hidden, case.ranks, case.num_experts)
    buffer = world.api.Buffer(world.group, 0, size, low_latency_mode=True, explicitly_destroy=True,
                              num_qps_per_rank=max(case.num_experts // case.ranks, 1))
    world.at_end(buffer.destroy)
    return buffer


def _inputs(world, case):
    return tuple(map(world.place, case.inputs(world.rank)))


def _send(world, buffer, case, mode="bf16", **more):
    x, ids, _ = _inputs(world, case)
    return buffer.low_latency_dispatch(x, ids, case.max_tokens, case.num_experts, **cases.MODES[mode], **more)


def _home(world, buffer, case, outputs, handle, **more):
    _, ids, weights = _inputs(world, case)
    return buffer.low_latency_combine(world.place(outputs), ids, weights, handle, **more)


def _places(world, case, handle):
    """Returns [(local expert, row, source rank, token)] of the received rows, read from the handle."""
    source_tokens, layout = handle[0].cpu(), handle[1].cpu()
    found = []
    for local in range(layout.shape[0]):
        for source, (begin, count) in enumerate(cases.blocks_of(layout[local])):
            found += [(local, row, source, int(source_tokens[local, row])) for row in range(begin, begin + count)]
    return found


def _wanted(case, rank):
    """Returns the expected sorted list of (local expert, source rank, token)."""
    mine = case.my_experts(rank)
    return sorted((e - mine.start, *arrival) for e in mine for arrival in case.arrivals(e))


def _check_rows(world, case, mode, received, handle):
    rows, scales = (received, None) if mode == "bf16" else received
    rows, places = rows.cpu(), _places(world, case, handle)
    world.equal("what the handle says of rows", sorted((p[0], p[2], p[3]) for p in places), _wanted(case, world.rank))
    for local, row, source, token in places:
        if token >= len(case.inputs(source)[0]):
            continue  # said above
        x = case.inputs(source)[0][token]
        if mode == "bf16":
            world.same(f"recv_x[{local}, {row}] of token {token} of rank {source}", rows[local, row], x)
            continue
        bytes_, exact = cases.quantised(x[None], mode)
        world.same(f"recv_x[0][{local}, {row}] of token {token} of rank {source}",
                   rows[local, row].contiguous().view(torch.uint8), bytes_[0])
        found = scales.cpu()[local, row]
        world.same(f"recv_x[1][{local}, {row}]", cases.unpacked(found) if mode == "ue8m0" else found, exact[0])


def _outputs(world, case, handle, mode="bf16"):
    """Returns the outputs [L, R * M, H] of the experts for the received rows; the other rows are 0."""
    out = torch.zeros(len(case.my_experts(world.rank)), case.capacity, case.hidden, dtype=case.dtype)
    for local, row, source, token in _places(world, case, handle):
        x = cases.seen_by_experts(case.inputs(source)[0][token][None], mode)[0]
        out[local, row] = cases.expert(x, case.my_experts(world.rank)[local], case.dtype)
    return out


@clause("low_latency.shapes")
def shapes(world):
    """recv_x is [L, R * M, H] of x's type, recv_count int32 [L], and the handle (int32 [L, R * M], int64 [L, R], M, H,
    E)."""
    case = _case(world)
    recv_x, counts, handle, *_ = _send(world, _buffer(world, case), case)
    local = case.num_experts // case.ranks
    world.equal("recv_x", (tuple(recv_x.shape), recv_x.dtype), ((local, case.capacity, case.hidden), torch.bfloat16))
    world.equal("recv_count", (tuple(counts.shape), counts.dtype), ((local,), torch.int32))
    world.equal("handle[0]", (tuple(handle[0].shape), handle[0].dtype), ((local, case.capacity), torch.int32))
    world.equal("handle[1]", (tuple(handle[1].shape), handle[1].dtype), ((local, case.ranks), torch.int64))
    world.equal("handle[2:5]", tuple(handle[2:5]), (case.max_tokens, case.hidden, case.num_experts))


@clause("low_latency.counts")
def counts(world):
    """recv_count says how many rows each local expert got; -1 is sent to nobody."""
    case = _case(world, drop=0.4)
    _, have, *_ = _send(world, _buffer(world, case), case)
    want = [len(case.arrivals(e)) for e in case.my_experts(world.rank)]
    world.same("recv_count", have, torch.tensor(want, dtype=torch.int32))


@clause("low_latency.blocks")
def blocks(world):
    """The handle's ranges (first row << 32 | rows) of an expert do not overlap and fill its first recv_count rows."""
    case = _case(world)
    _, have, handle, *_ = _send(world, _buffer(world, case), case)
    for local in range(len(case.my_experts(world.rank))):
        rows = sorted(row for expert, row, *_ in _places(world, case, handle) if expert == local)
        world.equal(f"the rows of expert {local}", rows, list(range(int(have[local]))))


def _rows_of(name, mode, text):
    def check(world):
        case = _case(world)
        buffer = _buffer(world, case)
        for _ in range(2):
            received, _, handle, *_ = _send(world, buffer, case, mode)
            _check_rows(world, case, mode, received, handle)

    check.__doc__ = text
    return clause(name)(check)


_rows_of("low_latency.rows", "bf16", "Each row is the token that handle[0] names, of the source that handle[1] names.")
_rows_of("low_latency.fp8", "fp8", "use_fp8: e4m3 rows and float32 scales, the largest magnitude of 128 channels, at "
         "least 1e-4, over 448.")
_rows_of("low_latency.round_scale", "pow2", "round_scale rounds scales up to powers of two.")
_rows_of("low_latency.ue8m0", "ue8m0", "use_ue8m0 packs four exponents of scales into an int32.")


@clause("low_latency.scale_order")
def scale_order(world):
    """The last two dimensions of the scales are column-major."""
    case = _case(world)
    (_, scales), *_ = _send(world, _buffer(world, case), case, "fp8")
    world.equal("the stride of rows of the scales", scales.stride(1), 1)


@clause("low_latency.hook")
def hook(world):
    """With return_recv_hook everything is there after hook(), of the dispatch and of the combine."""
    case = _case(world)
    buffer = _buffer(world, case)
    recv_x, _, handle, _, wait = _send(world, buffer, case, return_recv_hook=True)
    wait()
    _check_rows(world, case, "bf16", recv_x, handle)
    out, _, wait = _home(world, buffer, case, _outputs(world, case, handle), handle, return_recv_hook=True)
    wait()
    world.same("combined_x", out, cases.expected_sum(case, world.rank, "bf16"))


@clause("low_latency.two_in_flight")
def two_in_flight(world):
    """Two dispatches may be between their halves; each hook brings its own rows."""
    first, second = _case(world), _case(world, drop=0.5)
    buffer = _buffer(world, first)
    sent = [_send(world, buffer, case, return_recv_hook=True) for case in (first, second)]
    for case, (recv_x, _, handle, _, wait) in zip((first, second), sent):
        wait()
        _check_rows(world, case, "bf16", recv_x, handle)


@clause("low_latency.statistics")
def statistics(world):
    """cumulative_local_expert_recv_stats int32 [L] is added to, not overwritten."""
    case = _case(world)
    buffer = _buffer(world, case)
    stats = world.place(torch.full((len(case.my_experts(world.rank)),), 3, dtype=torch.int32))
    want = torch.tensor([len(case.arrivals(e)) for e in case.my_experts(world.rank)], dtype=torch.int32)
    for _ in range(2):
        _send(world, buffer, case, cumulative_local_expert_recv_stats=stats)
    world.same("cumulative_local_expert_recv_stats", stats, 3 + 2 * want)


def _sums(name, mode, text, drop=0.15):
    def check(world):
        case = _case(world, drop=drop)
        buffer = _buffer(world, case)
        handle = _send(world, buffer, case, mode)[2]
        out, *_ = _home(world, buffer, case, _outputs(world, case, handle, mode), handle)
        world.same("combined_x", out, cases.expected_sum(case, world.rank, mode))

    check.__doc__ = text
    return clause(name)(check)


_sums("low_latency.combine", "bf16", "combine multiplies by topk_weights and adds in float32 in the order of columns, "
      "and rounds once.")
_sums("low_latency.combine_unused", "bf16", "An id of -1 adds nothing; a token of which all are -1 gets zeros.", 0.6)
_sums("low_latency.combine_fp8", "fp8", "A handle of a dispatch with use_fp8 is combined in the same way.")


@clause("low_latency.out")
def out_argument(world):
    """out is written and returned."""
    case = _case(world)
    buffer = _buffer(world, case)
    handle = _send(world, buffer, case)[2]
    want = cases.expected_sum(case, world.rank, "bf16")
    given = world.place(torch.full_like(want, 7))
    have, *_ = _home(world, buffer, case, _outputs(world, case, handle), handle, out=given)
    world.holds(have.data_ptr() == given.data_ptr(), "combined_x is not out")
    world.same("out", given, want)


@clause("low_latency.zero_copy")
def zero_copy(world):
    """With zero_copy the rows are those in get_next_low_latency_combine_buffer(handle), whatever x has."""
    case = _case(world)
    buffer = _buffer(world, case)
    handle = _send(world, buffer, case)[2]
    outputs = _outputs(world, case, handle)
    buffer.get_next_low_latency_combine_buffer(handle)[:, :, :] = world.place(outputs)
    have, *_ = _home(world, buffer, case, torch.zeros_like(outputs), handle, zero_copy=True)
    world.same("combined_x", have, cases.expected_sum(case, world.rank, "bf16"))


@clause("low_latency.logfmt")
def logfmt(world):
    """use_logfmt: sums within 9e-4, in DeepEP's measure of difference."""
    case = _case(world)
    buffer = _buffer(world, case)
    handle = _send(world, buffer, case)[2]
    have, *_ = _home(world, buffer, case, _outputs(world, case, handle), handle, use_logfmt=True)
    world.near("combined_x", have, cases.expected_sum(case, world.rank, "bf16"), 9e-4)


@clause("trace.low_latency")
def trace(world):
    """With ids of a router trace (--routing; else skewed ids), rows and sums of a low-latency exchange are right."""
    ids, num_experts = ids_of_ranks(world, _M)
    case = cases.Case(world.size, max_tokens=_M, hidden=_HIDDEN, seed=world.seed, tokens=(_M,) * world.size,
                      num_experts=num_experts, top_k=ids[0].shape[1], ids=tuple(ids))
    buffer = _buffer(world, case)
    received, _, handle, *_ = _send(world, buffer, case)
    _check_rows(world, case, "bf16", received, handle)
    combined = _home(world, buffer, case, _outputs(world, case, handle), handle)[0]
    world.same("combined_x", combined, cases.expected_sum(case, world.rank, "bf16"))
