"""Work of the backend `ferry`: futures and their callbacks, operations in flight at the end, forks, and errors."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest.mock

import pytest
import torch
import torch.distributed as dist

import ferry
import ferry.torch_backend
from ferry.testing import ranks
from ferry.torch_backend import threads
from ferry.torch_backend import work as works


@pytest.mark.parametrize("inner", ["future", "work", "synchronous"])
@ranks(2, deadline=10)
def test_a_callback_may_wait_for_a_collective(inner):
    """As PowerSGD's hook of DDP does."""

    issued = threading.Event()  # the order of collectives must be that of the other rank

    def second(future):
        assert issued.wait(10)
        tensor = future.value()[0]
        if inner == "future":
            return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]
        if inner == "work":
            dist.all_reduce(tensor, async_op=True).wait()
        else:
            dist.all_reduce(tensor)
        return tensor

    begun = threading.Event()
    first = dist.all_reduce(torch.ones(3), async_op=True)
    chained = [dist.all_reduce(torch.ones(3), async_op=True).get_future().then(second) for _ in range(5)]
    issued.set()
    first.get_future().add_done_callback(lambda _: begun.set())
    for future in chained:
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        assert done.wait(10), "the collective in the callback does not end"
        assert future.value().tolist() == [4.0] * 3
    assert begun.wait(10)


@ranks(2, kind="threads", deadline=10)
def test_callbacks_that_raise_stop_nothing():
    def fail(_):
        raise ZeroDivisionError

    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    failed = future.then(fail)
    future.add_done_callback(fail)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        failed.wait()
    tensor = torch.ones(2)
    dist.all_reduce(tensor, async_op=True).wait()
    assert tensor.tolist() == [2.0] * 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@ranks(1, kind="threads", deadline=10)
def test_a_future_that_the_program_completes_is_in_no_callback():
    """fulfil() raises, and the log at the exit must not say that a callback has not returned."""
    seen = []

    class Records(set):
        def add(self, record):  # that of `work`, which torch 2.14 hides
            seen.append(record)
            super().add(record)

    with unittest.mock.patch.object(works, "IN_CALLBACKS", Records()):
        work = dist.irecv(torch.ones(3), 0)
        work.get_future().set_result(None)
        dist.isend(torch.zeros(3), 0).wait()
        work.wait()
        began = time.monotonic()
        while works.IN_CALLBACKS and time.monotonic() - began < 5:
            time.sleep(0.01)
        assert [record.name for record in seen] == ["recv"] and not works.IN_CALLBACKS


def test_an_exception_does_not_end_the_thread_of_the_exit(monkeypatch):
    raised, done = [], threading.Event()
    monkeypatch.setattr(threading, "excepthook", raised.append)
    reserve = threads._Reserve()
    for call in (lambda: {}["no callback"], done.set, None):
        reserve.calls.put(call)
    threading.Thread(target=reserve.run).start()
    assert done.wait(5)
    assert [each.exc_type for each in raised] == [KeyError]


EXITS = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import ferry.torch_backend

def play(rank, what, folder):
    dist.init_process_group("cpu:ferry", store=dist.FileStore(f"{folder}/{what}", 2), rank=rank, world_size=2,
                            timeout=timedelta(seconds=30))
    dist.barrier()
    tensor = torch.full((50_000,), float(rank))
    if rank == 1:
        time.sleep(0.5)
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(2)]
    if rank == 0 and what == "exits":
        return
    if rank == 1:
        for work in works:
            work.wait()
    dist.destroy_process_group()
    assert tensor[0] == 2.0, tensor[0]

for what in ("exits", "destroys"):
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            play(rank, what, sys.argv[1])
            sys.exit()
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0, 0], f"rank 0 {what}: {codes}"
"""


def test_operations_in_flight_end_before_the_process_or_its_group(tmp_path):
    ended = subprocess.run([sys.executable, "-c", EXITS, str(tmp_path)], stderr=subprocess.PIPE, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr


ENDLESS = """
import atexit, os, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
import ferry.torch_backend
from ferry.torch_backend import threads

threads.LONGEST = 1.0

def start(_):
    raise RuntimeError("can't create new thread at interpreter shutdown")  # as of Python 3.12

