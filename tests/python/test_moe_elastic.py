"""The layer while ranks are away: copies compute for their experts, with gradients, in one batch and in two; refusals;
and a rank that is killed, whose place another process takes."""

import multiprocessing
import os
import signal
import threading

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from ferry.moe import MoE, moe  # noqa: E402
from ports import free_port  # noqa: E402
from ferry.placement import Balancer, Placement, blocks  # noqa: E402

HIDDEN, EXPERTS, TOP_K = 16, 6, 2
HELD = Placement((0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 0, 1), 3)  # each expert on two of three ranks
SETTINGS = dict(hidden=HIDDEN, top_k=TOP_K, max_tokens=12, dtype=torch.float32)


def factors():
    """[experts, H]: the factor of each expert."""
    return 0.5 + torch.rand(EXPERTS, HIDDEN, generator=torch.Generator().manual_seed(50))


def numbers(rank, step=0):
    """(tokens, ids, weights) of a rank; rank 2 has fewer."""
    generator, count = torch.Generator().manual_seed(10 * step + rank), (12, 9, 4)[rank]
    ids = torch.rand(count, EXPERTS, generator=generator).argsort(-1)[:, :TOP_K]
    return torch.randn(count, HIDDEN, generator=generator), ids, torch.rand(count, TOP_K, generator=generator)


class Experts(torch.nn.Module):
    """tanh(row) * factor of its expert: bits that do not depend on the other rows of a call."""

    def __init__(self, held):
        super().__init__()
        self.factors = torch.nn.Parameter(factors()[list(held)])

    def forward(self, rows, counts, out=None):
        assert len(counts) == len(self.factors)  # nothing is requested from a rank that is away
        return torch.tanh(rows) * self.factors.repeat_interleave(torch.tensor(counts), 0)


def layer_of(group, held=HELD, overlap=None):
    return MoE(group, experts=Experts(held.of_rank(group.rank)), overlap=overlap, gradients="sum", **SETTINGS,
               **held.settings("by_table"))


def reference(ranks):
    """The dense layer of the tokens of these ranks: [(out, gradients of tokens, weights)], gradients of the factors."""
    held, found = factors().requires_grad_(), []
    for rank in ranks:
        tokens, ids, weights = numbers(rank)
        tokens.requires_grad_(), weights.requires_grad_()
        out = (torch.tanh(tokens).unsqueeze(1) * held[ids] * weights.unsqueeze(-1)).sum(1)
        out.square().sum().backward()
        found.append((out.detach(), tokens.grad, weights.grad))
    return found, held.grad


def stepped(layer, rank, active, learns):
    """(out, gradients of tokens, weights and factors) of a step."""
    tokens, ids, weights = numbers(rank)
    if not learns:
        with torch.no_grad():
            return [layer(tokens, ids, weights, active)]
    tokens.requires_grad_(), weights.requires_grad_()
    layer.zero_grad()
    out = layer(tokens, ids, weights, active_ranks=active)
    out.square().sum().backward()
    return [out.detach(), tokens.grad, weights.grad, layer.experts.factors.grad]


def goes_and_comes(group, overlap, learns):
    layer = layer_of(group, overlap=overlap)
    return [stepped(layer, group.rank, active, learns) for active in (None, [2, 0], [0, 1], [0, 1, 2])]


@pytest.mark.parametrize("topology", [None, "host:3,rank:1"])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("overlap", [None, "batches"])
def test_a_rank_that_is_away_changes_no_bit_of_the_others(overlap, learns, topology):
    options = {} if topology is None else {"topology": topology}
    found = ferry.run_threads(3, goes_and_comes, overlap, learns, deadline=20, **options)
    for step, active in enumerate(((0, 1, 2), (2, 0), (0, 1), (0, 1, 2))):
        expected, of_factors = reference(active)
        sums = torch.zeros(EXPERTS, HIDDEN)
        for rank in range(3):
            mine, everybody = found[rank][step], found[rank][0]
            if rank not in active:
                assert all(len(each) == len(numbers(rank)[0]) and not each.any() for each in mine[:3])
                assert all(grad is not None and not grad.any() for grad in mine[3:])
                continue
            for each, full, dense in zip(mine, everybody, expected[active.index(rank)]):
                assert torch.equal(each, full), (rank, step)  # two summands: their order does not matter
                torch.testing.assert_close(each, dense)
            if learns:
                sums.index_add_(0, torch.tensor(HELD.of_rank(rank)), mine[3])
        if learns:
            torch.testing.assert_close(sums, of_factors, rtol=1e-4, atol=1e-4)


