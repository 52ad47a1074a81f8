"""Fronts in a view that lacks a rank: one of four processes is killed, and what the others do next with the same
objects equals an oracle, or is refused by an error that says what to do."""

import copy
import functools
import multiprocessing
import os
import signal
import traceback

import pytest

torch = pytest.importorskip("torch")

import ferry
from ferry.conformance.deep_ep_oracle import Inputs, same_bits
from ferry.conformance.low_latency_case import Case
from ferry.deep_ep import Buffer, ElasticBuffer, EPBuffer
from ferry.moe import SwiGLU
from ferry.placement import Placement
from ferry.torch import MoE
from test_deep_ep_buffer import check_combine, send
from test_deep_ep_elastic import M, Combine, Mode
from test_deep_ep_low_latency_calls import combine, dispatch, masks, round_of, run_experts

SIZE, VICTIM, MEMBERS = 4, 2, (0, 1, 3)
NEEDS_ALL = "needs all 4 ranks, and view 2 .* lacks .2.*: admit"


def lose(group, call):
    """The victim is killed. The others make calls until an error names it, and go on in the next view."""
    if group.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises((ferry.PeerLost, ferry.Broken), match=f"lost rank {VICTIM}") as caught:
        while True:
            call()
    assert caught.value.culprit == VICTIM
    assert group.survive(deadline=20) == (2, MEMBERS)


def left(seed, **shape):
    """Inputs of the ranks that are left: the victim has no tokens, and its experts get none."""
    inputs = Inputs(seed, [6, 9, 0, 7], **{"num_experts": 8, **shape})
    lost = inputs.experts_of(VICTIM)
    for ids in inputs.topk_idx:
        ids[(ids >= lost.start) & (ids < lost.stop)] = -1
    inputs.route()
    return inputs


# ---- ferry.deep_ep


def normal_round(buffer, inputs, **more):
    rank = buffer.rank
    recv_x, ids, weights, counts, handle, _ = send(buffer, inputs, rank, **more)
    assert same_bits(recv_x, inputs.received(rank, inputs.x))
    assert counts == inputs.expert_list(rank)
    if ids is not None:
        want_ids, want_weights = inputs.received_topk(rank)
        assert same_bits(ids, want_ids) and same_bits(weights, want_weights)
    sent = torch.stack([inputs.mask(source).sum(0) for source in range(SIZE)])
    assert same_bits(handle[0], sent.cumsum(0).int())
    assert handle[3].tolist() == [token for _, token in inputs.arrivals(rank)]
    assert same_bits(buffer.dispatch(inputs.x[rank], handle=handle)[0], recv_x)
    check_combine(buffer, inputs, rank, handle)


def normal(group):
    buffer, rank = Buffer(group), group.rank
    every, first = Inputs(81, [6, 9, 5, 7]), left(82)
    normal_round(buffer, every)
    lose(group, lambda: normal_round(buffer, every))
    wide, more = left(83, hidden=32, dtype=torch.float32), left(84, top_k=3, num_experts=9)
    for inputs in (first, first, wide, more, wide):  # of the exchange of view 1, and of new ones
        normal_round(buffer, inputs)
    normal_round(buffer, first, with_topk=False)
    wrong = copy.deepcopy(first)
    wrong.topk_idx[0][0, 0] = wrong.experts_of(VICTIM).start
    for inputs in (first, wide):
        given, kind = (wrong, ferry.InvalidArgument) if rank == 0 else (first, ferry.PeerRejected)
        with pytest.raises(kind, match="lacks"):
            send(buffer, given, rank)
        normal_round(buffer, inputs)
    layout = buffer.get_dispatch_layout(first.topk_idx[rank], first.num_experts)
    handle = buffer.internode_dispatch(first.x[rank], None, layout[0], layout[1], layout[3], layout[2],
                                       first.topk_idx[rank], first.topk_weights[rank])[4]
    came = torch.tensor([first.mask(source)[:, rank].sum() for source in range(SIZE)])
    assert same_bits(handle[6], came.cumsum(0).int())
    check_combine(buffer, first, rank, handle)


def creation_that_ended_on_some_ranks(group):
    """The victim dies when some of the other ranks have made an exchange that rank 1 has not made."""
    normal_buffer, buffer = Buffer(group), Buffer(group, low_latency_mode=True)
    every, case = Inputs(91, [6, 9, 5, 7]), Case(SIZE, tokens=(4, 5, 3, 6), seed=92, top_k=3)
    normal_round(normal_buffer, every)
    round_of(buffer, case, "bf16", ())
    lose(group, group.barrier)
    if group.rank == 1:
        for each in (normal_buffer, buffer):
            each.exchanges.__init__(group)  # as if none had been made here
    normal_round(normal_buffer, left(93))
    round_of(buffer, Left(SIZE, tokens=(4, 5, 0, 6), seed=94, top_k=3), "bf16", (VICTIM,))


