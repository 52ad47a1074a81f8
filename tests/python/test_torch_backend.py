"""The backend `ferry` of torch.distributed: each collective against results that a rank computes by itself."""

import logging
import os
import re
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import ferry
import ferry.torch_backend
from ferry.testing import ranks

NUM_RANKS = 3
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
WHOLE_WORK = TORCH < (2, 14)  # later ones wrap the Work of a backend in Python, and pass on wait and get_future alone
MOVED = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32,
         torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
SUMMED = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16,
          torch.int32, torch.int64]
SHAPES = [(0,), (1,), (5, 3), (2, 3, 4), (70_001,)]


def tensor_of(rank, shape, dtype, seed=0):
    """Numbers that any rank can compute for any other."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(-9, 9, shape, generator=generator).to(torch.float32).to(dtype)


def strided(tensor):
    """The same elements, one apart in memory."""
    wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def same(found, wanted):
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert torch.equal(bits(found), bits(wanted))


def bits(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).view(-1).view(torch.uint8)


def all_of(shape, dtype, seed=0):
    return [tensor_of(rank, shape, dtype, seed) for rank in range(dist.get_world_size())]


@pytest.mark.parametrize("kind", ["threads", pytest.param("processes", marks=pytest.mark.long)])
@pytest.mark.parametrize("layout", [lambda tensor: tensor, strided], ids=["contiguous", "strided"])
def test_elements_move(kind, layout):
    ranks(NUM_RANKS, kind=kind)(_elements_move if layout is not strided else _elements_move_strided)()


def _elements_move():
    _move_all(lambda tensor: tensor)


def _elements_move_strided():
    _move_all(strided)


_elements_move.__wrapped__ = _elements_move  # what a process of `ranks` looks up
_elements_move_strided.__wrapped__ = _elements_move_strided


def _move_all(layout):
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in MOVED:
        for shape in SHAPES:
            numbers = all_of(shape, dtype)
            mine = layout(numbers[rank].clone())
            outs = [layout(torch.zeros(shape, dtype=dtype)) for _ in range(size)]
            dist.all_gather(outs, mine)
            for out, wanted in zip(outs, numbers):
                same(out, wanted)
            whole = torch.zeros(size * shape[0], *shape[1:], dtype=dtype)
            dist.all_gather_into_tensor(whole, mine)
            same(whole, torch.cat(numbers))
            for root in range(size):
                out = layout(mine.clone())
                dist.broadcast(out, src=root)
                same(out, numbers[root])
                outs = [layout(torch.zeros(shape, dtype=dtype)) for _ in range(size)] if rank == root else None
                dist.gather(mine, outs, dst=root)
                for out, wanted in zip(outs or [], numbers):
                    same(out, wanted)
                out = layout(torch.zeros(shape, dtype=dtype))
                dist.scatter(out, numbers if rank == root else None, src=root)
                same(out, numbers[rank])


@ranks(NUM_RANKS, kind="threads")
def test_all_to_all_with_splits():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in MOVED:
        for pattern in (lambda a, b: 2, lambda a, b: (3 * a + b) % 4, lambda a, b: 5000 if b == 0 else 0):
            sent = [[tensor_of(10 * a + b, (pattern(a, b), 3), dtype) for b in range(size)] for a in range(size)]
            wanted = [sent[source][rank] for source in range(size)]
            rows = torch.cat(sent[rank])
            out = torch.zeros(sum(len(part) for part in wanted), 3, dtype=dtype)
            dist.all_to_all_single(out, rows, [len(part) for part in wanted], [len(part) for part in sent[rank]])
            same(out, torch.cat(wanted))
            again = torch.zeros_like(out)
            dist.all_to_all_single(again, rows, np.array([len(part) for part in wanted]),
                                   np.array([len(part) for part in sent[rank]]))
            same(again, out)
            outs = [torch.zeros_like(part) for part in wanted]
            dist.all_to_all(outs, sent[rank])
            same(torch.cat(outs), torch.cat(wanted))


def reduced(numbers, op):
    """Ranks ascending, in float32 for types that are shorter, rounded once."""
    wide = [number.to(torch.float32) if number.dtype in (torch.bfloat16, torch.float16) else number
            for number in numbers]
    total = wide[0].clone()
    for number in wide[1:]:
        total = {"SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
                 "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[op](total, number)
    return (total / len(numbers) if op == "AVG" else total).to(numbers[0].dtype)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_reductions(num_ranks):
    ranks(num_ranks, kind="threads")(_reductions)()


def _reductions():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in SUMMED:
        names = ["SUM", "PRODUCT", "MIN", "MAX"]
        names += ["AVG"] if dtype.is_floating_point else ["BAND", "BOR", "BXOR"]
        for name in names:
            op = getattr(dist.ReduceOp, name)
            for shape in SHAPES:
                numbers = all_of(shape, dtype)
                wanted = reduced(numbers, name)
                out = numbers[rank].clone()
                dist.all_reduce(out, op=op)
                same(out, wanted)
                out = strided(numbers[rank])
                dist.all_reduce(out, op=op)
                same(out, wanted)
                out = numbers[rank].clone()
                dist.reduce(out, dst=size - 1, op=op)
                if rank == size - 1:
                    same(out, wanted)
            numbers = all_of((4 * size, 3), dtype)
            wanted = reduced(numbers, name).chunk(size)[rank]
            out = torch.zeros(4, 3, dtype=dtype)
            dist.reduce_scatter_tensor(out, numbers[rank], op=op)
            same(out, wanted)
            dist.reduce_scatter(out.zero_(), list(numbers[rank].chunk(size)), op=op)
            same(out, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64])
def test_summands_are_multiplied_by_a_factor(dtype):
    ranks(NUM_RANKS, kind="threads")(_all_sums_with_a_factor)(dtype)


def _all_sums_with_a_factor(dtype):
    rank, size, shape = dist.get_rank(), dist.get_world_size(), (NUM_RANKS, 5)
    mine = tensor_of(rank, shape, dtype)
    wide = dtype if dtype in (torch.float64, torch.complex64) else torch.float32
    for factor in (0.3, torch.tensor([0.3], dtype=torch.float64)):
        products = [(each * 0.3).to(wide) for each in all_of(shape, dtype)]
        wanted = sum(products[1:], products[0]).to(dtype)
        op = dist._make_nccl_premul_sum(factor)
        whole = mine.clone()
        dist.all_reduce(whole, op=op)
        same(whole, wanted)
        part = mine.new_empty(shape[1])
        dist.reduce_scatter_tensor(part, mine, op=op)
        same(part, wanted[rank])
        same(mine, tensor_of(rank, shape, dtype))
        whole = mine.clone()
        dist.reduce(whole, dst=size - 1, op=op)
        if rank == size - 1:
            same(whole, wanted)


@ranks(2, kind="threads")
def test_bool_and_complex_are_reduced():
    flags = torch.tensor([True, False, dist.get_rank() == 1])
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    assert flags.tolist() == [True, False, True]
    numbers = torch.tensor([1 + 2j, dist.get_rank() + 1j])
    dist.all_reduce(numbers)
    assert numbers.tolist() == [2 + 4j, 1 + 2j]


@ranks(NUM_RANKS)
def test_calls_in_flight_complete_in_the_order_of_issue():
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((20_000,), float(rank + i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    gathered = torch.zeros(size)
    dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)]))  # waits behind all of them
    assert all(work.get_future().done() for work in works)
    if WHOLE_WORK:
        assert all(work.is_completed() and work.is_success() for work in works)
        assert works[0].result()[0] is tensors[0]
    for i, (work, tensor) in enumerate(zip(works, tensors)):
        assert work.wait(timedelta(seconds=5))
        assert tensor[0] == sum(range(size)) + size * i
    tensor = torch.ones(3)
    done = dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: future.value()[0] * 2)
    assert done.wait().tolist() == [2.0 * size] * 3


@ranks(4, kind="threads")
def test_groups_of_some_ranks():
    rank = dist.get_rank()
    for members in ([3, 1], [0, 2, 3], [2]):
        group = dist.new_group(members)
        if rank in members:
            outs = [torch.zeros(1) for _ in members]
            dist.all_gather(outs, torch.tensor([float(rank)]), group=group)
            assert [int(out) for out in outs] == sorted(members)
    halves, _ = dist.new_subgroups(2)
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=halves)
    assert tensor == (1.0 if rank < 2 else 5.0)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    assert functional.all_reduce(torch.tensor([float(rank)]), "sum", mesh["dp"]).item() == 2 * (rank % 2) + 2


@ranks(NUM_RANKS, kind="threads")
def test_messages_between_two_ranks():
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.zeros(2)
    calls = [dist.P2POp(dist.irecv, received, (rank - 1) % size),
             dist.P2POp(dist.isend, torch.full((2,), float(rank)), (rank + 1) % size)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    assert received.tolist() == [float((rank - 1) % size)] * 2
    if rank:
        dist.send(torch.full((2,), float(rank)), 0)
    elif WHOLE_WORK:
        for _ in range(size - 1):
            source = dist.recv(received)
            assert received.tolist() == [float(source)] * 2
    else:
        for source in range(1, size):
            assert dist.recv(received, source) == source and received.tolist() == [float(source)] * 2


@ranks(NUM_RANKS, kind="threads")
def test_objects_and_coalesced_calls():
    rank, size = dist.get_rank(), dist.get_world_size()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 1000 * rank})
    assert [found["rank"] for found in objects] == list(range(size))
    listed = [("a", 1), 3] if rank == 1 else [None, None]
    dist.broadcast_object_list(listed, src=1)
    assert listed == [("a", 1), 3]
    tensors = [torch.full((3,), float(rank)), torch.ones(2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert tensors[0][0] == sum(range(size)) and tensors[1][0] == size
    rows = torch.full((size, 2), float(rank), requires_grad=True)
    functional.all_to_all_single_autograd(rows, [1] * size, [1] * size, dist.group.WORLD).sum().backward()
    assert torch.equal(rows.grad, torch.ones(size, 2))


BAD = {
    "float8 is not summed": lambda: dist.all_reduce(torch.ones(3, dtype=torch.float8_e4m3fn)),
    "sparse": lambda: dist.all_reduce(torch.eye(3).to_sparse()),
    "a list of two": lambda: dist.group.WORLD.allreduce([torch.ones(3), torch.ones(3)]),
    "PREMUL_SUM of integers": lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32),
                                                      op=dist._make_nccl_premul_sum(2.0)),
    "splits": lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 1, 1], [1, 1, 2]),
    "rows": lambda: dist.all_to_all_single(torch.ones(3), torch.ones(4)),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_call_of_one_rank_is_an_error_on_all(what):
    ranks(NUM_RANKS, kind="threads", deadline=20)(_one_bad_call)(what)


def _one_bad_call(what):
    rank = dist.get_rank()
    begin = time.monotonic()
    if rank == 1:
        with pytest.raises(ferry.InvalidArgument):
            BAD[what]()
    else:
        with pytest.raises(ferry.PeerRejected):
            dist.all_reduce(torch.ones(3))
    assert time.monotonic() - begin < 10
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [NUM_RANKS] * 2


DIFFERENT = {
    "collective": (lambda: dist.all_reduce(torch.ones(3)), lambda: dist.broadcast(torch.ones(3), src=0)),
    "length": (lambda: dist.all_reduce(torch.ones(3)), lambda: dist.all_reduce(torch.ones(4))),
    "type": (lambda: dist.all_reduce(torch.ones(3)), lambda: dist.all_reduce(torch.ones(3, dtype=torch.float64))),
    "operation": (lambda: dist.all_reduce(torch.ones(3)), lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX)),
    "root": (lambda: dist.broadcast(torch.ones(3), src=0), lambda: dist.broadcast(torch.ones(3), src=1)),
    "splits": (lambda: dist.all_to_all_single(torch.ones(NUM_RANKS), torch.ones(NUM_RANKS)),
               lambda: dist.all_to_all_single(torch.ones(NUM_RANKS + 1), torch.ones(NUM_RANKS),
                                              [1] * (NUM_RANKS - 1) + [2], [1] * NUM_RANKS)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_calls_that_differ_are_an_error_on_all(what):
    ranks(NUM_RANKS, kind="threads", deadline=20)(_different_calls)(what)


def _different_calls(what):
    begin = time.monotonic()
    with pytest.raises(ferry.Mismatch):
        DIFFERENT[what][dist.get_rank() == 1]()
    assert time.monotonic() - begin < 10
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [NUM_RANKS] * 2


def die(group, folder, step):
    """Rank 1 dies before the second call of what `step` returns.

    The others write the error and the seconds that it took into `folder`.
    """
    dist.init_process_group("cpu:ferry", store=dist.FileStore(f"{folder}/store", group.size), rank=group.rank,
                            world_size=group.size, timeout=timedelta(seconds=30))
    collective = step()
    collective()
    if group.rank == 1:
        with open(f"{folder}/pid", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        collective()
        text = "no error"
    except Exception as error:
        text = f"{type(error).__name__} {time.monotonic() - begin:.3f} {error}"
    with open(f"{folder}/{group.rank}", "w") as file:
        file.write(text)


def all_reduce_step():
    return lambda: dist.all_reduce(torch.ones(1000))


def all_to_all_step():
    return lambda: dist.all_to_all_single(torch.ones(300, 10), torch.ones(300, 10), async_op=True).wait()


def data_parallel_step():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    return lambda: model(torch.ones(2, 4)).sum().backward()


def sharded_step():
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(6, 6))
    return lambda: model(torch.ones(2, 6)).sum().backward()


STEPS = [all_reduce_step, *(pytest.param(step, marks=pytest.mark.long)
                           for step in (all_to_all_step, data_parallel_step, sharded_step))]


@pytest.mark.parametrize("step", STEPS)
def test_a_rank_that_dies_is_named_within_a_second(step, tmp_path):
    with pytest.raises(ferry.PeerLost):
        ferry.spawn(NUM_RANKS, die, str(tmp_path), step, method="forkserver")
    pid = (tmp_path / "pid").read_text()
    for rank in (0, 2):
        kind, seconds, text = (tmp_path / str(rank)).read_text().split(" ", 2)
        assert kind == "PeerLost" and float(seconds) < 1.3, text
        assert "rank 1" in text and pid in text, text


def come_late(group, folder):
    dist.init_process_group("cpu:ferry", store=dist.FileStore(f"{folder}/store", group.size), rank=group.rank,
                            world_size=group.size, timeout=timedelta(seconds=1))
    dist.barrier()
    dist.broadcast(torch.ones(4), src=2)
    others = [Path(folder, f"ended {rank}") for rank in range(group.size) if rank != 1]
    while group.rank == 1 and not all(path.exists() for path in others):
        time.sleep(0.01)
    lines = []
    logging.getLogger("ferry.torch_backend").addHandler(handler := logging.Handler())
    handler.emit = lambda record: lines.append(record.getMessage())
    try:
        dist.all_reduce(torch.ones(7, 5))
    except ferry.Error as error:
        return f"{type(error).__name__} {error}", "".join(lines)
    finally:
        Path(folder, f"ended {group.rank}").touch()
    return "no error", ""


def test_a_late_rank_is_named_with_the_collective(tmp_path):
    results = ferry.spawn(NUM_RANKS, come_late, str(tmp_path), method="forkserver")
    for text, log in (results[0], results[2]):
        assert text.startswith("Timeout"), text
        assert re.search(r"all_reduce \d+ of group .*\[7, 5\] float32.*rank 1", text), text
        assert "the latest call of rank 1 is 2: broadcast of fp32, 4 elements, root 2" in text, text
        assert "running: all_reduce 3 of group 0 ([7, 5] float32)" in log, log
        assert "the latest calls of rank 1:\n  1: barrier\n  2: broadcast of fp32, 4 elements, root 2" in log, log


DRAWING = threading.Lock()  # ranks that are threads share torch's generator


@ranks(2, kind="threads")
def test_data_parallel_and_sharded_steps_have_the_bits_of_one_order():
    from torch.distributed.fsdp import fully_shard

    def model():
        with DRAWING:
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))

    def batch(rank):
        return torch.randn(8, 16, generator=torch.Generator().manual_seed(rank))

    def gradients(built, rank):
        built(batch(rank)).square().sum().backward()
        return [weight.grad for weight in built.parameters()]

    alone = [gradients(model(), rank) for rank in range(2)]
    wanted = [(first + second) / 2 for first, second in zip(*alone)]
    parallel = torch.nn.parallel.DistributedDataParallel(model())
    for found, mean in zip(gradients(parallel, dist.get_rank()), wanted):
        torch.testing.assert_close(found, mean, rtol=1e-6, atol=1e-7)
    sharded = model()
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer)
    for found, mean in zip(gradients(sharded, dist.get_rank()), wanted):
        torch.testing.assert_close(found.full_tensor(), mean, rtol=1e-6, atol=1e-7)


def test_the_backend_is_an_entry_point_of_the_distribution():
    from importlib.metadata import entry_points

    entry, = [each for each in entry_points(group="torch.distributed.backends") if each.name == "ferry"]
    entry.load()()
    assert dist.Backend("ferry") == "ferry" and dist.Backend.backend_capability["ferry"] == ["cpu"]


def test_an_older_torch_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    with pytest.raises(ferry.InvalidArgument, match=r"needs torch 2\.13 or later: this is torch 2\.12\.1"):
        ferry.torch_backend.register()


@ranks(2, deadline=60)
def test_fully_shard_takes_its_buffers_from_the_group():
    from torch.distributed.fsdp import fully_shard

    group = dist.group.WORLD
    backend, device = group._get_backend(torch.device("cpu")), torch.device("cpu")
    assert backend.supports_tensor_alloc(device) and not backend.supports_tensor_alloc(torch.device("cuda"))
    taken = []
    allocate = backend.allocate_tensor
    backend.allocate_tensor = lambda *args, **kwargs: taken.append(allocate(*args, **kwargs)) or taken[-1]

    def gradients(by_group, divisor=None):
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128))
        fully_shard(model)
        model.set_allocate_memory_from_process_group_for_comm(by_group)
        if divisor:
            model.set_gradient_divide_factor(divisor)
        model(torch.ones(4, 256) * (dist.get_rank() + 1)).square().mean().backward()
        return [parameter.grad.full_tensor() for parameter in model.parameters()]

    expected = gradients(False)
    assert not taken
    for found, wanted in zip(gradients(True), expected, strict=True):
        assert torch.equal(found, wanted)
    assert taken and all(each.dim() == 1 and each.data_ptr() % 4096 == 0 for each in taken), taken
    for found, mean in zip(gradients(True, 3.0), expected, strict=True):
        torch.testing.assert_close(found * 3, mean * 2)


@ranks(2, kind="threads", deadline=20)
def test_memory_that_the_group_does_not_have_comes_from_torch():
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    half = backend.allocate_tensor(3, dtype=torch.complex128, device="cpu")
    assert half.shape == (3,) and half.dtype == torch.complex128
    backend._calls = ferry.Collectives(backend._group, shared_bytes=4096)
    kept = backend.allocate_tensor(1024, dtype=torch.float32, device="cpu")
    more = backend.allocate_tensor(1024, dtype=torch.float32, device="cpu")
    assert kept.data_ptr() % 4096 == 0 and more.numel() == 1024
    with pytest.raises(ferry.InvalidArgument, match="device is cuda"):
        backend.allocate_tensor(1, dtype=torch.float32, device="cuda")
    dist.all_reduce(more.fill_(1))
    assert more.sum() == 2048