def told(group, rank, given, error, complaint):
    """The call of `rank` (None: of every rank) has `given`; the exchange goes on."""
    layer = layer_of(group)
    tokens, ids, weights = numbers(group.rank)
    wrong = rank in (None, group.rank)
    with pytest.raises(error if wrong else ferry.PeerRejected, match=complaint):
        layer(tokens, ids, weights, **(given if wrong else {}))
    return [layer(tokens, ids, weights, active_ranks=active).shape[0] for active in (None, [0, 2])]


@pytest.mark.parametrize("rank, given, error, complaint", [
    (None, dict(active_ranks=[2]), ferry.InvalidArgument, r"expert 2 has no copy on the active ranks \[2\]"),
    (1, dict(active_ranks=[2]), ferry.InvalidArgument, "expert 2 has no copy"),
    (1, dict(active_ranks=[]), ferry.InvalidArgument, "active_ranks is empty"),
    (1, dict(active_ranks=[0, 1, 7]), ferry.InvalidArgument, r"active_ranks\[2\] is 7"),
    (1, dict(active_ranks=["all"]), ValueError, "'all'"),
    (1, dict(active_ranks=2), TypeError, "iterable"),
])
def test_what_is_wrong_with_the_active_ranks_is_told_to_all(rank, given, error, complaint):
    assert ferry.run_threads(3, told, rank, given, error, complaint, deadline=5) == [[12, 12], [9, 9], [4, 4]]


def without_placement(group):
    """Layers that have no copies, or choose them in another way, go on with all ranks."""
    for settings in (blocks(EXPERTS, 3).settings(), dict(num_experts=EXPERTS), HELD.settings("by_token")):
        exchange = group.exchange(**SETTINGS, **settings)
        tokens, ids, weights = numbers(group.rank)
        for active in ([0, 2], [1]):
            with pytest.raises(ferry.InvalidArgument, match=r"of 3 ranks need .* settings\('by_table'\)"):
                moe(exchange, tokens, ids, weights, lambda rows, counts, out: rows, active_ranks=active)
        out = moe(exchange, tokens, ids, weights, lambda rows, counts, out: rows, active_ranks=[2, 1, 0])
        torch.testing.assert_close(out, tokens * weights.sum(1, keepdim=True))
    uneven = group.exchange(num_experts=7, replicas=[[e] for e in range(7)], replica_choice="by_table", **SETTINGS)
    with pytest.raises(ferry.InvalidArgument, match="equally many experts on each rank"):
        moe(uneven, tokens, ids, weights, None, active_ranks=[0])


def test_a_layer_without_a_placement_says_what_it_needs():
    ferry.run_threads(3, without_placement, deadline=5)


def fails_while_one_is_away(group, overlap, learns, done):
    """Rank 0's call is wrong, then its experts raise: rank 2 gets an error, and the two go on. Rank 1 makes no call."""
    layer = layer_of(group, overlap=overlap)
    if group.rank == 1:
        return done.wait(60)
    tokens, ids, weights = numbers(group.rank)
    wrong = group.rank == 0

    def experts(rows, counts, out=None):
        if wrong:
            raise ArithmeticError("no GEMM")
        return torch.tanh(rows)

    def call(overlap):
        moe(layer.exchange, tokens.requires_grad_(learns), ids, weights, experts, overlap=overlap, active_ranks=[0, 2])

    with pytest.raises(ferry.InvalidArgument if wrong else ferry.PeerRejected, match="'both' is neither"):
        call("both" if wrong else overlap)
    with pytest.raises(ArithmeticError if wrong else ferry.PeerRejected, match="no GEMM"):
        call(overlap)
    assert torch.equal(stepped(layer, group.rank, [0, 2], learns)[0], stepped(layer, group.rank, [0, 2], learns)[0])
    done.wait(60)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("overlap", [None, "batches"])
def test_what_fails_is_told_to_the_active_ranks(overlap, learns):
    ferry.run_threads(3, fails_while_one_is_away, overlap, learns, threading.Barrier(3), deadline=5)


def counted(group):
    layer = layer_of(group)
    layer.balancer = Balancer(group, HELD)
    for active in ([0, 2], None):
        stepped(layer, group.rank, active, False)
    layer.balancer.begin()
    new = layer.balancer.end()
    layer.switch(HELD, new)
    return stepped(layer, group.rank, None, False)[0], new


def test_a_balancer_counts_and_a_switch_keeps_the_layer_elastic():
    for rank, (out, new) in enumerate(ferry.run_threads(3, counted, deadline=20)):
        assert len(new.experts) == 12
        torch.testing.assert_close(out, reference(range(3))[0][rank][0])


