"""ferry.deep_ep, low-latency calls: rows, scales and sums against the oracle, and the shapes that
programs use them in: a test loop, an engine that overlaps two batches."""

import functools
import itertools

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from ferry.conformance.low_latency_case import (  # noqa: E402
    Case, LOW_32, MODES, expected_sum, expert, in_groups, seen_by_experts,
)
from ferry.deep_ep import Buffer  # noqa: E402
from low_latency_calls import RANKS, as_bytes, check_received, combine, dispatch, run_experts  # noqa: E402

make_buffer = functools.partial(Buffer, low_latency_mode=True)


def round_trip(group, case, mode):
    buffer = make_buffer(group)
    for _ in range(2):
        received, counts, handle, event, hook = dispatch(buffer, case, mode)
        assert hook is None
        event.current_stream_wait()
        check_received(case, group.rank, mode, received, counts, handle)
        outputs = run_experts(case, group.rank, received, counts, mode)
        summed, event, hook = combine(buffer, case, outputs, handle)
        assert hook is None
        event.current_stream_wait()
        assert torch.equal(summed, expected_sum(case, group.rank, mode))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", RANKS)
def test_rows_scales_and_sums_are_those_of_the_oracle(ranks, mode):
    ferry.run_threads(ranks, round_trip, Case(ranks, seed=ranks), mode)


