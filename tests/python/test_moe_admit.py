"""A layer takes back a rank: a new process takes the place of a killed one, joins the exchange of the layer, gets its
weights by a switch, and all ranks have the bits of before."""

import copy
import multiprocessing
import os
import signal

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from test_moe_survive import HELD, SIZE, layer_of, results, same  # noqa: E402

LOST = 2


def go_on_with_all(layer, copied, expected):
    kept = HELD.on([rank for rank in range(SIZE) if rank != LOST])
    before = layer.exchange
    assert before.stats().dispatches == (0 if layer.group.rank == LOST else len(expected))
    layer.switch(kept, HELD)
    assert same(layer, expected)
    copied.experts.load_state_dict(layer.experts.state_dict())
    assert same(copied, expected)


def replace_one(group, ended):
    """LOST is killed, and another process takes its place."""
    group.barrier()
    if group.rank == LOST:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(ferry.PeerLost):
        group.barrier()
    group.survive()
    ended.put(group.rank)
    group.admit()


def member_of_a_layer_that_ran_in_bfloat16(rank, address, folder, ended):
    with ferry.init(address=address, rank=rank, size=SIZE) as group:
        layer = layer_of(group)
        expected = results(layer)
        torch.save(expected, folder / str(rank))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results(layer)
        replace_one(group, ended)
        layer.join(group)
        assert same(layer, expected)
    ended.put(rank)


def newcomer_with_weights(rank, address, folder, ended):
    with ferry.init(address=address, slot=rank, size=SIZE) as group:
        assert same(layer_of(group), torch.load(folder / str(rank)))
    ended.put(rank)


def member(rank, address, folder, ended):
    with ferry.init(address=address, rank=rank, size=SIZE) as group:
        layer = layer_of(group)
        copied = copy.deepcopy(layer)
        expected = results(layer)
        torch.save(expected, folder / str(rank))
        with pytest.raises(ferry.InvalidArgument, match="this layer has a group"):
            layer.join(group)
        replace_one(group, ended)
        layer.join(group)
        go_on_with_all(layer, copied, expected)
    ended.put(rank)


def newcomer(rank, address, folder, ended):
    with ferry.init(address=address, slot=rank, size=SIZE) as group:
        layer = layer_of(group)
        with torch.no_grad():
            layer.experts.factors.zero_()  # the weights of a new process
        go_on_with_all(layer, copy.deepcopy(layer), torch.load(folder / str(rank)))
    ended.put(rank)


@pytest.mark.parametrize("topology", ["", "host:2,rank:2"])
def test_a_new_process_joins_a_layer(tmp_path, monkeypatch, topology):
    monkeypatch.setenv("FERRY_TOPOLOGY", topology)
    play(tmp_path, member, newcomer)


def test_a_new_process_joins_a_layer_that_ran_in_another_dtype(tmp_path):
    play(tmp_path, member_of_a_layer_that_ran_in_bfloat16, newcomer_with_weights)


def play(tmp_path, member, newcomer):
    context = multiprocessing.get_context("spawn")
    ended, address = context.Queue(), f"moe-admit-{os.getpid()}"

    def start(body, rank):
        process = context.Process(target=body, args=(rank, address, tmp_path, ended))
        process.start()
        return process

    ranks = [start(member, rank) for rank in range(SIZE)]
    assert sorted(ended.get(timeout=60) for _ in range(SIZE - 1)) == [0, 1, 3]
    ranks.append(start(newcomer, LOST))
    assert sorted(ended.get(timeout=60) for _ in range(SIZE)) == [0, 1, 2, 3]
    for rank in ranks:
        rank.join()
