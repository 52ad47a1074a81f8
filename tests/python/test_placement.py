"""Placements of experts: EPLB's published example, the invariants of any placement, weights that move, results that
stay."""

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
import ferry.moe  # noqa: E402
from ports import free_port  # noqa: E402
from ferry.placement import Balancer, Placement, balance, balanced_packing, blocks, move  # noqa: E402
from ferry.placement import rebalance_experts, replicate_experts  # noqa: E402

# The example that EPLB's page prints, with its result.
LOADS = [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]]
PHY2LOG = [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]]


def test_the_published_example():
    phy2log, log2phy, logcnt = rebalance_experts(torch.tensor(LOADS), 16, 4, 2, 8)
    assert phy2log.tolist() == PHY2LOG
    for layer in range(2):
        for expert in range(12):
            slots = [slot for slot, held in enumerate(PHY2LOG[layer]) if held == expert]
            named = [slot for slot in log2phy[layer, expert].tolist() if slot >= 0]
            assert sorted(named) == slots and logcnt[layer, expert] == len(slots)
    assert log2phy.shape == (2, 12, 5)


def test_the_steps_of_the_algorithm():
    pack, position = balanced_packing(torch.tensor([[4.0, 1, 3, 2], [1, 2, 3, 4]]), 2)
    assert pack.tolist() == [[0, 0, 1, 1], [0, 1, 1, 0]] and position.tolist() == [[0, 1, 0, 1], [1, 1, 0, 0]]
    assert [part.tolist() for part in balanced_packing(torch.tensor([[3, 1, 2]]), 3)] == [[[0, 1, 2]], [[0, 0, 0]]]
    found = replicate_experts(torch.tensor([[8, 1, 2]]), 5)
    assert [part.tolist() for part in found] == [[[0, 1, 2, 0, 0]], [[0, 0, 0, 1, 2]], [[3, 1, 1]]]


@pytest.mark.parametrize("experts, replicas, groups, nodes, ranks", [(16, 16, 1, 1, 4), (16, 24, 4, 2, 8),
                                                                   (12, 20, 3, 2, 4), (256, 288, 8, 4, 32)])
def test_every_expert_has_a_slot_and_ranks_are_nearer_to_each_other(experts, replicas, groups, nodes, ranks):
    generator = torch.Generator().manual_seed(experts)
    loads = torch.rand(experts, generator=generator).pow(6) * 1000
    found = balance(loads, replicas, ranks, num_groups=groups, num_nodes=nodes)
    assert len(found.experts) == replicas and set(found.experts) == set(range(experts))
    before = blocks(experts, ranks).imbalance(loads)
    assert 1 <= found.imbalance(loads) < before


@pytest.mark.parametrize("arguments, complaint", [
    ((torch.ones(1, 12), 16, 5, 1, 4), "12 is not divisible by 5"),
    ((torch.ones(1, 12), 15, 1, 1, 4), "15 is not divisible by 4"),
    ((torch.ones(1, 12), 8, 1, 1, 4), "8 replicas of 12 experts"),
    ((torch.ones(1, 12), 16, 4, 2, 5), "5 is not divisible by 2"),
    ((torch.ones(1, 12), 8, 4, 2, 4), "8 replicas of 12 experts"),
    ((torch.tensor([[1.0, float("nan")]]), 2, 1, 1, 2), "the load of expert 1 is nan"),
    ((torch.tensor([[-1.0, 2]]), 2, 1, 1, 2), "the load of expert 0 is -1"),
])
def test_counts_that_do_not_fit_are_refused(arguments, complaint):
    with pytest.raises(ferry.InvalidArgument, match=complaint):
        rebalance_experts(*arguments)


def weight_of(expert, dtype=torch.bfloat16):
    """3 x 5,000 elements that no other expert has."""
    return (torch.arange(15000) % 101 + expert * 128).to(dtype).view(3, 5000)


def moved(group, old, new):
    weights = torch.stack([weight_of(expert) for expert in old.of_rank(group.rank)])
    return move(group, weights, old, new)


@pytest.mark.parametrize("topology", [None, "host:2,rank:2"])
def test_weights_move_bit_for_bit(topology):
    chance = random.Random(3)
    old = blocks(8, 4)
    new = Placement(tuple(chance.sample([*range(8), 0, 0, 5, 7], 12)), 4)
    options = {} if topology is None else {"topology": topology}
    for rank, weights in enumerate(ferry.run_threads(4, moved, old, new, **options)):
        assert torch.equal(weights, torch.stack([weight_of(expert) for expert in new.of_rank(rank)]))
    back = ferry.run_threads(4, moved, new, old)
    for rank, weights in enumerate(back):
        assert torch.equal(weights, torch.stack([weight_of(expert) for expert in old.of_rank(rank)]))


