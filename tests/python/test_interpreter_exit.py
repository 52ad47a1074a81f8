"""The end of the interpreter while threads of the program or of ferry are in ferry or in torch."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

DAEMON = """
import threading, time
from ferry import _core

def call(group):
    while True:
        group.barrier()

for _ in range(4):
    threading.Thread(target=call, args=_core.threads(1, "", 20.0, ""), daemon=True).start()
time.sleep(0.05)
"""


def test_a_daemon_thread_in_a_call_does_not_abort_the_process():
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", DAEMON], stderr=subprocess.PIPE, text=True, timeout=60)
        assert ended.returncode == 0, f"{ended.returncode}: {ended.stderr}"


RANKS = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import ferry.torch_backend

def fork(play):
    child = os.fork()
    if child == 0:
        play()
        sys.exit()
    return child

def code_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def play(rank, what, folder):
    dist.init_process_group("cpu:ferry", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2,
                            timeout=timedelta(seconds=30))
    for step in range(4):
        rows, peer = torch.ones(1000), 1 - rank
        works = [dist.all_reduce(rows, async_op=True), dist.irecv(torch.zeros(5), peer),
                 dist.isend(torch.ones(5), peer)]
        for work in works:
            work.get_future().then(lambda _, seconds=0.04 * step: time.sleep(seconds))
    if what == "forks":
        code = code_of(fork(lambda: None))
        assert code == 0, f"the child of rank {rank}: {code}"
    if what == "breaks":
        dist.group.WORLD.abort()
    if what == "destroys":
        dist.destroy_process_group()

torch.set_num_threads(1)
what, folder = sys.argv[1:]
codes = [code_of(child) for child in [fork(lambda: play(rank, what, folder)) for rank in range(2)]]
assert codes == [0, 0], codes
"""


@pytest.mark.parametrize("what", ["exits", "destroys", "forks", "breaks"])
def test_callbacks_that_run_at_the_exit_do_not_abort_the_process(what, tmp_path):
    ended = subprocess.run([sys.executable, "-c", RANKS, what, str(tmp_path)], stderr=subprocess.PIPE, text=True,
                           timeout=120)
    assert ended.returncode == 0, f"{ended.returncode}: {ended.stderr}"


NEVER_RETURNS = """
import threading
import torch, torch.distributed as dist
import ferry.torch_backend
from ferry.torch_backend import threads

threads._LONGEST = 0.5
dist.init_process_group("cpu:ferry", store=dist.HashStore(), rank=0, world_size=1)
begun = threading.Event()
received = dist.irecv(torch.zeros(3), 0)
received.get_future().then(lambda future: (begun.set(), threading.Event().wait()))
dist.isend(torch.ones(3), 0)
assert begun.wait(30)
"""


def test_a_callback_that_never_returns_does_not_hold_the_exit():
    ended = subprocess.run([sys.executable, "-c", NEVER_RETURNS], stderr=subprocess.PIPE, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


NO_THREADS = """
import threading
import torch, torch.distributed as dist
import ferry.torch_backend

dist.init_process_group("cpu:ferry", store=dist.HashStore(), rank=0, world_size=1)

def refuse(thread):
    raise RuntimeError("can't start new thread")

start, threading.Thread.start = threading.Thread.start, refuse
rows, out = torch.arange(400_000), torch.zeros(400_000, dtype=torch.int64)
seen, heard = [], threading.Event()
work = dist.all_reduce(rows, async_op=True)
work.get_future().then(lambda future: seen.append("all_reduce"))
received = dist.irecv(out, 0)
received.get_future().then(lambda future: (seen.append("irecv"), heard.set()))
sent = dist.isend(rows, 0)
work.wait(), sent.wait(), received.wait()
assert heard.wait(20), seen  # callbacks have a thread of their own
assert torch.equal(out, rows) and seen == ["all_reduce", "irecv"], seen
out.zero_()
received = dist.irecv(out, 0)
threading.Thread.start = start
dist.isend(rows, 0)
done = threading.Event()
received.get_future().then(lambda future: done.set())
assert done.wait(20), "nothing serves after a thread could not be started"
threading.Thread.start = refuse
dist.isend(rows, 0)  # it ends with the group
dist.irecv(out, 0)
"""


def test_operations_end_where_no_thread_can_be_started():
    ended = subprocess.run([sys.executable, "-c", NO_THREADS], stderr=subprocess.PIPE, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
