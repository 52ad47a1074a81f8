"""group.survive(): ranks die or leave, the others go on with their exchange, and what it returns is right."""

import multiprocessing
import os
import random
import signal
import time

import numpy as np
import pytest

import ferry
from expert_steps import SETTINGS, step
from ferry.views import begin_view, end_view


def go_on(group, exchange, number, ranks):
    assert not group.usable
    assert group.survive(deadline=20) == group.view == (number, ranks)
    assert group.usable
    for _ in range(3):
        step(group, exchange, ranks)


def survivor(rank, address, results):
    try:
        with ferry.init(address=address, rank=rank, size=4) as group:
            exchange = group.exchange(**SETTINGS)
            step(group, exchange, range(4))
            if rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            with pytest.raises(ferry.PeerLost, match="view 1 is over, lost rank 2") as caught:
                step(group, exchange, range(4))
            assert caught.value.culprit == 2
            go_on(group, exchange, 2, (0, 1, 3))
            with pytest.raises(ferry.InvalidArgument, match="expert 2 .* lacks"):
                step(group, exchange, [2])
            if rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            with pytest.raises(ferry.PeerLost, match="view 2 is over, lost rank 0"):
                step(group, exchange, [1, 3])
            go_on(group, exchange, 3, (1, 3))
            assert group.all_gather(bytes([rank])) == [b"", b"\1", b"", b"\3"]
        results.put((rank, "well"))
    except BaseException as error:
        results.put((rank, repr(error)))


def test_two_ranks_are_killed():
    context = multiprocessing.get_context("spawn")
    results, address = context.Queue(), f"survive-{os.getpid()}"
    ranks = [context.Process(target=survivor, args=(rank, address, results)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    assert sorted(results.get(timeout=60) for _ in range(2)) == [(1, "well"), (3, "well")]
    for rank in ranks:
        rank.join()


def test_a_rank_leaves_and_the_others_make_another_exchange():
    def body(group):
        assert group.view == (1, (0, 1, 2))
        exchange = group.exchange(**SETTINGS)
        if group.rank == 1:
            return None
        with pytest.raises(ferry.PeerLost, match="rank 1"):
            group.barrier()
        view = group.survive()
        other = group.exchange(**SETTINGS)  # two experts on each of the ranks 0 and 2
        for each, experts in ((exchange, (0, 3)), (other, (0, 1, 2, 3))):
            ids = np.array(experts, np.int32)[np.arange(8) % len(experts)][:, None]
            received = each.dispatch(np.full((8, 16), group.rank, np.float32), ids)
            rows = np.asarray(received.rows) + 1
            result = np.asarray(each.combine(rows, received.handle, np.ones((8, 1), np.float32)))
            np.testing.assert_array_equal(result, np.full((8, 16), group.rank + 1))
        return view

    assert ferry.run_threads(3, body) == [(2, (0, 2)), None, (2, (0, 2))]


def test_a_rank_that_cannot_make_its_call_ends_those_of_the_others():
    def body(group):
        for turn in range(6):
            if group.rank == turn % 3:
                end_view(group)
            else:
                with pytest.raises(ferry.Broken, match=f"rank {turn % 3} "):
                    while True:
                        group.barrier()
            begin_view(group, 20)
            assert group.all_gather(bytes([group.rank])) == [b"\0", b"\1", b"\2"]
        return group.view[1]

    assert ferry.run_threads(3, body) == [(0, 1, 2)] * 3


def test_views_that_ranks_end_while_others_begin_them():
    def body(group):
        draw = random.Random(group.rank)
        for _ in range(40):
            time.sleep(draw.random() * 0.03)
            if draw.random() < 0.5:
                end_view(group)
            begin_view(group, 20)
            group.barrier()
        return group.view

    first, *others = ferry.run_threads(3, body)
    assert others == [first] * 2


def test_a_layer_goes_on_with_replicas():
    torch = pytest.importorskip("torch")
    from ferry.moe import SwiGLU
    from ferry.placement import Placement
    from ferry.torch import MoE

    held = Placement((*range(8), *range(8)), num_ranks=2)  # everything twice
    sizes = dict(max_tokens=64, hidden=16, top_k=2, dtype=torch.float32)

    def body(group):
        torch.manual_seed(0)
        layer = MoE(group, experts=SwiGLU(held.per_rank, 16, 32, torch.float32), **sizes, **held.settings("by_table"))
        inputs = torch.randn(64, 16), torch.randint(0, 8, (64, 2)), torch.rand(64, 2)
        before = layer(*inputs)
        group.barrier()
        if group.rank == 1:
            return
        with pytest.raises(ferry.PeerLost, match="rank 1"):
            layer(*inputs)
        assert group.survive() == (2, (0,))
        for _ in range(2):
            after = layer(*inputs, active_ranks=group.view[1])
            after.sum().backward()
            assert torch.equal(after, before)

    ferry.run_threads(2, body)