def dies_while_moving(group, folder):
    if group.rank == 1:  # at the time when it has packed the first weights
        ferry.placement._bytes_of = lambda weights: os.kill(os.getpid(), signal.SIGKILL)
    try:
        moved(group, blocks(6, 3), Placement((2, 3, 4, 5, 0, 1), 3))
    except ferry.PeerLost as error:
        (folder / str(group.rank)).write_text(f"{error.culprit} {error}")
        raise


@pytest.mark.long
def test_a_rank_that_dies_while_weights_move_is_named(tmp_path):
    with pytest.raises(ferry.PeerLost, match="rank 1"):
        ferry.spawn(3, dies_while_moving, tmp_path)
    for rank in (0, 2):
        assert (tmp_path / str(rank)).read_text().startswith("1 "), rank


def came_back(group):
    old, new = Placement((3, 0, 1, 2, -1, -1), 3), Placement((3, 0, 1, 2, 3, 1), 3)
    weights = torch.stack([weight_of(max(expert, 0)) for expert in old.of_rank(group.rank)])
    return move(group, weights, old, new), new.of_rank(group.rank)


def test_a_rank_that_has_nothing_gets_its_weights():
    for weights, held in ferry.run_threads(3, came_back):
        assert torch.equal(weights, torch.stack([weight_of(expert) for expert in held]))


def refused(group, old, new, experts_here):
    with pytest.raises(ferry.InvalidArgument) as error:
        move(group, torch.zeros(experts_here, 4), old, new)
    group.barrier()
    return str(error.value)


@pytest.mark.parametrize("old, new, here, complaint", [
    (blocks(8, 2), blocks(8, 4), 4, "does not fit a group of 2"),
    (blocks(8, 2), blocks(8, 2), 3, "weights of 3 experts, the old placement has 4 here"),
    (blocks(4, 2), blocks(8, 2), 2, "expert 4 of the new placement is on no rank"),
])
def test_placements_that_do_not_fit_are_refused(old, new, here, complaint):
    assert all(complaint in text for text in ferry.run_threads(2, refused, old, new, here))


def disagrees(group, given, error, complaint):
    """Rank 1's move has `given` in place of the argument of all others; the group goes on."""
    good = {"weights": torch.ones(2, 3), "old": blocks(4, 2), "new": Placement((2, 3, 0, 1), 2)}
    told = ferry.PeerRejected if error is ferry.InvalidArgument and group.rank != 1 else error
    with pytest.raises(told, match=complaint):
        move(group, **(good | given if group.rank == 1 else good))
    return move(group, **good).shape


@pytest.mark.parametrize("given, error, complaint", [
    ({"weights": torch.ones(2, 3, dtype=torch.float64)}, ferry.Mismatch, "dtype: rank 1 has torch.float64, rank 0"),
    ({"weights": torch.ones(2, 4)}, ferry.Mismatch, r"shape of an expert: rank 1 has \(4,\)"),
    ({"weights": torch.ones(3, 3)}, ferry.InvalidArgument, "weights of 3 experts"),
    ({"weights": [1, 2]}, ferry.InvalidArgument, "weights are no tensor of experts but list"),
    ({"old": Placement((1, 0, 2, 3), 2)}, ferry.Mismatch, "old placement: rank 1 has"),
    ({"new": Placement((0, 1, 2, 7), 2)}, ferry.InvalidArgument, "expert 7 of the new placement is on no rank"),
])
def test_ranks_that_disagree_are_all_told(given, error, complaint):
    assert ferry.run_threads(2, disagrees, given, error, complaint, deadline=5) == [(2, 3)] * 2


def switches(group):
    """Placements that a layer refuses; and the layer goes on."""
    layer = ferry.moe.MoE(group, hidden=16, intermediate=8, num_experts=4, top_k=1, max_tokens=4, dtype=torch.float32)
    tokens, ids, weights = torch.ones(4, 16), torch.arange(4).unsqueeze(1), torch.ones(4, 1)
    before = layer(tokens, ids, weights)
    for new in (Placement((0, 1, 2, -1), 2), Placement((0, 1, 2, 2), 2)):
        with pytest.raises(ferry.InvalidArgument, match="needs a copy of each expert"):
            layer.switch(blocks(4, 2), new)
    with pytest.raises(ferry.InvalidArgument, match="4 slots on 1 ranks does not fit a group of 2"):
        layer.switch(blocks(4, 1), blocks(4, 1))
    layer.switch(blocks(4, 2), Placement((3, 1, 0, 2), 2))
    torch.testing.assert_close(layer(tokens, ids, weights), before)


