"""ferry.torch_backend.survive(): ranks of a process group are killed, and the others go on with the same group."""

import multiprocessing
import os
import signal
import threading
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import ferry  # noqa: E402
import ferry.torch_backend  # noqa: E402
from ferry.testing import ranks  # noqa: E402
from ferry.torch_backend import threads  # noqa: E402

SIZE = 4


def all_calls(rank, members, size=SIZE):
    """Each collective with values that name the ranks; the blocks of lost ranks are not looked at."""
    total = float(sum(members))
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [total] * 3
    large = torch.full((100_000,), float(rank))
    dist.all_reduce(large, op=dist.ReduceOp.AVG)
    assert torch.equal(large, torch.full_like(large, total / len(members)))
    rows, received = torch.arange(size) + 10.0 * rank, torch.empty(size)
    dist.all_to_all_single(received, rows)
    assert [received[peer] for peer in members] == [10.0 * peer + rank for peer in members]
    parts = [torch.empty(2) for _ in range(size)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    assert [parts[peer].tolist() for peer in members] == [[float(peer)] * 2 for peer in members]
    part = torch.empty(1)
    dist.reduce_scatter_tensor(part, rows)
    assert part.item() == 10.0 * total + rank * len(members)
    root = members[-1]
    word = torch.full((2,), float(rank))
    dist.broadcast(word, root)
    assert word.tolist() == [float(root)] * 2
    place = members.index(rank)
    got = torch.empty(1)
    works = [dist.isend(torch.tensor([float(rank)]), members[(place + 1) % len(members)]),
             dist.irecv(got, members[place - 1])]
    for work in works:
        work.wait()
    assert got.item() == members[place - 1]
    dist.barrier()


def lose(rank, victim, number, members):
    """The victim is killed in a call of all; the others go on in the next view."""
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises((ferry.PeerLost, ferry.Broken), match=f"lost rank {victim}") as caught:
        while True:
            dist.all_reduce(torch.ones(10_000))
    assert caught.value.culprit == victim
    assert ferry.torch_backend.survive() == (number, members)
    all_calls(rank, members)
    with pytest.raises(ferry.InvalidArgument, match=f"{victim}.*lacks"):
        dist.broadcast(torch.ones(1), victim)
    all_calls(rank, members)


def survivor(rank, path, results):
    try:
        dist.init_process_group("cpu:ferry", init_method=f"file://{path}", rank=rank, world_size=SIZE,
                                timeout=timedelta(seconds=30))
        all_calls(rank, (0, 1, 2, 3))
        waiting = dist.irecv(torch.empty(1), 0, tag=7) if rank != 0 else None  # rank 0 never sends it
        lose(rank, 0, 2, (1, 2, 3))
        with pytest.raises(ferry.Error):
            waiting.wait()
        lose(rank, 2, 3, (1, 3))
        dist.destroy_process_group()
        results.put((rank, "well"))
    except BaseException as error:
        results.put((rank, repr(error)))


def outlive(body, path, size, survivors):
    """Runs body(rank, path, results) in `size` processes, of which just the survivors report "well". Returns the exit
    codes."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=body, args=(rank, path, results)) for rank in range(size)]
    for process in processes:
        process.start()
    assert sorted(results.get(timeout=60) for _ in survivors) == [(rank, "well") for rank in survivors]
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def test_two_ranks_of_a_process_group_are_killed(tmp_path):
    outlive(survivor, tmp_path / "meet", SIZE, (1, 3))


def fencer(rank, path, results):
    try:
        dist.init_process_group("cpu:ferry", init_method=f"file://{path}", rank=rank, world_size=3,
                                timeout=timedelta(seconds=20))
        all_calls(rank, (0, 1, 2), size=3)
        with pytest.raises(ferry.InvalidArgument, match="usable"):
            ferry.torch_backend.fence((rank + 1) % 3)
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(ferry.Timeout, match="rank 1 .*alive"):
            ferry.torch_backend.survive(timeout=timedelta(seconds=0.3))
        while True:
            ferry.torch_backend.fence(1)
            try:
                assert ferry.torch_backend.survive() == (2, (0, 2))
                break
            except ferry.Timeout as late:
                assert late.culprit == 1
        all_calls(rank, (0, 2), size=3)
        dist.destroy_process_group()
        results.put((rank, "well"))
    except BaseException as error:
        results.put((rank, repr(error)))


def test_a_stopped_rank_is_fenced(tmp_path):
    assert outlive(fencer, tmp_path / "meet", 3, (0, 2)) == [0, -signal.SIGKILL, 0]


@ranks(2, kind="threads", deadline=20)
def test_a_message_in_flight_of_a_usable_group():
    rank = dist.get_rank()
    got = torch.empty(1)
    work = dist.irecv(got, 1 - rank)
    with pytest.raises(ferry.InvalidArgument, match="in flight"):
        ferry.torch_backend.survive()
    dist.barrier()
    dist.isend(torch.ones(1), 1 - rank).wait()
    work.wait()
    dist.barrier()  # the call of one rank would end the receive of the other
    assert ferry.torch_backend.survive() == (2, (0, 1))
    dist.barrier()


@ranks(2, kind="threads", deadline=30)
def test_the_timeout_is_for_the_memory_of_the_new_view_too():
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.barrier()  # survive() of one rank would end init_process_group() of the other
    if dist.get_rank() == 1:
        naps, begin_view = iter([4.0]), group._begin_view
        group._begin_view = lambda by: time.sleep(next(naps, 0.0)) or begin_view(by)
        assert ferry.torch_backend.survive() == (3, (0, 1))
    else:
        began = time.monotonic()
        with pytest.raises(ferry.Timeout, match="rank 1"):
            ferry.torch_backend.survive(timeout=timedelta(seconds=1))
        assert time.monotonic() - began < 3
        assert ferry.torch_backend.survive() == (3, (0, 1))
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2


@ranks(2, kind="threads", deadline=20)
def test_a_group_goes_on_when_survive_is_refused():
    """A thread of rank 0 is in a call of another object of the group, which the process group does not know of."""
    rank = dist.get_rank()
    extra = ferry.Collectives(dist.group.WORLD._get_backend(torch.device("cpu"))._group)
    if rank == 0:
        waiting = threading.Thread(target=extra.barrier)
        waiting.start()
        time.sleep(0.2)
        with pytest.raises(ferry.InvalidArgument, match="another thread of rank 0 waits"):
            ferry.torch_backend.survive()
        dist.send(torch.ones(1), 1)
        extra_ended = waiting.join
    else:
        dist.recv(torch.empty(1), 0)
        extra_ended = extra.barrier
    extra_ended()
    all_calls(rank, (0, 1), size=2)
    assert ferry.torch_backend.survive() == (2, (0, 1))
    all_calls(rank, (0, 1), size=2)


@ranks(2, kind="threads", deadline=20)
def test_a_group_of_another_backend():
    group = dist.new_group(backend="gloo")
    with pytest.raises(ferry.InvalidArgument, match="Gloo, not ferry"):
        ferry.torch_backend.survive(group)


@ranks(2, kind="threads", deadline=20)
def test_a_receive_that_is_issued_while_survive_is_refused_goes_on(monkeypatch):
    monkeypatch.setattr(threads, "LONGEST", 0.5)
    rank = dist.get_rank()
    got = torch.empty(2)
    early = dist.irecv(got[:1], 1 - rank)
    time.sleep(0.2)  # its thread waits
    # the receive comes after survive() has looked
    dist.group.WORLD._get_backend(torch.device("cpu"))._messenger.is_busy = lambda: False
    with pytest.raises(ferry.InvalidArgument, match=f"another thread of rank {rank} waits"):
        ferry.torch_backend.survive()
    late = dist.irecv(got[1:], 1 - rank, tag=1)
    dist.barrier()
    for tag in (1, 0):
        dist.send(torch.ones(1), 1 - rank, tag=tag)
    early.wait()
    late.wait()
    assert got.tolist() == [1, 1]
