"""Groups of the backend `ferry`: split_group, and torch's checks of TORCH_DISTRIBUTED_DEBUG=DETAIL."""

import os
from contextlib import contextmanager
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import ferry
import ferry.torch_backend
from ferry.testing import ranks

WRAPS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)  # before it, the group is the backend


def sum_of_ranks(group):
    tensor = torch.tensor([float(dist.get_rank())])
    group.allreduce([tensor]).wait()
    return tensor.item()


@contextmanager
def debug_level(level):
    before = dist.get_debug_level()
    dist.set_debug_level(level)
    try:
        yield
    finally:
        dist.set_debug_level(before)


def shared_bytes():
    """The memory of the segments of this process: each is a memfd."""
    files = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "memfd:ferry" in os.readlink(f"/proc/self/fd/{fd}"):
                file = os.stat(f"/proc/self/fd/{fd}")
                files[file.st_ino] = 512 * file.st_blocks
        except FileNotFoundError:  # closed meanwhile
            pass
    return sum(files.values())


@ranks(2, kind="threads", deadline=20)
def test_the_memory_of_a_group_is_a_window_and_mailboxes_of_each_rank():
    dist.barrier()
    before = shared_bytes()
    dist.barrier()
    group = dist.new_group()
    dist.barrier(group)
    grown = shared_bytes() - before
    assert grown < 10 << 20, f"2 ranks with 2 MiB of each, and {grown} bytes in all"
    dist.barrier()
    dist.destroy_process_group(group)


@ranks(2, deadline=20)
def test_all_calls_under_torchs_checks_in_detail():
    with debug_level(dist.DebugLevel.DETAIL):
        group = dist.new_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    if WRAPS:
        assert "Wrapper" in type(group._get_backend(torch.device("cpu"))).__name__
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [1.0] * 3
    rows = torch.empty(size)
    dist.all_to_all_single(rows, torch.tensor([10.0 * rank, 10.0 * rank + 1]), group=group)
    assert rows.tolist() == [rank, 10.0 + rank]
    received = torch.zeros(2)
    calls = [dist.P2POp(dist.irecv, received, 1 - rank, group),
             dist.P2POp(dist.isend, torch.full((2,), float(rank)), 1 - rank, group)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    assert received.tolist() == [1.0 - rank] * 2
    tensors = [torch.ones(2), torch.ones(3)]
    with dist._coalescing_manager(group, async_ops=True) as manager:
        for each in tensors:
            dist.all_reduce(each, group=group)
    manager.wait()
    assert [each[0].item() for each in tensors] == [2.0, 2.0]
    with pytest.raises(RuntimeError, match=r"(?s)all_reduce|ALLREDUCE") as error:
        dist.all_reduce(torch.ones(3 + rank), group=group)
    assert "4" in str(error.value) and "3" in str(error.value)
    dist.barrier(group=group)
    dist.destroy_process_group(group)


@ranks(4, kind="threads", deadline=20)
def test_a_group_is_split_by_torchs_group():
    rank, world = dist.get_rank(), dist.group.WORLD
    for _ in range(2):  # the same parts again
        half = world.split_group([[3, 1], [0, 2]][rank % 2 == 0], timeout=timedelta(seconds=5))
        assert half.size() == 2 and half.rank() == {3: 0, 1: 1, 0: 0, 2: 1}[rank]
        assert sum_of_ranks(half) == (2 if rank % 2 == 0 else 4)
        half.shutdown()
    assert sum_of_ranks(world) == 6


@ranks(3, kind="threads", deadline=20)
def test_a_rank_of_no_part():
    rank, world = dist.get_rank(), dist.group.WORLD
    if rank == 1 and WRAPS:
        with pytest.raises(ferry.InvalidArgument, match=r"rank 1 is in no group of this split.*\[2, 0\]"):
            world.split_group([2, 0], timeout=timedelta(seconds=5))
    else:
        part = world.split_group([2, 0], timeout=timedelta(seconds=5))
        if rank == 1:
            assert part is None
        else:
            assert sum_of_ranks(part) == 2
            part.shutdown()
    assert sum_of_ranks(world) == 3


@pytest.mark.skipif(not WRAPS, reason="torch 2.13 splits groups of accelerators only")
def test_split_group_where_torch_finds_an_accelerator():
    device = torch.device("cpu", 0)  # split_group refuses machines without an accelerator before it calls the backend
    with mock.patch("torch.accelerator.is_available", lambda: True), \
            mock.patch("torch.accelerator.current_accelerator", lambda: device):
        ranks(3, kind="threads", deadline=20)(_split_all)(device)


def _split_all(device):
    dist.group.WORLD.bound_device_id = device
    part = dist.split_group(split_ranks=[[1, 0], [2]], timeout=timedelta(seconds=5))
    rank = dist.get_rank()
    assert dist.get_rank(part) == [1, 0, 0][rank] and sum_of_ranks(part) == [1, 1, 2][rank]
