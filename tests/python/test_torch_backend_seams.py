"""Where torch, the backend `ferry` and the program meet: inference mode, signal handlers, one store for several groups,
tensors whose elements share memory, and names of ranks."""

import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import ferry
import ferry.torch_backend
from ferry.testing import ranks


class Left(Exception):
    pass


@ranks(2, kind="threads", deadline=20)
def test_tensors_of_inference_mode_are_written_by_any_thread():
    with torch.inference_mode():
        outs = [torch.zeros(4) for _ in range(2)]  # not adjacent, so the call writes them at its end
        work = dist.all_gather(outs, torch.full((4,), 1.0 + dist.get_rank()), async_op=True)
        time.sleep(0.3)  # the thread of the group runs it
        work.wait()
        strided = torch.zeros(4, 2)[:, 0]
        dist.all_reduce(strided, async_op=True).wait()
    assert [out.tolist() for out in outs] == [[1.0] * 4, [2.0] * 4] and strided.tolist() == [0.0] * 4


@ranks(2, kind="threads", deadline=20)
def test_all_gather_coalesced_gives_a_list_for_each_rank():
    rank = dist.get_rank()
    inputs = [torch.full((2,), 10.0 * rank), torch.full((2,), 10.0 * rank + 1), torch.full((3,), 10.0 * rank + 2)]
    outputs = [[torch.empty_like(tensor) for tensor in inputs] for _ in range(2)]
    dist.all_gather_coalesced(outputs, inputs)
    assert [[tensor[0].item() for tensor in listed] for listed in outputs] == [[0, 1, 2], [10, 11, 12]]
    kind = ferry.InvalidArgument if rank == 0 else ferry.PeerRejected
    with pytest.raises(kind, match="shorter|longer"):
        dist.all_gather_coalesced([listed[:2] if rank == 0 else listed for listed in outputs], inputs)


@ranks(2, kind="threads", deadline=20)
def test_elements_that_share_memory_are_read_and_not_written():
    rank = dist.get_rank()
    kind = ferry.InvalidArgument if rank == 0 else ferry.PeerRejected
    shared = torch.tensor([5.0]).expand(3) if rank == 0 else torch.zeros(3)
    with pytest.raises(kind, match="share memory"):
        dist.all_reduce_coalesced([shared, torch.ones(2)])
    with pytest.raises(kind, match="share memory"):
        dist.broadcast(shared, src=1)
    dist.broadcast(shared, src=0)
    assert shared.tolist() == [5.0] * 3


@ranks(2, kind="threads", deadline=20)
def test_a_refused_message_does_not_wait_for_others():
    if dist.get_rank() == 0:
        received = torch.zeros(3)
        receive = dist.group.WORLD.recv([received], 1, 0)
        time.sleep(0.1)
        begin = time.monotonic()
        with pytest.raises(ferry.InvalidArgument):
            dist.group.WORLD.send([torch.ones(3)], 99, 0).wait()
        assert time.monotonic() - begin < 1
        receive.wait()
        assert received.tolist() == [1.0] * 3
    else:
        time.sleep(2)
        dist.send(torch.ones(3), 0)


@ranks(2, kind="threads", deadline=20)
def test_unsigned_integers_are_reduced():
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        numbers = torch.tensor([1, 60_000 - 30_000 * dist.get_rank()], dtype=torch.int64).to(dtype)
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
        assert numbers.tolist() == [1, 60_000]


@ranks(2, deadline=20)
def test_a_signal_handler_may_leave_inside_a_call():
    def leave(*_):
        with pytest.raises(ferry.InvalidArgument, match="signal handler"):
            dist.all_reduce(torch.ones(3))
        dist.destroy_process_group()
        raise Left

    if dist.get_rank() == 0:
        signal.signal(signal.SIGALRM, leave)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Left):
            dist.all_reduce(torch.ones(3))
    else:
        time.sleep(1)
        dist.all_reduce(torch.ones(3))  # of which rank 0 has sent its part
        with pytest.raises(ferry.PeerLost):
            dist.all_reduce(torch.ones(3))


@ranks(2, deadline=20)
def test_one_store_serves_groups_one_after_another():
    rank, store = dist.get_rank(), dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    for _ in range(3):
        dist.init_process_group("cpu:ferry", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=10))
        dist.barrier()
        dist.destroy_process_group()
        time.sleep(0.5 * (rank == 0))  # the other rank comes first


@ranks(3, deadline=20)
def test_errors_of_a_group_of_some_ranks_name_global_ranks():
    group = dist.new_group([1, 2])
    if dist.get_rank() == 1:
        with pytest.raises(ferry.Timeout, match="rank 1 of this group is global rank 2"):
            dist.all_reduce(torch.ones(3), group=dist.new_group([1, 2], timeout=timedelta(seconds=1),
                                                                use_local_synchronization=True))
    elif dist.get_rank() == 2:
        late = dist.new_group([1, 2], timeout=timedelta(seconds=1), use_local_synchronization=True)
        time.sleep(2)
        with pytest.raises(ferry.Error):
            dist.all_reduce(torch.ones(3), group=late)
    if dist.get_rank() > 0:
        dist.barrier(group=group)