def refused_while_one_is_away(group, learns):
    """Rank 1, which cannot know that the others' call was refused, makes more calls than the others."""
    layer = layer_of(group)
    tokens, ids, weights = numbers(group.rank)
    before = stepped(layer, group.rank, None, learns)
    if group.rank == 1:
        layer(tokens, ids, weights, [0, 2])
    else:
        with pytest.raises(ferry.InvalidArgument if group.rank == 0 else ferry.PeerRejected, match="top-k id 99"):
            layer(tokens, ids.clone().fill_(99) if group.rank == 0 else ids, weights, [0, 2])
    layer.switch(HELD, HELD)
    assert all(torch.equal(*pair) for pair in zip(before, stepped(layer, group.rank, None, learns)))


@pytest.mark.parametrize("learns", [False, True])
def test_a_switch_brings_ranks_in_step_again(learns):
    ferry.run_threads(3, refused_while_one_is_away, learns, deadline=5)


LEFT = [0, 2]  # when rank 1 has died
WITHOUT_1 = Placement((*HELD.of_rank(0), *HELD.of_rank(2)), 2)
NOTHING_ON_1 = Placement((*HELD.of_rank(0), -1, -1, -1, -1, *HELD.of_rank(2)), 3)


def learn(layer, placement):
    """Plain SGD: to import torch's takes seconds in each process."""
    layer.sum_gradients(placement)
    with torch.no_grad():
        layer.experts.factors -= 0.5 * layer.experts.factors.grad


def joined(address, rank, size, name):
    os.environ["FERRY_SECRET"] = "the same for all three groups"
    return ferry.init(address=address, rank=rank, size=size, name=name, deadline=30)


def starts(address, rank, folder):
    """All ranks make a step, rank 1 is killed, and the others make the next one with copies of its experts."""
    with joined(address, rank, 3, "all") as group:
        layer = layer_of(group)
        steps = [stepped(layer, rank, None, True)]
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(ferry.PeerLost) as lost:
            stepped(layer, rank, None, True)
    assert lost.value.culprit == 1
    with joined(address, LEFT.index(rank), 2, "without 1") as group:
        layer = MoE(group, experts=layer.experts, gradients="sum", **SETTINGS, **WITHOUT_1.settings("by_table"))
        steps.append(stepped(layer, rank, None, True))
        learn(layer, WITHOUT_1)
    ends(address, rank, folder, layer.experts, steps)


def ends(address, rank, folder, experts, steps):
    """All ranks again: `move` in switch() gives rank 1 its weights."""
    with joined(address, rank, 3, "all again") as group:
        layer = MoE(group, experts=experts, gradients="sum", **SETTINGS, **HELD.settings("by_table"))
        layer.switch(NOTHING_ON_1, HELD)
        held = layer.experts.factors.detach().clone()
        steps.append(stepped(layer, rank, None, True))
        learn(layer, HELD)
    torch.save((steps, held, layer.experts.factors.detach()), folder / f"{rank}.pt")


def joins(address, rank, folder):
    ends(address, rank, folder, Experts([0] * HELD.per_rank), [None, None])


def dense_life():
    """[factors before the last step, and after it] of one process."""
    def after(held, ranks):
        held = held.clone().requires_grad_()
        for rank in ranks:
            tokens, ids, weights = numbers(rank)
            outs = (torch.tanh(tokens).unsqueeze(1) * held[ids] * weights.unsqueeze(-1)).sum(1)
            outs.square().sum().backward()
        return held.detach() - 0.5 * held.grad

    second = after(factors(), LEFT)
    return second, after(second, range(3))


def test_a_rank_is_killed_and_another_process_takes_its_place(tmp_path):
    processes, address = multiprocessing.get_context("forkserver"), f"tcp://127.0.0.1:{free_port()}"
    processes.set_forkserver_preload(["ferry.moe"])  # torch is imported once
    start = processes.Process
    ranks = [start(target=starts, args=(address, rank, tmp_path)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    ranks[1].join(60)
    assert ranks[1].exitcode == -signal.SIGKILL
    ranks.append(start(target=joins, args=(address, 1, tmp_path)))
    ranks[3].start()
    for rank in (0, 2, 3):
        ranks[rank].join(60)
        assert ranks[rank].exitcode == 0
    ended, dense = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)], dense_life()
    for rank, (steps, *held) in enumerate(ended):
        if rank != 1:
            assert all(torch.equal(*pair) for pair in zip(steps[0][:3], steps[1]))
        for found, expected in zip(held, dense):
            torch.testing.assert_close(found, expected[list(HELD.of_rank(rank))])
    for at in (1, 2):  # copies are equal
        of_slots = torch.cat([each[at] for each in ended])
        for one, other in HELD.slots():
            assert torch.equal(of_slots[one], of_slots[other])