def play(rank, folder):
    dist.init_process_group("cpu:ferry", store=dist.FileStore(f"{folder}/meet", 2), rank=rank, world_size=2,
                            timeout=timedelta(seconds=30))
    dist.barrier()
    if rank == 1:
        time.sleep(0.5)
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(2)]
    if rank == 0:
        for work in works:
            work.get_future().add_done_callback(lambda _: threading.Event().wait())
        atexit.register(setattr, threading.Thread, "start", start)
        return
    for work in works:
        work.wait()

print(time.monotonic(), flush=True)  # torch is imported, which takes long on a busy machine
child = os.fork()
play(0 if child else 1, sys.argv[1])
"""


def test_callbacks_that_never_return_do_not_hold_the_exit(tmp_path):
    ended = subprocess.run([sys.executable, "-c", ENDLESS, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert time.monotonic() - float(ended.stdout) < 40
    for number in (2, 3):
        assert f"a callback of all_reduce {number} of group 0 ([3] float32) has not returned in 1 s" in ended.stderr


def test_a_rank_that_fails_leaves_what_is_in_flight():
    def fail():
        if dist.get_rank() == 1:
            dist.all_reduce(torch.ones(3), async_op=True)  # never issued by the other rank
            raise ZeroDivisionError

    begin = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        ranks(2, kind="threads", deadline=40)(fail)()
    assert time.monotonic() - begin < 20


@ranks(2, deadline=20)
def test_a_forked_child_is_refused_while_an_operation_runs():
    tensor = torch.full((50_000,), float(dist.get_rank()))
    if dist.get_rank() == 1:
        time.sleep(0.3)
        dist.all_reduce(tensor)
        return
    work = dist.all_reduce(tensor, async_op=True)
    time.sleep(0.1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            dist.all_reduce(torch.ones(3))
        except ferry.Closed as error:
            code = 0 if "forked" in str(error) else 2
        os._exit(code)
    until = time.monotonic() + 15
    ended = (0, 0)
    while ended == (0, 0) and time.monotonic() < until:
        ended = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)
    work.wait()


def in_a_fork(play):
    """Calls play() in a forked child; returns its exit code, or None where it does not end in 10 s."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(play())
        finally:
            os._exit(99)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@ranks(2, deadline=20)
def test_a_forked_child_cannot_wait_for_what_its_parent_has_in_flight():
    peer, out = 1 - dist.get_rank(), torch.zeros(50_000)
    receive = dist.irecv(out, peer)
    time.sleep(0.1)  # the group's thread is in the receive

    def refused(call):
        try:
            call()
        except ferry.Closed as error:
            return 0 if "recv 1 of group" in str(error) and "forked" in str(error) else 2
        return 3

    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        for call in (receive.wait, receive.get_future):
            assert in_a_fork(lambda call=call: refused(call)) == 0, call
        assert in_a_fork(lambda: refused(work.wait)) == 2  # the same, for all_reduce
        dist.send(torch.ones(1), 1, tag=1)
    else:
        dist.recv(torch.ones(1), 0, tag=1)
        dist.all_reduce(torch.ones(3))
    send = dist.isend(torch.full((50_000,), float(peer)), peer)
    receive.wait()
    send.wait()
    assert out[-1] == dist.get_rank()
    assert in_a_fork(lambda: int(not receive.wait())) == 0  # it has ended


@ranks(2, kind="threads", deadline=10)
def test_an_exception_of_one_rank_is_an_error_on_all():
    if dist.get_rank() == 1:
        with pytest.raises(ferry.InvalidArgument, match="TypeError"):
            # not by the group, which refuses such an argument itself from torch 2.14 on
            dist.group.WORLD._get_backend(torch.device("cpu")).allreduce(3)
    else:
        with pytest.raises(ferry.PeerRejected, match="TypeError"):
            dist.all_reduce(torch.ones(3))
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 2


def test_an_error_lists_calls_while_others_are_issued(caplog):
    """Other threads issue calls while one writes what it knows of the latest ones."""
    issuer = works.Issuer("a test")

    class Busy(works.Record):
        def __str__(self):
            issuer.latest.append(works.Record("g", "barrier", 3, []))
            return super().__str__()

    issuer.latest.extend(Busy("g", "all_reduce", number, []) for number in range(4))
    assert "all_reduce 3 of group g" in issuer.history()
