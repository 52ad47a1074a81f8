"""ferry.deep_ep, low-latency calls: the owner of the rows' memory, handles that were taken apart, statistics, ranks
that are left out, refusals."""

import functools
import dataclasses
import re
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from ferry.deep_ep import Buffer  # noqa: E402
from ferry.conformance.low_latency_case import Case, MODES, expected_sum, expert  # noqa: E402
from low_latency_calls import check_received, combine, dispatch, run_experts  # noqa: E402

make_buffer = functools.partial(Buffer, low_latency_mode=True)


# ---- the owner of the memory


def rows_handed_back(group, case, overwritten):
    """x of combine may be written to as soon as combine returned, although x is memory of the window."""
    buffer = make_buffer(group)
    received, counts, handle, _, _ = dispatch(buffer, case)
    assert int(counts.sum()) > 0
    if group.rank == 0:
        summed = combine(buffer, case, received, handle)[0]
        received.fill_(float("nan"))
        overwritten.set()
    else:  # reads the rows of rank 0 after that
        summed, _, hook = combine(buffer, case, received, handle, return_recv_hook=True)
        received.fill_(float("nan"))
        assert overwritten.wait(30)
        hook()
    assert torch.equal(summed, plain_sum(case, group.rank))


def plain_sum(case, rank):
    """The result of combine for the received rows themselves."""
    x, ids, weights = case.inputs(rank)
    total = torch.zeros(x.shape)
    for k in range(case.top_k):
        total[ids[:, k] >= 0] += (weights[:, k:k + 1] * x.float())[ids[:, k] >= 0]
    return total.to(case.dtype)


@pytest.mark.parametrize("ranks", [2, 4])
def test_rows_given_to_combine_may_be_written_to_afterwards(ranks):
    case = Case(ranks, tokens=(5,) * ranks, top_k=4, drop=0, seed=40)
    ferry.run_threads(ranks, rows_handed_back, case, threading.Event())


def zero_copy_rows(group, case):
    buffer = make_buffer(group)
    for _ in range(10):  # more than fit in the window, if all were kept
        received, counts, handle, _, _ = dispatch(buffer, case)
        filled = buffer.get_next_low_latency_combine_buffer(handle)
        assert filled.shape == received.shape and filled.dtype == case.dtype
        assert buffer.get_next_low_latency_combine_buffer(handle).data_ptr() == filled.data_ptr()
        filled.copy_(run_experts(case, group.rank, received, counts, "bf16"))
        before = buffer.exchanges.current.stats().bytes_copied
        summed = combine(buffer, case, received, handle, zero_copy=True)[0]  # the buffer is read, not x
        assert buffer.exchanges.current.stats().bytes_copied == before
        assert torch.equal(summed, expected_sum(case, group.rank, "bf16"))
        assert buffer.get_next_low_latency_combine_buffer(handle).data_ptr() != filled.data_ptr()  # others may read it
    rows = run_experts(case, group.rank, received, counts, "bf16")
    assert torch.equal(combine(buffer, case, rows, handle)[0], summed)  # the handle is still valid
    expected = case.hidden * 2 * sum(len(case.arrivals(number)) for number in case.my_experts(group.rank))
    assert buffer.exchanges.current.stats().bytes_copied == before + expected


@pytest.mark.parametrize("ranks", [1, 3])
def test_zero_copy_moves_no_row_into_the_window(ranks):
    ferry.run_threads(ranks, zero_copy_rows, Case(ranks, seed=41, drop=0))


def received_rows_are_the_window(group, case):
    buffer = make_buffer(group)
    for mode in list(MODES) * 10:  # more than fit in the window, if all were kept
        received = dispatch(buffer, case, mode)[0]
        assert buffer.exchanges.current.stats().bytes_copied == 0
    del received


def test_received_rows_are_views_of_the_window():
    ferry.run_threads(2, received_rows_are_the_window, Case(2, seed=42))


def kept_by_hooks(group, case, mode):
    buffer = make_buffer(group)
    kept = []
    for number in range(9):
        *each, _, hook = dispatch(buffer, case, mode, return_recv_hook=True)
        hook()
        kept.append(each)
        if number < 5:
            buffer.exchanges.current.empty(1)
        else:  # the first six are the window's buffers
            with pytest.raises(ferry.Capacity, match="6 views of the window are alive"):
                buffer.exchanges.current.empty(1)
    for received, counts, handle in kept:
        check_received(case, group.rank, mode, received, counts, handle)


@pytest.mark.parametrize("mode", MODES)
def test_a_hook_brings_rows_into_the_window_while_there_is_room(mode):
    ferry.run_threads(2, kept_by_hooks, Case(2, seed=43), mode)


