"""The layer in a view that lacks a rank: one of four processes is killed at a moment of its life; the others call
survive(), switch to a placement on the ranks that remain, and get the bits of before; what cannot go on is refused."""

import multiprocessing
import os
import random
import signal
import statistics
import threading
import time
import traceback

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
import ferry.placement  # noqa: E402
import ferry.torch.module  # noqa: E402
from ferry.placement import Balancer, Placement, move, sum_copies  # noqa: E402
from ferry.torch import MoE  # noqa: E402
from ferry.torch.shared import _held  # noqa: E402

SIZE, EXPERTS, HIDDEN, TOP_K = 4, 8, 16, 2
HELD = Placement((0, 1, 2, 3, 4, 5, 6, 7, 2, 3, 4, 5, 6, 7, 0, 1), SIZE)  # each expert on two of four ranks
SETTINGS = dict(hidden=HIDDEN, top_k=TOP_K, max_tokens=12, dtype=torch.float32, gradients="sum")


def factors():
    """[experts, H]: the factor of each expert."""
    return 0.5 + torch.rand(EXPERTS, HIDDEN, generator=torch.Generator().manual_seed(60))


def numbers(rank, step):
    """(tokens, ids, weights) of a rank."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    ids = torch.rand(12, EXPERTS, generator=generator).argsort(-1)[:, :TOP_K].contiguous()
    return torch.randn(12, HIDDEN, generator=generator), ids, torch.rand(12, TOP_K, generator=generator)


def dense(held, rank, step):
    """The result of the layer, computed from all factors. A combine adds its two summands in one order, or they are
    rounded once as a + b * c: the bits may differ."""
    tokens, ids, weights = numbers(rank, step)
    return (torch.tanh(tokens).unsqueeze(1) * held[ids] * weights.unsqueeze(-1)).sum(1)


class Experts(torch.nn.Module):
    """tanh(row) * factor of its expert: bits that do not depend on the other rows of a call."""

    def __init__(self, held):
        super().__init__()
        self.factors = torch.nn.Parameter(factors()[list(held)])
        self.before = lambda: None  # called before each call

    def forward(self, rows, counts, out=None):
        self.before()
        return torch.tanh(rows) * self.factors.to(rows.dtype).repeat_interleave(torch.tensor(counts), 0)


def layer_of(group, held=HELD):
    return MoE(group, experts=Experts(held.of_rank(group.rank)), **SETTINGS, **held.settings("by_table"))


def results(layer, steps=3):
    with torch.no_grad():
        return [layer(*numbers(layer.group.rank, step)) for step in range(steps)]


def same(layer, expected):
    return all(torch.equal(*pair) for pair in zip(results(layer), expected, strict=True))


# ---- the moments of a death


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def idle(layer):
    die()


def in_dispatch(layer):
    tokens, ids, _ = numbers(layer.group.rank, 0)
    layer.exchange.dispatch_send(tokens, ids, replica_table=HELD.table(layer.group.rank, range(SIZE)))
    die()


def in_experts(layer):
    layer.experts.before = die
    results(layer)


def in_combine(layer):
    tokens, ids, weights = numbers(layer.group.rank, 0)
    received = layer.exchange.dispatch(tokens, ids, replica_table=HELD.table(layer.group.rank, range(SIZE)))
    layer.exchange.combine_send(received.rows.clone(), received.handle, weights)
    die()


def at_any_time(layer):
    threading.Timer(random.uniform(0, 0.01), die).start()
    while True:
        results(layer)


def lose(layer, victim, moment, number=2):
    """The victim dies at a moment; the others are in calls of the layer until they are told, and go on in the next
    view. Returns its ranks and the milliseconds of survive()."""
    group = layer.group
    if group.rank == victim:
        moment(layer)
    with pytest.raises((ferry.PeerLost, ferry.Broken), match=f"lost rank {victim}") as caught:
        while True:
            results(layer)
    assert caught.value.culprit == victim
    members = tuple(rank for rank in group.view[1] if rank != victim)
    found, spent = timed(group.survive, deadline=20)
    assert found == (number, members)
    return members, spent


def timed(call, *arguments, **more):
    began = time.perf_counter()
    found = call(*arguments, **more)
    return found, 1e3 * (time.perf_counter() - began)


# ---- what the others do


def switches(group, victim, moment):
    layer = layer_of(group)
    expected = results(layer)
    for step, out in enumerate(expected):
        assert torch.allclose(out, dense(factors(), group.rank, step))
    with torch.no_grad():
        _, usual = timed(layer, *numbers(group.rank, 0))
    members, survived = lose(layer, victim, moment)
    kept = HELD.on(members)
    _, switched = timed(layer.switch, HELD, kept)
    with torch.no_grad():
        first, called = timed(layer, *numbers(group.rank, 0))
    assert torch.equal(first, expected[0]) and same(layer, expected)
    return {"forward before": usual, "survive": survived, "switch": switched, "forward after": called}


def trains(group, victim, moment):
    """Without a switch, and with one; steps with gradients; and a Balancer that places copies anew."""
    layer, held = layer_of(group), factors().requires_grad_()
    expected = results(layer)
    members, _ = lose(layer, victim, moment)
    assert same(layer, expected)  # by the tables of copies
    for rank in members:
        dense(held, rank, 3).square().sum().backward()
    kept, weights = HELD.on(members), layer.experts.factors
    layer.balancer = Balancer(group, HELD)
    for placement in (HELD, kept):
        layer.switch(HELD, placement)
        assert layer.experts.factors is weights  # an optimizer of before may go on
        layer.zero_grad()
        layer(*numbers(group.rank, 3)).square().sum().backward()
        layer.sum_gradients(placement)
        mine = list(HELD.of_rank(group.rank))
        assert torch.allclose(layer.experts.factors.grad, held.grad[mine], rtol=1e-4, atol=1e-5)
    layer.balancer.begin()
    new = layer.balancer.end()
    assert set(new.of_rank(victim)) == {-1} and all(len(slots) > 0 for slots in new.slots())
    assert new == new.on(members) and new.per_rank == HELD.per_rank
    layer.switch(kept, new)
    assert torch.equal(layer.experts.factors, factors()[list(new.of_rank(group.rank))])
    assert same(layer, expected)
    back = move(group, layer.experts.factors.detach(), new, kept)  # a placement on all ranks counts as one on these
    assert torch.equal(back, factors()[list(kept.of_rank(group.rank))])
    assert torch.equal(back, move(group, layer.experts.factors.detach(), new, HELD))
    ones = torch.ones(HELD.per_rank, 2)
    copies = [len(kept.slots()[expert]) for expert in kept.of_rank(group.rank)]
    assert sum_copies(group, ones, HELD)[:, 0].tolist() == copies


def refuses(group, victim, moment):
    """Expert 5 is only on the victim: all ranks are told by its number, and the layer is as before."""
    held = Placement((0, 1, 2, 3, 4, 4, 6, 7, 2, 3, 4, 5, 6, 7, 0, 1), SIZE)
    layer = layer_of(group, held)
    members, _ = lose(layer, victim, moment)
    none = r"experts \[5\] have no copy on the ranks \[0, 1, 3\].*from a checkpoint"
    everywhere = Placement((*range(8), *range(8), *range(8), *range(8)), SIZE)
    weights = layer.experts.factors.detach()
    refused = (lambda: held.on(members), lambda: layer.switch(held, held), lambda: layer.switch(held, everywhere),
               lambda: layer.sum_gradients(held), lambda: Balancer(group, held).begin(),
               lambda: move(group, weights, held, held), lambda: sum_copies(group, weights, held))
    for call in refused:
        with pytest.raises(ferry.InvalidArgument, match=none):
            call()
    with pytest.raises(ferry.InvalidArgument, match="expert 5 has no copy"):
        results(layer)
    empty = Placement((-1, *HELD.experts[1:]), SIZE)
    with pytest.raises(ferry.InvalidArgument, match=r"no empty slot \(-1\)"):
        layer.switch(HELD, empty)
    with pytest.raises(ferry.InvalidArgument if group.rank == 1 else ferry.PeerRejected,
                       match=r"holds the experts \[4, 4, 6, 7\], and by the old placement \[4, 5, 6, 7\]"):
        layer.switch(HELD, HELD)
    assert layer.experts.factors.data_ptr() == weights.data_ptr() and layer.settings["replicas"] == held.slots()
    group.barrier()


def dies_in_a_switch(group, victim, moment):
    """The victim dies in a switch, at `moment`. The switch then fails on all others with an error that names the
    victim, and changes no layer. The others repeat it on the ranks that remain."""
    layer = layer_of(group)
    expected, weights, new = results(layer), layer.experts.factors, Placement((*range(8), *range(8)), SIZE)
    if group.rank == victim:
        moment()
    with pytest.raises((ferry.PeerLost, ferry.Broken), match=f"lost rank {victim}"):
        layer.switch(HELD, new)
    assert layer.experts.factors is weights and layer.settings["replicas"] == HELD.slots()
    members = group.survive(deadline=20)[1]
    assert same(layer, expected)
    kept = HELD.on(members)
    layer.switch(HELD, kept)
    assert same(layer, expected)


def before_it_packs_weights():
    ferry.placement._bytes_of = die


def before_it_makes_the_exchange():
    ferry.torch.module.shared = die


def keeps_switching(group, victim, seed):
    """The victim dies while all ranks switch back and forth. Returns whether the layer goes on; if not, all ranks
    refuse it."""
    layer = layer_of(group)
    expected, old, new = results(layer), HELD, Placement((*range(8), *range(8)), SIZE)
    group.barrier()
    if group.rank == victim:
        threading.Timer(random.Random(seed).uniform(0, 0.02), die).start()
    with pytest.raises((ferry.PeerLost, ferry.Broken), match=f"rank {victim}"):
        while True:
            layer.switch(old, new)
            old, new = new, old
    members = group.survive(deadline=20)[1]
    try:
        goes_on = same(layer, expected)
    except ferry.Mismatch:
        return False
    assert goes_on
    layer.switch(old, old.on(members))
    return same(layer, expected)


def in_different_places(group, victim, change):
    """The victim dies when all ranks but rank 1 have made `change`."""
    layer = layer_of(group)
    expected, weights, before = results(layer), layer.experts.factors, dict(layer.__dict__)
    change(layer)
    group.barrier()
    if group.rank == 1:
        layer.__dict__.update(before)
        layer.experts.factors = weights
        _held[id(group), repr(sorted(layer.settings.items()))] = layer._shared
    if group.rank == victim:
        die()
    with pytest.raises((ferry.PeerLost, ferry.Broken)):
        while True:
            group.barrier()
    group.survive(deadline=20)
    if change is not to_another_placement:
        assert same(layer, expected)
        return
    with pytest.raises(ferry.Mismatch):
        results(layer)
    with pytest.raises(ferry.InvalidArgument if group.rank == 3 else ferry.PeerRejected, match="holds the experts"):
        layer.switch(HELD, HELD)
    group.barrier()


def to_another_dtype(layer):
    tokens, ids, weights = numbers(layer.group.rank, 0)
    with torch.no_grad():
        layer(tokens.bfloat16(), ids, weights)


def to_another_exchange(layer):
    layer.switch(HELD, HELD)


def to_another_placement(layer):
    layer.switch(HELD, Placement((*range(8), *range(8)), SIZE))


# ----


def rank_of(body, rank, victim, moment, address, said):
    try:
        torch.set_num_threads(1)
        with ferry.init(address=address, rank=rank, size=SIZE, deadline=20) as group:
            said.put((rank, "well", body(group, victim, moment)))
    except BaseException:
        said.put((rank, traceback.format_exc(), None))


def survivors(body, victim, moment):
    """What body(group, victim, moment) returned on the ranks that remain."""
    context = multiprocessing.get_context("forkserver")
    said, address = context.Queue(), f"moe-survive-{os.getpid()}-{time.monotonic_ns()}"
    ranks = [context.Process(target=rank_of, args=(body, rank, victim, moment, address, said)) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    found = sorted((said.get(timeout=90) for _ in range(SIZE - 1)), key=lambda each: each[0])
    for rank in ranks:
        rank.join()
    assert [each[:2] for each in found] == [(rank, "well") for rank in range(SIZE) if rank != victim], "\n".join(
        text for _, text, _ in found)
    assert ranks[victim].exitcode == -signal.SIGKILL
    return [each[2] for each in found]


@pytest.mark.parametrize("victim, moment", [(2, idle), (0, in_dispatch), (3, in_experts), (1, in_combine),
                                            (2, at_any_time)])
def test_a_layer_switches_to_the_ranks_that_remain(victim, moment):
    survivors(switches, victim, moment)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_layer_trains_on_the_ranks_that_remain(victim):
    survivors(trains, victim, in_experts)


def test_an_expert_that_is_lost_is_named():
    survivors(refuses, 2, idle)


@pytest.mark.parametrize("moment", [before_it_packs_weights, before_it_makes_the_exchange])
def test_a_rank_that_dies_in_a_switch_leaves_the_layers_as_before(moment):
    survivors(dies_in_a_switch, 3, moment)


@pytest.mark.parametrize("change", [to_another_dtype, to_another_exchange, to_another_placement])
def test_ranks_that_stopped_in_different_places_agree_or_are_refused(change):
    survivors(in_different_places, 2, change)


KILLS = int(os.environ.get("FERRY_KILLS", 6))


@pytest.mark.long
def test_kills_while_a_layer_switches():
    found = [survivors(keeps_switching, kill % SIZE, kill) for kill in range(KILLS)]
    assert all(len(set(each)) == 1 for each in found)
    print(f"{KILLS} kills in switches: {sum(each[0] for each in found)} layers went on, the others were refused")


@pytest.mark.long
def test_kills_at_all_moments():
    """Prints medians and maxima in milliseconds, of the slowest rank after each kill."""
    spent, moments = [], (idle, in_dispatch, in_experts, in_combine, at_any_time)
    for kill in range(KILLS):
        found = survivors(switches, random.Random(kill).randrange(SIZE), moments[kill % len(moments)])
        spent.append({name: max(each[name] for each in found) for name in found[0]})
    for name in spent[0]:
        values = [each[name] for each in spent]
        print(f"{KILLS} kills, {name}: median {statistics.median(values):.2f} ms, max {max(values):.2f} ms")
