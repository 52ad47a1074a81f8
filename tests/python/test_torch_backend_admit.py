"""ferry.torch_backend.admit(): new processes take the places of lost ranks in a process group."""

import multiprocessing
import subprocess
import sys
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import ferry  # noqa: E402
import ferry.torch_backend  # noqa: E402
from ferry.testing import ranks  # noqa: E402
from test_torch_backend_survive import all_calls, lose  # noqa: E402

SIZE = 4
ALL = tuple(range(SIZE))


def meet(rank, path):
    dist.init_process_group("cpu:ferry", init_method=f"file://{path}", rank=rank, world_size=SIZE,
                            timeout=timedelta(seconds=40))


def go_on_with_all(rank, others=None):
    """Each collective, one of objects and one of a new group."""
    all_calls(rank, ALL)
    told = [None] * SIZE
    dist.all_gather_object(told, rank)
    assert told == list(ALL)
    some = dist.new_group([1, 3])
    if rank in (1, 3):
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=some)
        assert tensor.item() == 2
    dist.barrier()


def member(rank, path, results):
    try:
        meet(rank, path)
        all_calls(rank, ALL)
        lose(rank, 2, 2, (0, 1, 3))
        with pytest.raises(ferry.PeerRejected, match="rank 2"):
            ferry.torch_backend.admit(timeout=timedelta(seconds=1))
        all_calls(rank, (0, 1, 3))  # the view goes on
        results.put((rank, "admits"))
        assert ferry.torch_backend.admit() == (3, ALL)
        go_on_with_all(rank)
        lose_rank_0(rank, results)
        results.put((rank, "well"))
    except BaseException as error:
        results.put((rank, repr(error)))


def lose_rank_0(rank, results):
    lose(rank, 0, 4, (1, 2, 3))
    results.put((rank, "admits"))
    assert ferry.torch_backend.admit([0]) == (5, ALL)
    all_calls(rank, ALL)
    dist.destroy_process_group()


def newcomer(rank, path, results):
    try:
        meet(rank, path)
        if rank == 2:
            go_on_with_all(rank)
            lose_rank_0(rank, results)
        else:
            all_calls(rank, ALL)
            dist.destroy_process_group()
        results.put((rank, "well"))
    except BaseException as error:
        results.put((rank, repr(error)))


def test_two_ranks_are_replaced(tmp_path):
    context = multiprocessing.get_context("forkserver")
    results = context.Queue()

    def start(body, rank):
        process = context.Process(target=body, args=(rank, tmp_path / "meet", results))
        process.start()
        return process

    def expect(ranks, word):
        assert sorted(results.get(timeout=60) for _ in ranks) == [(rank, word) for rank in ranks]

    processes = [start(member, rank) for rank in ALL]
    expect((0, 1, 3), "admits")
    processes.append(start(newcomer, 2))
    expect((1, 2, 3), "admits")
    processes.append(start(newcomer, 0))
    expect(ALL, "well")
    for process in processes:
        process.join()


@ranks(2, kind="threads", deadline=20)
def test_a_refused_admission_leaves_the_group_as_it_was():
    with pytest.raises(ferry.InvalidArgument, match="view 1 has all 2 ranks"):
        ferry.torch_backend.admit()
    got = torch.empty(1)
    late = dist.irecv(got, 1 - dist.get_rank())
    with pytest.raises(ferry.InvalidArgument, match="in flight"):
        ferry.torch_backend.admit()
    dist.barrier()
    dist.isend(torch.ones(1), 1 - dist.get_rank()).wait()
    late.wait()


LAUNCHED = """
import os, signal, sys, time, torch, torch.distributed as dist, ferry, ferry.torch_backend
from datetime import timedelta
torch.set_num_threads(1)
dist.init_process_group("cpu:ferry", timeout=timedelta(seconds=60))
rank = dist.get_rank()
try:
    while "FERRY_NEWCOMER" not in os.environ:
        dist.all_reduce(torch.ones(100))
        rank == 1 and os.kill(os.getpid(), signal.SIGKILL)
except (ferry.PeerLost, ferry.Broken):
    ferry.torch_backend.survive()
    ferry.torch_backend.admit()
tensor = torch.full((1,), float(rank))
dist.all_reduce(tensor)
print(f"sum {tensor.item()}")
dist.barrier()
dist.destroy_process_group()
"""


def test_a_rank_that_ferry_launch_starts_again():
    done = subprocess.run([sys.executable, "-m", "ferry", "launch", "-n", "3", "--restart", "1", "--", sys.executable,
                           "-c", LAUNCHED], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] sum 3.0" for rank in range(3)]
    assert "started again" in done.stderr
