"""The claims of docs/numerics.md ("Same bits"), each with a test of its name.

A request is a token with its experts and weights, by a number. The tests place requests and experts on ranks in
different ways, and compare the bytes of their results."""

import random
import time

import numpy as np
import pytest

import ferry

REQUESTS, HIDDEN, EXPERTS, TOP_K = 24, 136, 8, 4
SETTINGS = dict(max_tokens=REQUESTS, hidden=HIDDEN, num_experts=EXPERTS, top_k=TOP_K, dtype="float16")
TOKENS = np.random.default_rng(1).standard_normal((REQUESTS, HIDDEN)).astype(np.float16)
IDS = np.stack([np.random.default_rng(100 + r).permutation(EXPERTS)[:TOP_K] for r in range(REQUESTS)])
WEIGHTS = np.random.default_rng(2).random((REQUESTS, TOP_K), dtype=np.float32)
SPREAD = [list(range(rank, REQUESTS, 4)) for rank in range(4)]  # the requests of each of four ranks


def expert(number, rows):
    """An expert that does one thing to each element, so that it gives a row the same bits in every batch."""
    return (rows.astype(np.float32) * np.float32(1 + number / 7) + np.float32(number)).astype(np.float16)


def results(placement, *, ranks=range(6), topology="", pauses=None, **settings):
    """The bytes of each request's result. placement[i]: the requests of rank i. ranks[r]: the rank that has the r-th
    part of the experts. pauses: a seed of the pauses of ranks between their calls."""
    num_ranks = len(placement)
    owners = [ranks[e * num_ranks // EXPERTS] for e in range(EXPERTS)]
    settings = {**SETTINGS, "expert_rank": owners, **settings}

    def play(group):
        wait = random.Random(f"{pauses} {group.rank}")
        numbers = placement[group.rank]
        exchange = group.exchange(**settings)
        mine = [e for e in range(EXPERTS) if owners[e] == group.rank]
        if pauses is not None:
            time.sleep(wait.random() / 50)
        received = exchange.dispatch(TOKENS[numbers], IDS[numbers])
        rows = np.zeros((received.num_rows, HIDDEN), np.float16)
        for local, number in enumerate(mine):
            first = received.handle.expert_offsets[local]
            here = slice(first, first + received.handle.tokens_per_expert[local])
            rows[here] = expert(number, decoded(received)[here])
        if pauses is not None:
            time.sleep(wait.random() / 50)
        out = exchange.combine(rows, received.handle, WEIGHTS[numbers])
        return {number: row.tobytes() for number, row in zip(numbers, np.asarray(out))}

    parts = ferry.run_threads(num_ranks, play, topology=topology)
    return {number: row for part in parts for number, row in part.items()}


def decoded(received):
    rows = np.asarray(received.rows).reshape(-1, HIDDEN)
    return rows if received.scales is None else rows * np.asarray(received.scales).reshape(-1, 1)


def oracle():
    """The sum of docs/numerics.md, written down a second time."""
    found = {}
    for number in range(REQUESTS):
        sum_ = np.zeros(HIDDEN, np.float32)
        for k in range(TOP_K):
            sum_ = sum_ + WEIGHTS[number, k] * expert(IDS[number, k], TOKENS[number]).astype(np.float32)
        found[number] = sum_.astype(np.float16).tobytes()
    return found


def test_repeatable():
    runs = [results(SPREAD, pauses=seed, workers=workers, topology="host:2,rank:2")
            for seed, workers in ((1, 1), (2, 3), (3, 1))]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("topology", ["", "host:2,rank:2", "host:4,rank:1"])
def test_equal_to_the_oracle(topology):
    assert results(SPREAD, topology=topology, node_sums="exact") == oracle()


SHAPES = [(4, "host:2,rank:2"), (4, "host:4,rank:1"), (4, "rack:2,host:2,rank:1"),
          (6, "rack:2,host:3,rank:1"), (3, ""), (4, "host:2,rank:1+3")]


@pytest.mark.parametrize("num_ranks, topology", SHAPES)
@pytest.mark.parametrize("algorithm", ["fullmesh", "hierarchical", "allgather"])
def test_equal_when_ranks_are_placed_on_other_hosts(num_ranks, topology, algorithm):
    placement = [list(range(rank, REQUESTS, num_ranks)) for rank in range(num_ranks)]
    placed = results(placement, topology=topology, algorithm=algorithm, node_sums="exact")
    assert placed == results(SPREAD)


def test_without_exact_another_placement_may_change_bits():
    assert results(SPREAD, topology="host:2,rank:2") != results(SPREAD)  # else the test above could not fail


@pytest.mark.parametrize("ranks", [(1, 0, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
@pytest.mark.parametrize("topology", ["", "host:2,rank:2"])
def test_equal_when_ranks_are_numbered_otherwise(ranks, topology):
    placement = [SPREAD[ranks.index(rank)] for rank in range(4)]
    assert results(placement, ranks=ranks, topology=topology, node_sums="exact") == results(SPREAD)


@pytest.mark.parametrize("settings", [{}, {"layout": "padded"}, {"wire": "int8"}, {"combine_wire": "int8_8"},
                                      {"topology": "host:2,rank:2"}], ids=str)
def test_a_token_does_not_depend_on_its_batch(settings):
    batch = results(SPREAD, **settings)
    alone = [results(placement, **settings) for placement in ([[], [7], [], []], [[], [], [], [7]])]
    beside = results([[20, 7, 3], [1, 2], [], [11]], **settings)
    assert alone[0][7] == alone[1][7] == beside[7] == batch[7]
    assert all(beside[number] == batch[number] for number in beside)


def train(group, folder, steps):
    """Trains a layer for these steps, from the checkpoint of the step before, and returns the bytes of its weights."""
    import torch

    import ferry.torch

    torch.set_num_threads(1)
    torch.manual_seed(5)
    layer = ferry.torch.MoE(group, hidden=32, intermediate=48, num_experts=4, top_k=2, max_tokens=20,
                            dtype=torch.float32)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.05)
    checkpoint = f"{folder}/{{step}}_{group.rank}.pt"
    if steps.start:
        state = torch.load(checkpoint.format(step=steps.start))
        layer.load_state_dict(state["layer"])
        optimizer.load_state_dict(state["optimizer"])
    for step in steps:
        made = torch.Generator().manual_seed(100 * step + group.rank)
        tokens = torch.randn(20, 32, generator=made)
        weights, ids = torch.rand(20, 4, generator=made).softmax(-1).topk(2)
        optimizer.zero_grad()
        layer(tokens, ids, weights).square().mean().backward()
        optimizer.step()
        torch.save({"layer": layer.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint.format(step=step + 1))
    return b"".join(parameter.detach().numpy().tobytes() for parameter in layer.parameters())


@pytest.mark.long
def test_equal_after_a_restart_from_a_checkpoint(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "whole").mkdir(), (tmp_path / "parts").mkdir()
    whole = ferry.spawn(2, train, tmp_path / "whole", range(4))
    begun = ferry.spawn(2, train, tmp_path / "parts", range(2))
    assert begun != whole
    assert ferry.spawn(2, train, tmp_path / "parts", range(2, 4)) == whole  # other processes, another group