class Left(Case):
    """A case without tokens for the experts of the victim."""

    def inputs(self, rank):
        x, ids, weights = super().inputs(rank)
        lost = self.my_experts(VICTIM)
        return x, ids.masked_fill((ids >= lost.start) & (ids < lost.stop), -1), weights


def low_latency(group):
    buffer = Buffer(group, low_latency_mode=True)
    every = Case(SIZE, tokens=(4, 5, 3, 6), seed=85, top_k=3)
    first, other = (Left(SIZE, tokens=(4, 5, 0, 6), seed=86, top_k=3, hidden=hidden) for hidden in (512, 256))
    round_of(buffer, every, "bf16", ())
    received, counts, handle, _, _ = dispatch(buffer, every, "bf16")
    outputs = run_experts(every, buffer.rank, received, counts, "bf16")
    lose(group, lambda: round_of(buffer, every, "bf16", ()))
    for use_logfmt in (False, True):  # its rows lie where those of all ranks had their places
        with pytest.raises(ferry.InvalidArgument, match="the handle is of view 1 .* this is view 2"):
            combine(buffer, every, outputs, handle, use_logfmt=use_logfmt)
    for case, mode, hooks in ((first, "bf16", False), (first, "bf16", True), (first, "ue8m0", False),
                              (other, "bf16", True)):
        round_of(buffer, case, mode, (VICTIM,), hooks)
    with pytest.raises((ferry.InvalidArgument, ferry.PeerRejected), match="expert .* lacks"):
        round_of(buffer, every, "bf16", ())
    round_of(buffer, first, "bf16", (VICTIM,))


def low_latency_with_masks(group):
    buffer = Buffer(group, low_latency_mode=True, enable_shrink=True)
    every = Case(SIZE, tokens=(4, 5, 3, 6), seed=87, top_k=3)
    round_of(buffer, every, "bf16", ())
    assert masks(buffer) == [0, 0, 0, 0]
    lose(group, lambda: round_of(buffer, every, "bf16", ()))
    assert masks(buffer) == [0, 0, 1, 0]  # nobody masked it
    wrong = torch.empty(3, dtype=torch.int64)
    for error in (ferry.InvalidArgument if group.rank == 0 else ferry.PeerRejected,) * 2:
        x, ids, _ = every.inputs(group.rank)
        with pytest.raises(error):
            buffer.low_latency_dispatch(x, wrong if group.rank == 0 else ids, 8, 8)
    for mode in ("bf16", "ue8m0"):  # tokens for its experts add nothing, as after a mask
        round_of(buffer, every, mode, (VICTIM,))
    with pytest.raises(ferry.InvalidArgument, match="rank 2 is lost: view 2"):
        buffer.low_latency_update_mask_buffer(VICTIM, False)
    buffer.low_latency_clean_mask_buffer()
    assert masks(buffer) == [0, 0, 1, 0]
    buffer.low_latency_update_mask_buffer(3, True)
    assert masks(buffer) == [0, 0, 1, 1]
    round_of(buffer, every, "bf16", (VICTIM, 3))
    buffer.low_latency_update_mask_buffer(0, True)
    with pytest.raises(ferry.InvalidArgument, match="masking rank 1 leaves no rank"):
        buffer.low_latency_update_mask_buffer(1, True)
    buffer.low_latency_clean_mask_buffer()
    round_of(buffer, every, "bf16", (VICTIM,), True)


def elastic_round(buffer, inputs, expand):
    rank = buffer.rank_idx
    mode = Mode(inputs, expand, True, False, 4, False, False)
    recv_x, idx, weights, handle, _ = buffer.dispatch(**mode.arguments(rank))
    mode.check_rows(rank, recv_x)
    mode.check_topk(rank, idx, weights)
    mode.check_handle(rank, handle)
    mode.check_rows(rank, buffer.dispatch(inputs.x[rank], handle=handle, do_expand=expand)[0])
    Combine(mode, 1, True).play(buffer, mode, rank, handle, None)