def test_a_layer_refuses_a_placement_without_all_experts():
    ferry.run_threads(2, switches, deadline=5)


HELD = Placement((0, 1, 2, 0, 0, 3, 2, 1), 2)


def summed(group, dtype):
    generator = torch.Generator().manual_seed(5)
    all_slots = torch.randn(8, 3, 5000, generator=generator).to(dtype)
    return ferry.placement.sum_copies(group, all_slots[4 * group.rank:4 * group.rank + 4], HELD), all_slots


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_copies_get_the_sum_of_their_gradients(dtype):
    parts = ferry.run_threads(2, summed, dtype)
    got, given = torch.cat([part for part, _ in parts]), parts[0][1]
    for slots in HELD.slots():
        expected = given[slots].to(torch.promote_types(dtype, torch.float32)).sum(0).to(dtype)
        torch.testing.assert_close(got[slots[0]], expected)
        assert all(torch.equal(got[slot], got[slots[0]]) for slot in slots)


def trained(group, held):
    """A step of SGD on a layer; returns its result before and after, and the weights by expert."""
    layer = ferry.moe.MoE(group, hidden=16, intermediate=8, num_experts=4, top_k=2, max_tokens=40, dtype=torch.float32)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weights in layer.experts.parameters():
            of_all = 0.2 * torch.randn(4, *weights.shape[1:], generator=generator)
            weights.copy_(of_all[2 * group.rank:2 * group.rank + 2])
    if held is not None:
        layer.switch(blocks(4, 2), held)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    tokens = torch.randn(40, 16, generator=generator)
    ids, weights = torch.rand(40, 4, generator=generator).argsort(1)[:, :2].contiguous(), torch.ones(40, 2)
    layer(tokens, ids, weights).square().mean().backward()
    if held is not None:
        layer.sum_gradients(held)
    optimizer.step()
    with torch.no_grad():
        return layer(tokens, ids, weights), [part.detach() for part in layer.experts.parameters()]


def test_a_layer_with_copies_learns_what_one_without_does():
    alone, copies = ferry.run_threads(2, trained, None), ferry.run_threads(2, trained, HELD)
    for (out, _), (expected, _) in zip(copies, alone):
        torch.testing.assert_close(out, expected)
    for parts in zip(*(weights for _, weights in copies)):
        weights = torch.cat(parts)
        for slots in HELD.slots():
            assert all(torch.equal(weights[slot], weights[slots[0]]) for slot in slots)


def layer(group, weights, held, step):
    """One layer of experts that multiply, with a busy expert 1. Returns its result and the handle."""
    generator = torch.Generator().manual_seed(100 * step + group.rank)
    tokens = torch.randn(32, 16, generator=generator)
    ids = torch.stack([torch.ones(32, dtype=torch.int64), torch.randint(2, 8, (32,), generator=generator)], 1)
    exchange = group.exchange(max_tokens=32, hidden=16, top_k=2, dtype="float32", **held.settings())
    received = exchange.dispatch(tokens, ids)
    parts = received.rows.split(received.handle.tokens_per_expert.tolist())
    outputs = torch.cat([part * weight for part, weight in zip(parts, weights)])
    return exchange.combine(outputs, received.handle, torch.ones(32, 2)), received.handle


def balanced_run(group):
    held = blocks(8, group.size)
    weights = torch.tensor(held.of_rank(group.rank)).float() + 1
    balancer = Balancer(group, held)
    before, handle = layer(group, weights, held, 0)
    balancer.count(handle)
    balancer.begin(12)
    new = balancer.end()
    weights = move(group, weights.view(-1, 1), held, new)
    after, handle = layer(group, weights, new, 0)
    rows = group.all_gather(bytes([int(handle.tokens_per_expert.sum())]))
    return before, after, new, [count[0] for count in rows]


def test_a_placement_is_switched_between_two_steps():
    results = ferry.run_threads(4, balanced_run)
    for before, after, new, rows in results:
        assert new == results[0][2] and len(new.slots()[1]) > 1  # the busy expert has copies
        assert torch.equal(before, after)  # two summands: their order does not matter
        assert max(rows) * 4 <= 1.2 * sum(rows)  # the busiest rank had at least half of all rows before
    assert blocks(8, 4).imbalance([0, 128, 22, 21, 21, 21, 21, 22]) == 2


