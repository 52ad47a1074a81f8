"""Collectives: every call equals a computation in numpy on one process; errors name ranks and values."""

import gc
import os
import signal
import subprocess
import sys
import time
import weakref

import ferry
import numpy as np
import pytest

torch = pytest.importorskip("torch")

# (ranks, topology): one node, and several nodes of equal size.
PLACES = ((1, ""), (2, ""), (3, ""), (4, ""), (7, ""), (2, "host:2,rank:1"), (4, "host:2,rank:2"), (6, "host:3,rank:2"))
AT_PLACES = pytest.mark.parametrize("topology", ("", "host:2,rank:2"))
SIZES = (0, 1, 5, 1000, 300_001)
WINDOWS = (2 << 20, 8192)  # one round, and many
TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32,
         torch.int64, torch.bool, torch.complex64)


def values(rank, count, dtype):
    """The elements of a rank, different for each rank and place."""
    numbers = (np.arange(count) * 7 + rank * 13) % 61 - 20
    tensor = torch.from_numpy(numbers)
    if dtype == torch.bool:
        return tensor % 2 == 0
    return (tensor.abs() if dtype == torch.uint8 else tensor).to(dtype)


def counts_of(size, count):
    """Uneven counts of the ranks, one of them 0."""
    return [0 if size > 1 and rank == size - 1 else count + rank for rank in range(size)]


def equal(found, expected):
    assert found.dtype == expected.dtype and torch.equal(found, expected), (found, expected)


def on_ranks(size, body, window_bytes=2 << 20, topology=""):
    return ferry.run_threads(size, lambda group: body(ferry.Collectives(group, window_bytes=window_bytes)), deadline=30,
                             topology=topology)


def move_all(c, count, dtype):
    counts = counts_of(c.size, count)
    starts = np.cumsum([0, *counts])
    gathered = torch.cat([values(r, counts[r], dtype) for r in range(c.size)])
    mine = values(c.rank, counts[c.rank], dtype)

    out = torch.zeros(sum(counts), dtype=dtype)
    c.all_gather_v(out, mine, counts)
    equal(out, gathered)

    # rank s sends counts[(s + d) % size] elements to rank d, from the whole of its values
    sent = [counts[(c.rank + d) % c.size] for d in range(c.size)]
    received = [counts[(s + c.rank) % c.size] for s in range(c.size)]
    out = torch.zeros(sum(received), dtype=dtype)
    c.all_to_all_v(out, values(c.rank, sum(sent), dtype), received, sent)
    parts = []
    for source in range(c.size):
        rows = values(source, sum(counts), dtype)
        begin = sum(counts[(source + d) % c.size] for d in range(c.rank))
        parts.append(rows[begin:begin + received[source]])
    equal(out, torch.cat(parts))

    for root in {0, c.size - 1}:
        out = torch.zeros(sum(counts), dtype=dtype) if c.rank == root else None
        c.gather_v(out, mine, counts, root)
        if c.rank == root:
            equal(out, gathered)
        out = torch.zeros(counts[c.rank], dtype=dtype)
        c.scatter_v(out, gathered if c.rank == root else None, counts, root)
        equal(out, gathered[starts[c.rank]:starts[c.rank + 1]])
        rows = values(root if c.rank == root else 50, count, dtype)
        c.broadcast(rows, root)
        equal(rows, values(root, count, dtype))
    c.barrier()


@pytest.mark.parametrize("window_bytes", WINDOWS)
@pytest.mark.parametrize("size, topology", PLACES)
def test_data_of_every_type_and_size_arrive(size, topology, window_bytes):
    def body(c):
        for dtype in TYPES:
            for count in SIZES if dtype in (torch.bfloat16, torch.complex64) else SIZES[:-1]:
                move_all(c, count, dtype)

    on_ranks(size, body, window_bytes, topology)