def elastic(group):
    buffer = ElasticBuffer(group, num_max_tokens_per_rank=M)
    every, first, other = Inputs(88, [6, 9, 5, 7]), left(89), left(90, hidden=32, num_experts=10, top_k=3)
    elastic_round(buffer, every, False)
    lose(group, lambda: elastic_round(buffer, every, False))
    for inputs in (first, other):
        for expand in (False, True):
            elastic_round(buffer, inputs, expand)
    elastic_round(buffer, first, False)
    wrong = dict(num_experts=-1) if group.rank == 0 else {}
    with pytest.raises(ferry.InvalidArgument if wrong else ferry.PeerRejected):
        buffer.dispatch(**{**Mode(first, False, True, False, 4, False, False).arguments(group.rank), **wrong})
    elastic_round(buffer, first, False)


def redundant_experts(group):
    buffer = EPBuffer(group, num_max_tokens_per_rank=M)
    mapping = torch.full((SIZE, 1), -1, dtype=torch.int32)
    mapping[0, 0] = 7
    slots, owned = torch.zeros(1, 8), torch.full((2, 8), float(group.rank))
    buffer.lb_prefetch_weights(slots, owned, mapping)
    assert slots[0, 0] == (3 if group.rank == 0 else 0)
    lose(group, lambda: buffer.lb_prefetch_weights(slots, owned, mapping))
    for call in (buffer.lb_prefetch_weights, buffer.lb_reduce_grads):
        with pytest.raises(ferry.InvalidArgument, match=NEEDS_ALL):
            call(slots, owned, mapping)


# ---- ferry.torch and ferry.placement

SIZES = dict(max_tokens=16, hidden=16, top_k=2, dtype=torch.float32)


def layer_inputs(rank, seed, members=range(SIZE)):
    """Tokens, ids and weights of a rank; its tokens go to experts of these ranks, two of each."""
    random = torch.Generator().manual_seed(100 * seed + rank)
    experts = torch.tensor([2 * member + i for member in members for i in range(2)])
    ids = experts[torch.rand(12, len(experts), generator=random).argsort(1)[:, :2]]
    return torch.randn(12, 16, generator=random), ids, torch.rand(12, 2, generator=random)


def whole_layer(experts, tokens, ids, weights):
    """What a layer returns, by a SwiGLU of all experts."""
    total = torch.zeros_like(tokens)
    for k in range(ids.shape[1]):
        rows = [experts(row[None], [int(e == ids[token, k]) for e in range(8)]) for token, row in enumerate(tokens)]
        total = total + weights[:, k, None].to(tokens.dtype) * torch.cat(rows)
    return total


def check_layer(layer, whole, seed, members, dtype=torch.float32):
    rank, tolerance = layer.group.rank, dict(rtol=1e-4, atol=1e-5) if dtype == torch.float32 else dict(rtol=.1, atol=.1)
    tokens, ids, weights = layer_inputs(rank, seed, members)
    out = layer(tokens.to(dtype), ids, weights)
    torch.testing.assert_close(out, whole_layer(whole, tokens.to(dtype), ids, weights), **tolerance)
    if dtype != torch.float32:
        return
    layer.zero_grad(), whole.zero_grad()
    out.square().sum().backward()
    for member in members:  # the gradients of the mean of the losses of the ranks that are left
        (whole_layer(whole, *layer_inputs(member, seed, members)).square().sum() / len(members)).backward()
    mine = slice(2 * rank, 2 * rank + 2)
    for have, want in zip(layer.experts.parameters(), whole.parameters()):
        torch.testing.assert_close(have.grad, want.grad[mine], **tolerance)


def layer(group):
    torch.manual_seed(7)
    made = MoE(group, intermediate=8, num_experts=8, **SIZES)
    torch.manual_seed(7)
    whole = SwiGLU(8, 16, 8, torch.float32)
    check_layer(made, whole, 1, range(SIZE))
    lose(group, lambda: made(*layer_inputs(group.rank, 2)))
    for seed in (3, 4):
        check_layer(made, whole, seed, MEMBERS)
    kind = ferry.InvalidArgument if group.rank == 0 else ferry.PeerRejected
    with pytest.raises(kind, match="expert 4 .*lacks"):
        tokens, ids, weights = layer_inputs(group.rank, 5, MEMBERS)
        made(tokens, ids.masked_fill(ids == ids[0, 0], 4) if group.rank == 0 else ids, weights)
    for dtype in (torch.bfloat16, torch.float32):  # an exchange that is made in this view, and one more
        made.to(dtype), whole.to(dtype)
        check_layer(made, whole, 6, MEMBERS, dtype)
    for call in (lambda: MoE(group, intermediate=8, num_experts=8, **SIZES), lambda: copy.deepcopy(made).join(group)):
        with pytest.raises(ferry.InvalidArgument, match=NEEDS_ALL):
            call()
    check_layer(made, whole, 8, MEMBERS, torch.float32)