def elastic_run(group):
    """Three steps: all ranks, without rank 1, all ranks again; each expert has copies on two ranks."""
    held = Placement((0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 0, 1), 3)
    weights = torch.tensor(held.of_rank(group.rank)).float() + 1
    exchange = group.exchange(max_tokens=32, hidden=16, top_k=2, dtype="float32", **held.settings("by_table"))
    generator = torch.Generator().manual_seed(group.rank)
    tokens, ids = torch.randn(32, 16, generator=generator), torch.randint(0, 6, (32, 2), generator=generator)
    outs = []
    for active in ([0, 1, 2], [0, 2], [0, 1, 2]):
        received = exchange.dispatch(tokens, ids, active_ranks=active, replica_table=held.table(group.rank, active))
        parts = received.rows.split(received.handle.tokens_per_expert.tolist())
        outputs = torch.cat([part * weight for part, weight in zip(parts, weights)] or [received.rows])
        outs.append(exchange.combine(outputs, received.handle, torch.ones(32, 2)))
    with pytest.raises(ferry.InvalidArgument, match=r"expert 2 has no copy on the active ranks \[2\]"):
        held.table(group.rank, [2])
    return outs, (tokens * (ids + 1).sum(1, keepdim=True))


def test_copies_serve_the_experts_of_a_rank_that_is_away():
    for rank, (outs, expected) in enumerate(ferry.run_threads(3, elastic_run)):
        for step, out in enumerate(outs):
            if rank != 1 or step != 1:
                torch.testing.assert_close(out, expected)


def one_step(group, weights, held):
    """(result, expected result) of a layer of experts that multiply by their number + 1."""
    exchange = group.exchange(max_tokens=32, hidden=16, top_k=2, dtype="float32", **held.settings())
    generator = torch.Generator().manual_seed(group.rank)
    tokens, ids = torch.randn(32, 16, generator=generator), torch.randint(0, 6, (32, 2), generator=generator)
    received = exchange.dispatch(tokens, ids)
    parts = received.rows.split(received.handle.tokens_per_expert.tolist())
    outputs = torch.cat([part * weight for part, weight in zip(parts, weights)])
    out = exchange.combine(outputs, received.handle, torch.ones(32, 2))
    return out, tokens * (ids + 1).sum(1, keepdim=True)


def leaves_and_joins_again(rank, address):
    """Three groups by one rendezvous: all ranks, without rank 2, and all again, where rank 2 has nothing."""
    everybody, two = Placement((0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 0, 1), 3), Placement((0, 1, 2, 3, 2, 3, 4, 5), 2)
    weights, steps = torch.tensor(everybody.of_rank(rank)).view(-1, 1).float() + 1, []
    with ferry.init(address=address, rank=rank, size=3, name="all", deadline=20) as group:
        steps.append(one_step(group, weights, everybody))
    if rank == 2:
        weights = torch.zeros(4, 1)
    else:
        with ferry.init(address=address, rank=rank, size=2, name="without 2", deadline=20) as group:
            steps.append(one_step(group, weights, two))
    with ferry.init(address=address, rank=rank, size=3, name="all again", deadline=20) as group:
        old = Placement((*two.experts, -1, -1, -1, -1), 3)
        steps.append(one_step(group, move(group, weights, old, everybody), everybody))
    return steps


def test_a_rank_leaves_and_joins_again_by_the_same_rendezvous(monkeypatch):
    monkeypatch.setenv("FERRY_SECRET", "the same for all three groups")
    with ThreadPoolExecutor(3) as ranks:
        steps = list(ranks.map(leaves_and_joins_again, range(3), [f"tcp://127.0.0.1:{free_port()}"] * 3))
    assert [len(each) for each in steps] == [3, 3, 2]
    for out, expected in sum(steps, []):
        torch.testing.assert_close(out, expected)


def test_a_table_deals_the_sources_out_over_the_copies_that_are_active():
    held = Placement((0, 1, 0, 1, 0, 2), num_ranks=3)
    assert [held.table(rank, [0, 1, 2])[0].item() for rank in range(3)] == [0, 1, 2]
    assert [held.table(rank, [0, 2])[0].item() for rank in (0, 2)] == [0, 0]
    assert [held.table(rank, [1, 2])[0].item() for rank in (1, 2)] == [2, 1]


def test_sums_of_more_copies_than_one_dispatch_makes():
    held = Placement((*[0] * 20, 1, *[0] * 18, 1, 1, -1), num_ranks=2)  # 38 copies of expert 0, 3 of expert 1
    torch.manual_seed(0)
    gradients = torch.randn(len(held.experts), 5)

    def body(group):
        return ferry.placement.sum_copies(group, gradients[21 * group.rank:21 * group.rank + 21], held)

    summed = torch.cat(ferry.run_threads(2, body))
    for expert in range(2):
        slots = [slot for slot, one in enumerate(held.experts) if one == expert]
        torch.testing.assert_close(summed[slots[0]], gradients[slots].sum(0))
        assert all(torch.equal(summed[slot], summed[slots[0]]) for slot in slots)