def reduced(ranks, op, dtype):
    """In ascending rank order, 16-bit types in float32."""
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    functions = {"sum": torch.add, "avg": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum,
                 "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
    if dtype == torch.bool:
        functions.update(sum=torch.logical_or, product=torch.logical_and)
    result = ranks[0].to(wide)
    for rows in ranks[1:]:
        result = functions[op](result, rows.to(wide))
    return (result / len(ranks) if op == "avg" else result).to(dtype)


def reduce_all(c, count, dtype, op):
    rows = [values(r, count, dtype) for r in range(c.size)]
    expected = reduced(rows, op, dtype)
    out = torch.zeros(count, dtype=dtype)
    c.all_reduce(out, rows[c.rank], op)
    equal(out, expected)
    own = rows[c.rank].clone()
    c.all_reduce(own, own, op)
    equal(own, expected)
    root = c.size // 2
    out = torch.zeros(count, dtype=dtype) if c.rank == root else None
    c.reduce(out, rows[c.rank], root, op)
    if c.rank == root:
        equal(out, expected)
    counts = counts_of(c.size, count)
    starts = np.cumsum([0, *counts])
    rows = [values(r, sum(counts), dtype) for r in range(c.size)]
    out = torch.zeros(counts[c.rank], dtype=dtype)
    c.reduce_scatter_v(out, rows[c.rank], counts, op)
    equal(out, reduced(rows, op, dtype)[starts[c.rank]:starts[c.rank + 1]])


@pytest.mark.parametrize("window_bytes", WINDOWS)
@pytest.mark.parametrize("size, topology", PLACES)
def test_reductions_equal_those_of_one_process(size, topology, window_bytes):
    def body(c):
        for dtype in TYPES[:-1]:
            floating = dtype.is_floating_point
            for op in ("sum", "product", "min", "max", *(("avg", ) if floating else ("band", "bor", "bxor"))):
                for count in SIZES if dtype == torch.bfloat16 and op == "sum" else SIZES[:-1]:
                    reduce_all(c, count, dtype, op)

    on_ranks(size, body, window_bytes, topology)


@AT_PLACES
def test_messages_arrive_in_order_of_their_tags(topology):
    def body(c):
        if c.rank == 1 or c.rank == 2:
            return
        if c.rank == 0:
            for tag in (3, 5, 3):
                c.send(torch.full((4, ), tag + 10 * c.rank), 3, tag)
            big = torch.arange(400_000)
            c.send(big, 3, 7)
            return
        out = torch.zeros(4, dtype=torch.int64)
        assert c.recv(out, 0, 5) == 0 and out.tolist() == [5] * 4
        assert c.recv(out, -1, 3) == 0 and out.tolist() == [3] * 4
        with pytest.raises(ferry.Mismatch, match="rank 0 sent 32 bytes of int64 with tag 3, rank 3 expects 40"):
            c.recv(torch.zeros(5, dtype=torch.int64), 0, 3)
        assert c.recv(out, 0, 3) == 0
        big = torch.zeros(400_000, dtype=torch.int64)
        assert c.recv(big, -1, 7) == 0
        equal(big, torch.arange(400_000))

    on_ranks(4, body, topology=topology)


@AT_PLACES
def test_ranks_may_send_to_each_other_before_they_receive(topology):
    def body(c):
        out = torch.zeros(500_000)
        for peer in range(c.size):
            c.send(torch.full((500_000, ), float(c.rank)), peer)
        for peer in range(c.size):
            c.recv(out, peer)
            equal(out, torch.full((500_000, ), float(peer)))

    on_ranks(4, body, topology=topology)


def test_a_tensor_of_a_message_lives_until_the_message_has_ended():
    """Nothing in Python keeps the messages or their tensors."""

    def body(c):
        rows = np.full(300_000, float(c.rank))
        alive = weakref.ref(rows)
        if c.rank == 0:
            c.begin_recv(rows, 1)
        else:
            c.begin_send(rows, 0)
        del rows
        gc.collect()
        assert alive() is not None, "the tensor of a message in flight was freed"
        c.barrier()
        while alive() is not None:
            c.progress(wait=False)

    on_ranks(2, body)


@AT_PLACES
def test_a_refused_argument_is_an_error_on_all_ranks_and_the_group_goes_on(topology):
    def body(c):
        rows = torch.ones(4)
        with pytest.raises(ferry.InvalidArgument if c.rank == 1 else ferry.PeerRejected, match="out has 3 elements"):
            c.all_reduce(rows[:3] if c.rank == 1 else rows, rows)
        with pytest.raises(ferry.InvalidArgument if c.rank == 0 else ferry.PeerRejected, match="op is .*sums"):
            c.all_reduce(rows, rows, "sums" if c.rank == 0 else "sum")
        with pytest.raises(ferry.InvalidArgument, match="root is 4, need 0 to 3"):
            c.broadcast(rows, 4)
        c.all_reduce(rows, rows)
        assert rows.tolist() == [4] * 4

    on_ranks(4, body, topology=topology)


@AT_PLACES
def test_calls_that_differ_are_a_mismatch_on_all_ranks(topology):
    def body(c):
        rows = torch.ones(6)
        with pytest.raises(ferry.Mismatch, match="rank 0 calls all_reduce of fp32, 6 elements, op sum; rank 1 calls "
                           "broadcast of fp32, 6 elements, root 0"):
            c.broadcast(rows, 0) if c.rank == 1 else c.all_reduce(rows, rows)
        with pytest.raises(ferry.Mismatch, match="rank 0 sends 2 elements of fp32 to rank 2, which expects 1"):
            received = [1, 2, 2, 2] if c.rank == 2 else [2] * 4
            c.all_to_all_v(torch.zeros(sum(received)), torch.ones(8), received, [2] * 4)
        with pytest.raises(ferry.Mismatch, match=r"counts\[1\] is 1 and not 2"):
            counts = [2, 1, 3, 1] if c.rank == 2 else [2, 2, 3, 1]
            c.all_gather_v(torch.zeros(sum(counts)), torch.ones(counts[c.rank]), counts)
        c.all_reduce(rows, rows)
        assert rows.tolist() == [4] * 6

    on_ranks(4, body, topology=topology)


def die_in_a_call(group):
    c = ferry.Collectives(group)
    rows = torch.ones(1_000_000)
    c.all_reduce(rows, rows)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(ferry.PeerLost, match=r"all_reduce 2: .*rank 1 \(pid \d+\) is dead"):
        c.all_reduce(rows, rows)
    assert time.monotonic() - began < 5


def test_a_rank_that_dies_is_named():
    with pytest.raises(ferry.PeerLost, match="rank 1"):
        ferry.spawn(3, die_in_a_call)


def test_a_late_rank_is_named_at_the_deadline():
    def body(c):
        c.barrier()
        if c.rank == 1:
            time.sleep(1)
            return
        with pytest.raises(ferry.Timeout, match=r"barrier 2: gave up waiting for call of rank 1, which came to call 1"):
            c.barrier(deadline=0.2)

    ferry.run_threads(2, lambda group: body(ferry.Collectives(group)), deadline=30)


def test_counts_whose_bytes_have_more_than_64_bits_are_refused():
    def body(c):
        numbers = torch.zeros(8, dtype=torch.complex128)
        wrapped = [2**62, 2**62, 2**62, 2**62 + 8]  # 8 modulo 2**64
        with pytest.raises(ferry.InvalidArgument, match="need 0 to 9007199254740991 elements in all"):
            c.reduce_scatter_v(numbers, numbers, wrapped)
        with pytest.raises(ferry.InvalidArgument, match="4611686018427387904"):
            c.all_gather_v(numbers, torch.zeros(0, dtype=torch.complex128), wrapped)

    on_ranks(4, body)


class Raising(torch.Tensor):
    """The result of a functional collective that failed: it raises when ferry waits for it."""

    def trigger_wait(self):
        raise MemoryError("no rows")


def test_an_argument_that_raises_is_an_error_on_all_ranks_and_the_group_goes_on():
    def body(c):
        rows = torch.ones(4)
        with pytest.raises(MemoryError if c.rank == 1 else ferry.PeerRejected, match="no rows|raised an exception"):
            c.all_reduce(torch.empty(4), rows.as_subclass(Raising) if c.rank == 1 else rows)
        total = torch.empty(4)
        c.all_reduce(total, rows)
        assert total.tolist() == [2.0] * 4

    on_ranks(2, body)


def test_an_object_that_one_rank_cannot_make_is_refused_on_all():
    def body(group):
        bad = group.rank == 1
        with pytest.raises(ferry.InvalidArgument if bad else ferry.PeerRejected, match="deadline is -1"):
            ferry.Collectives(group, deadline=-1 if bad else None)
        ferry.Collectives(group).barrier()

    ferry.run_threads(2, body, deadline=5)


def test_ferry_top_shows_the_latest_collective_of_each_rank():
    def look():
        """For each group that `ferry top` shows: {rank: its latest collective} of the ranks of this process, which may
        also have ranks of other groups."""
        text = subprocess.run([sys.executable, "-m", "ferry", "top", "--once", "--interval", "0.1"], text=True,
                              stdout=subprocess.PIPE, check=True, timeout=60).stdout
        tables = [[line.split() for line in table.splitlines()] for table in text.split("group ")]
        return [{int(line[0]): " ".join(line[-2:]) for line in table if line[2:3] == [str(os.getpid())]}
                for table in tables]

    def body(c):
        rows = torch.ones(3)
        c.barrier()
        if c.rank == 0:
            seen, until = [], time.monotonic() + 20
            while {0: "barrier 1", 1: "all_reduce 2"} not in seen:
                assert time.monotonic() < until, seen
                seen = look()
        c.all_reduce(rows, rows)

    on_ranks(2, body)


@AT_PLACES
def test_arrays_of_the_collectives_hold_data_of_calls(topology):
    def body(group):
        c = ferry.Collectives(group, window_bytes=8192, shared_bytes=1 << 20)
        rows = c.empty(4 * 5000, torch.float32)
        mine = rows[c.rank * 5000:(c.rank + 1) * 5000]
        mine.copy_(values(c.rank, 5000, torch.float32))
        c.all_gather_v(rows, mine, [5000] * 4)
        equal(rows.clone(), torch.cat([values(r, 5000, torch.float32) for r in range(4)]))
        out = torch.empty(5000)
        c.reduce_scatter_v(out, rows, [5000] * 4, "sum")
        equal(out, 4 * values(c.rank, 5000, torch.float32))

    ferry.run_threads(4, body, deadline=30, topology=topology)


def test_arrays_of_the_collectives_have_their_own_memory_and_life():
    def body(group):
        c = ferry.Collectives(group, shared_bytes=1 << 20)
        rows = c.empty(1 << 18, torch.float32)
        assert rows.shape == (1 << 18,) and rows.dtype == torch.float32 and not rows.requires_grad
        with pytest.raises(ferry.Capacity, match="shared_bytes"):
            c.empty(1, "uint8")
        with pytest.raises(ferry.InvalidArgument, match="size is -1"):
            c.empty(-1, torch.uint8)
        address = rows.data_ptr()
        view = rows[5:10]
        del rows
        gc.collect()
        with pytest.raises(ferry.Capacity):  # the view keeps the memory
            c.empty(1 << 18, torch.float32)
        del view
        gc.collect()
        again = c.empty(1 << 18, torch.float32)
        assert again.data_ptr() == address
        c.close()
        again.fill_(3)  # it outlives the object
        assert again.sum() == 3 << 18

    ferry.run_threads(2, body, deadline=30)