def layer_with_copies(group):
    held = Placement((*range(8), *range(8)), num_ranks=SIZE)  # rank 0 has what rank 2 has, and 1 what 3 has
    torch.manual_seed(group.rank % 2)
    made = MoE(group, experts=SwiGLU(held.per_rank, 16, 8, torch.float32), **SIZES, **held.settings("by_table"))
    inputs = layer_inputs(group.rank, 9)
    with torch.no_grad():
        before = made(*inputs)
    lose(group, lambda: made(*inputs))
    for _ in range(2):
        after = made(*inputs)
        torch.testing.assert_close(after, before)
        after.sum().backward()
        with torch.no_grad():
            torch.testing.assert_close(made(*inputs), before)
    made.bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(made(inputs[0].bfloat16(), *inputs[1:]).float(), before, rtol=.1, atol=.1)


# ---- a new process takes the place of the victim


def plays_of(kind):
    """What makes a buffer of a group, and a round of all ranks with it."""
    if kind == "normal":
        every = Inputs(81, [6, 9, 5, 7])
        return Buffer, lambda buffer: normal_round(buffer, every)
    if kind == "elastic":
        every = Inputs(88, [6, 9, 5, 7])
        return (lambda group: ElasticBuffer(group, num_max_tokens_per_rank=M)), lambda buffer: elastic_round(
            buffer, every, False)
    if kind == "gather":
        return (lambda group: ElasticBuffer(group, num_max_tokens_per_rank=M)), gather_round
    case = Case(SIZE, tokens=(4, 5, 3, 6), seed=85, top_k=3)

    def low_latency_round(buffer):
        round_of(buffer, case, "bf16", ())
        assert masks(buffer) == [0, 0, 0, 0]

    return (lambda group: Buffer(group, low_latency_mode=True, enable_shrink=True)), low_latency_round


def gather_round(buffer):
    with buffer.agrs_new_session():
        gathered, _ = buffer.all_gather(torch.full((3,), float(buffer.group.rank)))
        assert gathered[:, 0].tolist() == [0, 1, 2, 3]


def admitting(kind, group):
    make, play = plays_of(kind)
    buffer = make(group)
    if group.view[0] == 1:
        play(buffer)
        lose(group, lambda: play(buffer))
        assert group.admit() == (3, tuple(range(SIZE)))
    for _ in range(3):
        play(buffer)


# ----


def rank_of(front, rank, address, results, newcomer=False):
    place = dict(slot=rank, deadline=60) if newcomer else dict(rank=rank, deadline=20)
    try:
        torch.set_num_threads(1)
        with ferry.init(address=address, size=SIZE, **place) as group:
            front(group)
        results.put((rank, "well"))
    except BaseException:
        results.put((rank, traceback.format_exc()))


@pytest.mark.parametrize("front", [normal, creation_that_ended_on_some_ranks, low_latency, low_latency_with_masks,
                                   elastic, redundant_experts, layer, layer_with_copies])
def test_a_rank_is_killed(front):
    multiprocessing.set_forkserver_preload(["ferry.torch_backend"])  # imports torch once for all tests
    context = multiprocessing.get_context("forkserver")
    results, address = context.Queue(), f"fronts-{front.__name__}-{os.getpid()}"
    ranks = [context.Process(target=rank_of, args=(front, rank, address, results)) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    said = sorted(results.get(timeout=90) for _ in MEMBERS)
    for rank in ranks:
        rank.join()
    assert said == [(rank, "well") for rank in MEMBERS], "\n".join(text for _, text in said)


@pytest.mark.parametrize("kind", ["normal", "low_latency", "elastic", "gather"])
def test_the_buffers_of_a_new_process_join_those_of_the_others(kind):
    multiprocessing.set_forkserver_preload(["ferry.torch_backend"])
    context = multiprocessing.get_context("forkserver")
    results, address, front = context.Queue(), f"fronts-back-{kind}-{os.getpid()}", functools.partial(admitting, kind)
    ranks = [context.Process(target=rank_of, args=(front, rank, address, results)) for rank in range(SIZE)]
    ranks.append(context.Process(target=rank_of, args=(front, VICTIM, address, results, True)))
    for rank in ranks:
        rank.start()
    said = sorted(results.get(timeout=90) for _ in range(SIZE))
    for rank in ranks:
        rank.join()
    assert said == [(rank, "well") for rank in range(SIZE)], "\n".join(text for _, text in said)