CASES = {
    "no tokens at all": Case(2, tokens=(0, 0)),
    "one rank has tokens": Case(4, tokens=(0, 5, 0, 0), max_tokens=5),
    "duplicates": Case(3, duplicates=True, top_k=4, drop=0, tokens=(2, 1, 2)),
    "more choices than local experts": Case(3, num_experts=3, top_k=3, seed=7),
    "everything dropped": Case(2, drop=1.0, tokens=(3, 4)),
    "odd hidden": Case(3, hidden=200, seed=3),
    "one channel": Case(2, hidden=1, seed=4),
    "capacity not a multiple of four": Case(3, max_tokens=3, hidden=384, seed=5),
    "experts that the ranks do not divide": Case(3, num_experts=5, seed=10),
    "fewer experts than ranks": Case(4, num_experts=2, seed=11),
    "wide": Case(2, hidden=1152, top_k=4, num_experts=8, seed=6),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_shapes_beyond_deep_eps_limits(name, mode):
    ferry.run_threads(CASES[name].ranks, round_trip, CASES[name], mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tokens_of_other_types(dtype, mode):
    ferry.run_threads(2, round_trip, Case(2, dtype=dtype, seed=8), mode)


# A program in the style of DeepEP's own test: it gets the others' inputs from an all-gather, and everything else
# about rows from the handle.


def gathered(group, tensor):
    """[R, ...] of equal shapes."""
    parts = group.all_gather(bytes(as_bytes(tensor).flatten().tolist()))
    return torch.stack([torch.frombuffer(bytearray(part), dtype=tensor.dtype).view(tensor.shape) for part in parts])


def difference(a, b):
    a, b = a.double() + 1, b.double() + 1
    return float(1 - 2 * (a * b).sum() / (a * a + b * b).sum())


def program_that_gathers(group, ranks):
    max_tokens, hidden, num_experts, top_k = 8, 512, 4 * ranks, 3
    random = torch.Generator().manual_seed(group.rank)
    x = torch.full((max_tokens, hidden), float(group.rank - 4), dtype=torch.bfloat16)
    x[:, -128:] = torch.arange(max_tokens, dtype=torch.bfloat16)[:, None]
    ids = torch.rand(max_tokens, num_experts, generator=random).topk(top_k)[1]
    ids[2, 1] = ids[5, 0] = -1
    weights = torch.rand(max_tokens, top_k, generator=random)
    all_ids = gathered(group, ids)
    buffer = make_buffer(group)
    for fp8, hooks, (logfmt, zero_copy) in itertools.product((0, 1), (0, 1), ((0, 0), (0, 1), (1, 0))):
        stats = torch.zeros(4, dtype=torch.int32)
        received, counts, handle, event, hook = buffer.low_latency_dispatch(
            x, ids, max_tokens, num_experts, use_fp8=bool(fp8), cumulative_local_expert_recv_stats=stats,
            async_finish=not hooks, return_recv_hook=bool(hooks))
        hook() if hooks else event.current_stream_wait()
        assert torch.equal(stats, counts)
        rows = received[0].float() * received[1].repeat_interleave(128, 2) if fp8 else received.float()
        for local in range(4):
            mine = all_ids == group.rank * 4 + local
            assert int(counts[local]) == int(mine.sum())
            for source, packed in enumerate(handle[1][local].tolist()):
                begin, count = packed >> 32, packed & LOW_32
                assert count == int(mine[source].sum())
                block = rows[local, begin:begin + count]
                assert torch.allclose(block[:, :-128], torch.tensor(float(source - 4)), rtol=1e-6)
                tokens = handle[0][local, begin:begin + count]
                assert tokens.tolist() == mine[source].any(1).nonzero().flatten().tolist()
                assert torch.allclose(block[:, -128:], tokens[:, None].float(), rtol=1e-6)
        outputs = rows.to(torch.bfloat16)
        if zero_copy:
            buffer.get_next_low_latency_combine_buffer(handle)[:, :, :] = outputs
        out = torch.empty(max_tokens, hidden, dtype=torch.bfloat16)
        summed, event, hook = buffer.low_latency_combine(
            outputs, ids, weights, handle, use_logfmt=bool(logfmt), zero_copy=bool(zero_copy), out=out,
            async_finish=not hooks, return_recv_hook=bool(hooks))
        hook() if hooks else event.current_stream_wait()
        assert summed is out
        share = weights.masked_fill(ids == -1, 0).sum(1, keepdim=True)
        assert difference(summed.float(), x.float() * share) < (9e-4 if logfmt else 1e-5)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_program_that_gathers_the_inputs_and_checks_by_the_handle(ranks):
    ferry.run_threads(ranks, program_that_gathers, ranks)


def in_processes(group):
    round_trip(group, Case(2, seed=9), "ue8m0")
    program_that_gathers(group, 2)


def test_ranks_that_are_processes():
    ferry.spawn(2, in_processes)


# An engine's prepare and finalize: two halves of a batch on one buffer; the experts of one half compute while rows of
# the other are sent; the outputs go where the engine wants them.


class Engine:
    def __init__(self, buffer, case, mode):
        self.buffer, self.case, self.mode = buffer, case, mode
        self.handles = [None, None]

    def prepare_async(self, half, x, ids):
        expert_x, counts, self.handles[half], _, hook = self.buffer.low_latency_dispatch(
            x, ids, self.case.max_tokens, self.case.num_experts, async_finish=False, return_recv_hook=True,
            **MODES[self.mode])
        return hook, lambda: (expert_x, counts)

    def finalize_async(self, half, outputs, ids, weights, out):
        hook = self.buffer.low_latency_combine(
            outputs, ids, weights, self.handles[half], async_finish=False, zero_copy=False, return_recv_hook=True,
            out=out)[2]
        return hook


def overlapped_halves(group, case, mode):
    engine = Engine(make_buffer(group), case, mode)
    x, ids, weights = case.inputs(group.rank)
    halves = [slice(0, len(x) // 2), slice(len(x) // 2, len(x))]
    out = torch.full(x.shape, float("nan"), dtype=case.dtype)
    for _ in range(3):
        first, first_rows = engine.prepare_async(0, x[halves[0]], ids[halves[0]])
        second, second_rows = engine.prepare_async(1, x[halves[1]], ids[halves[1]])
        first()
        outputs = run_experts(case, group.rank, *first_rows(), mode)
        first = engine.finalize_async(0, outputs, ids[halves[0]], weights[halves[0]], out[halves[0]])
        outputs.fill_(float("nan"))  # the engine's workspace serves the other half next
        second()
        outputs.copy_(run_experts(case, group.rank, *second_rows(), mode))
        second = engine.finalize_async(1, outputs, ids[halves[1]], weights[halves[1]], out[halves[1]])
        outputs.fill_(float("nan"))
        first()
        second()
        second()  # no work remains
        assert torch.equal(out, expected_sum(case, group.rank, mode))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_an_engine_overlaps_two_halves_with_hooks(ranks, mode):
    ferry.run_threads(ranks, overlapped_halves, Case(ranks, max_tokens=8, seed=20 + ranks), mode)


def third_in_flight(group, case):
    buffer = make_buffer(group)
    sent = [dispatch(buffer, case, return_recv_hook=True) for _ in range(2)]
    with pytest.raises(ferry.Error, match="2 operations are in flight, the depth is 2"):
        dispatch(buffer, case, return_recv_hook=True)
    for received, counts, handle, _, hook in reversed(sent):
        hook()
        hook()  # no work remains
        check_received(case, group.rank, "bf16", received, counts, handle)


def test_a_third_operation_in_flight_is_refused():
    ferry.run_threads(2, third_in_flight, Case(2, seed=30))


def combine_before_hook(group, case):
    buffer = make_buffer(group)
    received, counts, handle, _, hook = dispatch(buffer, case, return_recv_hook=True)
    with pytest.raises(ferry.InvalidArgument, match="hook"):
        combine(buffer, case, torch.zeros_like(received), handle)
    hook()
    check_received(case, group.rank, "bf16", received, counts, handle)


def test_combine_before_the_hook_of_its_dispatch_is_refused():
    ferry.run_threads(2, combine_before_hook, Case(2, seed=31))


# ---- logfmt


def steps_of_logfmt(rows):
    """float32 [rows, H]: the largest error of an element after ten bits. It is half of 1/510 of the span of its block,
    plus bf16's rounding. The span is taken in the bits of a float, from the bf16 below its smallest to the one above
    its largest."""
    bits = in_groups(rows).abs().view(torch.int32).long()
    smallest = torch.where(bits == 0, 1 << 40, bits).amin(-1, keepdim=True) >> 16 << 16
    largest = (bits.amax(-1, keepdim=True) + 0xFFFF) >> 16 << 16
    step = (largest - smallest).clamp(min=0) / 1020 + 1
    upper = (bits + step.long() + 1).int().view(torch.float32)
    lower = (bits - step.long() - 1).clamp(min=0).int().view(torch.float32)
    return ((upper - lower) * (bits > 0)).flatten(-2)[..., : rows.shape[-1]] + rows.float().abs() * 2.0**-8


def summed_by_logfmt(group, case, mode):
    buffer = make_buffer(group)
    x, ids, weights = case.inputs(group.rank)
    received, counts, handle, _, _ = dispatch(buffer, case, mode)
    outputs = run_experts(case, group.rank, received, counts, mode)
    for hooks in (False, True):
        summed, _, hook = combine(buffer, case, outputs, handle, use_logfmt=True, return_recv_hook=hooks)
        if hooks:
            hook()
        exact = expected_sum(case, group.rank, mode)
        bound = exact.float().abs() * 2.0**-7
        seen = seen_by_experts(x, mode)
        for token, k in (ids >= 0).nonzero().tolist():
            row = expert(seen[token], int(ids[token, k]), case.dtype)
            bound[token] += weights[token, k] * steps_of_logfmt(row.float()[None])[0]
        assert bool(((summed.float() - exact.float()).abs() <= bound).all())
        assert not torch.equal(summed, exact)  # ten bits are not enough for this input: the wire was used
    assert torch.equal(combine(buffer, case, outputs, handle)[0], exact)


@pytest.mark.parametrize("mode", ["bf16", "fp8"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_logfmt_stays_within_ten_bits(ranks, mode):
    case = Case(ranks, tokens=(6,) * ranks, seed=50, hidden=300 if ranks == 2 else 512)
    ferry.run_threads(ranks, summed_by_logfmt, case, mode)