# ---- handles that engines took apart


def edited_handles(group, case):
    buffer = make_buffer(group)
    received, counts, handle, _, _ = dispatch(buffer, case)
    outputs = run_experts(case, group.rank, received, counts, "bf16")
    expected = expected_sum(case, group.rank, "bf16")
    tokens, ranges, max_tokens, hidden, num_experts = handle
    for edited in (list(handle), (tokens.view(-1), ranges.flatten(), max_tokens, hidden, num_experts),
                   (tokens[-1:, -1:], ranges.t(), max_tokens, hidden, num_experts),
                   (tokens.detach(), ranges, max_tokens, 3 * hidden, num_experts)):
        assert torch.equal(combine(buffer, case, outputs, edited)[0], expected)
    others = dispatch(buffer, case)  # a later dispatch does not take the handle's place
    assert torch.equal(combine(buffer, case, outputs, handle)[0], expected)
    del handle, tokens, ranges, edited
    received, counts, handle, _, _ = others
    narrow = outputs[:, :, : case.hidden // 2].contiguous()
    assert torch.equal(combine(buffer, case, narrow, handle)[0], expected[:, : case.hidden // 2])
    edited = (*handle[:3], case.hidden // 2, handle[4])
    buffer.get_next_low_latency_combine_buffer(edited).copy_(narrow)
    assert torch.equal(combine(buffer, case, narrow, edited, zero_copy=True)[0], expected[:, : case.hidden // 2])
    for wrong, said in (((handle[0].clone(), handle[1].clone(), *handle[2:]), "handle"),
                        ((*handle[:2], case.max_tokens + 1, *handle[3:]), f"{case.max_tokens + 1}"),
                        ((*handle[:4], case.num_experts + 1), f"{case.num_experts + 1}"),
                        (handle[:2], "handle"), (None, "handle"), (normal_handle(buffer, case), "of Buffer.dispatch")):
        with pytest.raises(ferry.InvalidArgument, match=said):
            combine(buffer, case, outputs, wrong)
    assert torch.equal(combine(buffer, case, outputs, handle)[0], expected)


def normal_handle(buffer, case):
    x, ids, weights = case.inputs(buffer.rank)
    per_rank, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(ids, case.num_experts)
    return buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=is_in_rank,
                           num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights)[4]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_handles_are_known_by_their_tensors(ranks):
    ferry.run_threads(ranks, edited_handles, Case(ranks, seed=60))


def entries_skipped_at_home(group, case):
    """-1 in the ids of a combine: the entry adds nothing."""
    buffer = make_buffer(group)
    _, ids, weights = case.inputs(group.rank)
    received, counts, handle, _, _ = dispatch(buffer, case)
    outputs = run_experts(case, group.rank, received, counts, "bf16")
    ids = ids.clone()
    ids[:, 0] = -1
    summed = buffer.low_latency_combine(outputs, ids, weights, handle)[0]
    x, given, _ = case.inputs(group.rank)
    for token in range(len(x)):
        number = int(ids[token, 1])
        exact = weights[token, 1] * expert(x[token], number).float() if number >= 0 else torch.zeros(case.hidden)
        assert torch.equal(summed[token], exact.to(case.dtype))
    ids = given.clone()
    received, counts, handle, _, _ = buffer.low_latency_dispatch(x, ids, case.max_tokens, case.num_experts,
                                                                 use_fp8=False)
    ids.fill_(-1)  # the caller uses its memory for something else
    assert torch.equal(combine(buffer, case, outputs, handle)[0], expected_sum(case, group.rank, "bf16"))


def test_entries_that_combine_is_told_to_skip():
    ferry.run_threads(2, entries_skipped_at_home, Case(2, seed=61))


# ---- statistics


def counted_and_timed(group, shape, together):
    """Rank 1 is late for every call; together: a barrier of the ranks, outside ferry."""
    case = Case(2, tokens=(4, 4), seed=70)
    buffer = make_buffer(group)
    dispatch(buffer, case)  # makes the exchange, for which ranks wait as well
    counted = torch.full((len(case.my_experts(group.rank)),), 7, dtype=torch.int32)
    waited, combined = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)

    def check_wait(statistics, before):
        mine, mine_before = (each if len(shape) == 1 else each[group.rank] for each in (statistics, before))
        assert int(statistics.sum()) == int(mine.sum()) and int(mine[group.rank]) == 0
        if group.rank == 0:
            assert 0.03 < int(mine[1] - mine_before[1]) / 1e9 < 20

    for hooks in (False, True):
        before = waited.clone()
        together.wait()
        group.rank == 1 and time.sleep(0.15)
        received, counts, handle, _, hook = dispatch(
            buffer, case, cumulative_local_expert_recv_stats=counted, dispatch_wait_recv_cost_stats=waited,
            return_recv_hook=hooks)
        hooks and hook()
        check_wait(waited, before)
        outputs, before = run_experts(case, group.rank, received, counts, "bf16"), combined.clone()
        together.wait()
        group.rank == 1 and time.sleep(0.15)
        hook = combine(buffer, case, outputs, handle, combine_wait_recv_cost_stats=combined, return_recv_hook=hooks)[2]
        hooks and hook()
        check_wait(combined, before)
    assert torch.equal(counted, 7 + 2 * counts)


@pytest.mark.parametrize("shape", [(2,), (2, 2)])
def test_statistics_add_up(shape):
    ferry.run_threads(2, counted_and_timed, shape, threading.Barrier(2, timeout=20))


# ---- ranks that are left out


def masks(buffer):
    status = torch.full((buffer.group_size,), 5, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    return status.tolist()


def one_left_out(group, case, left_out, mode, stays):
    buffer = make_buffer(group, enable_shrink=True)
    assert masks(buffer) == [0] * case.ranks
    round_of(buffer, case, mode, ())
    buffer.low_latency_update_mask_buffer(left_out, True)
    assert masks(buffer) == [int(rank == left_out) for rank in range(case.ranks)]
    for hooks in (False, True):
        if group.rank != left_out or stays:
            round_of(buffer, case, mode, (left_out,), hooks)
    if stays:
        buffer.low_latency_clean_mask_buffer()
        assert masks(buffer) == [0] * case.ranks
        round_of(buffer, case, mode, ())
        buffer.low_latency_update_mask_buffer(left_out, True)
        buffer.low_latency_update_mask_buffer(left_out)
        round_of(buffer, case, mode, (), True)
    group.barrier()


def round_of(buffer, case, mode, masked, hooks=False):
    sources = [rank for rank in range(case.ranks) if rank not in masked]
    waited = torch.zeros(2, case.ranks, dtype=torch.int64)
    received, counts, handle, _, hook = dispatch(buffer, case, mode, return_recv_hook=hooks,
                                                 dispatch_wait_recv_cost_stats=waited[0])
    hooks and hook()
    inside = buffer.rank in sources
    check_received(case, buffer.rank, mode, received, counts, handle, sources if inside else [])
    outputs = run_experts(case, buffer.rank, received, counts, mode)
    summed, _, hook = combine(buffer, case, outputs, handle, return_recv_hook=hooks,
                              combine_wait_recv_cost_stats=waited[1])
    hooks and hook()
    assert not waited[:, list(masked) if inside else slice(None)].any()
    expected = expected_sum(case, buffer.rank, mode, masked if inside else range(case.ranks))
    assert torch.equal(summed, expected)
    summed = combine(buffer, case, outputs, handle, use_logfmt=True)[0].float()
    assert torch.allclose(summed, expected.float(), rtol=0.05, atol=0.05 * float(expected.abs().max()))


@pytest.mark.parametrize("mode", ["bf16", "ue8m0"])
@pytest.mark.parametrize("left_out", [0, 2])
@pytest.mark.parametrize("stays", [True, False])
def test_a_rank_left_out_is_neither_sent_to_nor_waited_for(mode, left_out, stays):
    case = Case(3, tokens=(4, 5, 3), seed=80, top_k=4)
    ferry.run_threads(3, one_left_out, case, left_out, mode, stays, deadline=20)


def refused_among_those_left(group, case):
    buffer = make_buffer(group, enable_shrink=True)
    dispatch(buffer, case)
    buffer.low_latency_update_mask_buffer(1, True)
    if group.rank != 1:
        with pytest.raises(ferry.InvalidArgument if group.rank == 0 else ferry.PeerRejected, match="async_finish"):
            dispatch(buffer, case, async_finish=group.rank == 0, return_recv_hook=True)
        received, counts, handle, _, _ = dispatch(buffer, case)
        outputs = run_experts(case, group.rank, received, counts, "bf16")
        with pytest.raises(ferry.InvalidArgument if group.rank == 0 else ferry.PeerRejected, match="topk_weights"):
            x, ids, weights = case.inputs(group.rank)
            buffer.low_latency_combine(outputs, ids, weights.double() if group.rank == 0 else weights, handle)
        assert torch.equal(combine(buffer, case, outputs, handle)[0], expected_sum(case, group.rank, "bf16", (1,)))
    group.barrier()


def test_a_refusal_does_not_wait_for_masked_ranks():
    ferry.run_threads(3, refused_among_those_left, Case(3, tokens=(4, 5, 3), seed=81), deadline=20)


def masks_refused(group):
    buffer = make_buffer(group)
    for call in (lambda: buffer.low_latency_update_mask_buffer(0, True), buffer.low_latency_clean_mask_buffer,
                 lambda: masks(buffer)):
        with pytest.raises(ferry.InvalidArgument, match="enable_shrink"):
            call()
    buffer = make_buffer(group, enable_shrink=True)
    with pytest.raises(ferry.InvalidArgument, match="rank_to_mask is 2"):
        buffer.low_latency_update_mask_buffer(2, True)
    with pytest.raises(ferry.InvalidArgument, match="mask_status"):
        buffer.low_latency_query_mask_buffer(torch.zeros(2))
    buffer.low_latency_update_mask_buffer(0, True)
    with pytest.raises(ferry.InvalidArgument, match="no rank"):
        buffer.low_latency_update_mask_buffer(1, True)
    assert masks(buffer) == [1, 0]


def test_masks_need_shrink_mode_and_a_rank_that_stays():
    ferry.run_threads(2, masks_refused)


# ---- refusals: this rank gets the reason, the others get that this rank refused, and all go on


def wrong_dispatches(case):
    x, ids, _ = case.inputs(case.ranks - 1)
    right = dict(x=x, topk_idx=ids, num_max_dispatch_tokens_per_rank=case.max_tokens, num_experts=case.num_experts,
                 use_fp8=False)
    more = torch.cat([x] * 3)
    return {
        "too many tokens": (dict(right, x=more, topk_idx=torch.cat([ids] * 3)),
                            f"{len(more)} tokens.* {case.max_tokens}"),
        "ids of other tokens": (dict(right, topk_idx=ids[:1]), "topk_idx"),
        "ids of a strange type": (dict(right, topk_idx=ids.double()), "topk_idx|topk_ids"),
        "an expert that is not there": (dict(right, topk_idx=torch.full_like(ids, case.num_experts)),
                                        f"{case.num_experts}"),
        "a broken number of tokens": (dict(right, num_max_dispatch_tokens_per_rank=2.5), "per_rank is 2.5, need 1"),
        "no experts": (dict(right, num_experts=0), "num_experts is 0, need 1 to"),
        "too many experts of a token": (dict(right, topk_idx=torch.zeros(len(x), 33, dtype=torch.int64)), "1 to 32"),
        "tokens of a strange type": (dict(right, x=x.double()), "x is.*float64"),
        "tokens in three dimensions": (dict(right, x=x[None]), "x is.*3"),
        "hook and async": (dict(right, async_finish=True, return_recv_hook=True), "async_finish.*return_recv_hook"),
        "counts of a strange type": (dict(right, cumulative_local_expert_recv_stats=torch.zeros(2)), "cumulative"),
        "waits of a strange shape": (dict(right, dispatch_wait_recv_cost_stats=torch.zeros(9, dtype=torch.int64)),
                                     "wait_recv_cost_stats"),
        "exponents without rounding": (dict(right, use_fp8=True, use_ue8m0=True), "round_scale"),
    }


def wrong_combines(case, rows, handle):
    x, ids, weights = case.inputs(case.ranks - 1)
    right = dict(x=rows, topk_idx=ids, topk_weights=weights, handle=handle)
    return {
        "rows of a strange shape": (dict(right, x=rows[:, 1:]), "x is"),
        "rows of a strange type": (dict(right, x=rows.double()), "float64"),
        "weights of a strange type": (dict(right, topk_weights=weights.double()), "topk_weights"),
        "nested weights": (dict(right, topk_weights=torch.nested.nested_tensor([torch.ones(2)])), "NestedTensorImpl"),
        "weights of other tokens": (dict(right, topk_weights=weights[1:]), "topk_weights"),
        "other experts": (dict(right, topk_idx=(ids + 1) % case.num_experts), "topk_idx"),
        "ids of other tokens": (dict(right, topk_idx=ids[1:]), "topk_idx"),
        "out of a strange shape": (dict(right, out=torch.empty(len(x) + 1, case.hidden, dtype=case.dtype)), "out"),
        "out of a strange type": (dict(right, out=torch.empty(x.shape, dtype=torch.float64)), "out"),
        "zero copy and logfmt": (dict(right, zero_copy=True, use_logfmt=True), "zero_copy.*use_logfmt"),
        "zero copy without a buffer": (dict(right, zero_copy=True), "get_next_low_latency_combine_buffer"),
        "hook and async": (dict(right, async_finish=True, return_recv_hook=True), "async_finish.*return_recv_hook"),
        "waits of a strange type": (dict(right, combine_wait_recv_cost_stats=torch.zeros(2)), "wait"),
    }


def refused_calls(group, case, kind):
    buffer = make_buffer(group)
    mode = "ue8m0" if kind == "dispatch" else "bf16"
    dispatch(buffer, case, mode)
    received, counts, handle, _, _ = dispatch(buffer, case)
    outputs = run_experts(case, group.rank, received, counts, "bf16")
    culprit = case.ranks - 1
    wrong = wrong_dispatches(case) if kind == "dispatch" else wrong_combines(case, outputs, handle)
    for name, (arguments, message) in wrong.items():
        if group.rank == culprit:
            with pytest.raises(ferry.InvalidArgument, match=message):
                call = buffer.low_latency_dispatch if kind == "dispatch" else buffer.low_latency_combine
                call(**arguments)
        else:
            with pytest.raises(ferry.PeerRejected) as caught:
                if kind == "dispatch":
                    dispatch(buffer, case, "ue8m0" if name == "exponents without rounding" else "bf16")
                else:
                    combine(buffer, case, outputs, handle)
            assert caught.value.culprit == culprit and re.search(message, str(caught.value)), (name, caught.value)
        received, counts, handle, _, _ = dispatch(buffer, case)
        assert torch.equal(combine(buffer, case, outputs, handle)[0], expected_sum(case, group.rank, "bf16"))


@pytest.mark.parametrize("kind", ["dispatch", "combine"])
def test_refused_calls(kind):
    ferry.run_threads(2, refused_calls, Case(2, tokens=(4, 3), seed=90, drop=0), kind, deadline=10)


def unlike_bounds(group, case):
    buffer = make_buffer(group)
    with pytest.raises(ferry.Mismatch, match="per_rank=6, .*per_rank=7, "):
        dispatch(buffer, dataclasses.replace(case, max_tokens=6 + group.rank))
    dispatch(buffer, case)


def test_ranks_must_agree_on_the_most_tokens():
    ferry.run_threads(2, unlike_bounds, Case(2, tokens=(3, 3), seed=91), deadline=20)


def unlike_shapes(group, case):
    buffer, rank = make_buffer(group), group.rank
    wide = dataclasses.replace(case, hidden=2 * case.hidden)
    alone, others = ferry.Mismatch, ferry.PeerRejected

    def differ(call, match, error):
        with pytest.raises(error, match=match):
            call()
        received, counts, handle, _, _ = dispatch(buffer, case)
        outputs = run_experts(case, rank, received, counts, "bf16")
        assert torch.equal(combine(buffer, case, outputs, handle)[0], expected_sum(case, rank, "bf16"))
        return outputs, handle

    for known in case, wide, case:
        dispatch(buffer, known)
    one = rank == 1
    differ(lambda: dispatch(buffer, wide if one else case), f"hidden={wide.hidden}", alone if one else others)
    differ(lambda: dispatch(buffer, case, "fp8" if one else "bf16"), "wire=fp8", alone if one else others)
    differ(lambda: dispatch(buffer, wide, "fp8") if one else dispatch(buffer, wide), "wire=fp8", alone)
    x, ids, _ = case.inputs(rank)
    wrong = functools.partial(buffer.low_latency_dispatch, x, ids, case.max_tokens, num_experts=0)
    outputs, handle = differ(lambda: wrong() if one else dispatch(buffer, wide), "num_experts is 0",
                             ferry.InvalidArgument if one else others)
    for logfmt in False, True:
        combine(buffer, case, outputs, handle, use_logfmt=logfmt)
        with pytest.raises(alone if one else others, match=f"use_logfmt={not logfmt}"):
            combine(buffer, case, outputs, handle, use_logfmt=logfmt ^ one)


def test_ranks_that_differ_in_shape():
    ferry.run_threads(2, unlike_shapes, Case(2, tokens=(3, 3), seed=92), deadline=10)


# ---- other calls


def sized(group, case):
    hint = Buffer.get_low_latency_rdma_size_hint(case.max_tokens, case.hidden, case.ranks, case.num_experts)
    assert isinstance(hint, int)
    buffer = Buffer(group, 0, hint, low_latency_mode=True)
    buffer.clean_low_latency_buffer(case.max_tokens, case.hidden, case.num_experts)
    for mode in MODES:
        dispatch(buffer, case, mode)
        assert hint >= buffer.exchanges.current.window_bytes.worst
    assert hint >= 2 * case.capacity * len(case.my_experts(0)) * case.hidden * 2


def test_the_size_hint_covers_what_is_reserved():
    ferry.run_threads(2, sized, Case(2, seed=100))
