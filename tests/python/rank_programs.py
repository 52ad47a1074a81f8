"""Functions that spawned ranks run in test_group.py: functions of a module, so that they can be pickled."""

import os
import resource
import signal
import threading
import time
from pathlib import Path

import numpy

import ferry


def sum_of_ranks(group, factor):
    parts = group.all_gather(bytes([group.rank * factor]))
    group.barrier()
    return [part[0] for part in parts]


def raise_on_one(group):
    if group.rank == 1:
        raise KeyError("this rank will not")
    group.barrier()


def die_on_one(group):
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


def write_pid_and_stay(group, folder):
    """Sleeps much longer than its test waits, but for a bounded time."""
    Path(folder, str(os.getpid())).touch()
    time.sleep(300)


def exit_on_one(group):
    if group.rank == 1:
        raise SystemExit(0)
    group.barrier()


def fail_at_length(group):
    if group.rank == 1:
        raise AssertionError("x" * 5_000_000)
    group.barrier()


def write_late(group, folder):
    """The parent has the result before the file is written."""
    rank = group.rank

    def write():
        time.sleep(1)
        with open(os.path.join(folder, str(rank)), "w") as file:
            file.write("done")

    threading.Thread(target=write).start()
    return rank


def exchange_once(group):
    import torch

    exchange = group.exchange(max_tokens=4, hidden=8, num_experts=4, top_k=1, dtype="float32")
    rows = exchange.dispatch(torch.full((4, 8), float(group.rank)), torch.arange(4).reshape(4, 1))
    return exchange.combine(rows.rows, rows.handle).mean().item()


def fork_after_init(group):
    """The child is refused, as it is not a member; the parent's group goes on."""
    exchange = group.exchange(max_tokens=4, hidden=8, num_experts=4, top_k=1, dtype="float32")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in (lambda: group.barrier(), lambda: exchange.stats(), lambda: group.exchange(max_tokens=1)):
            try:
                call()
                said.append("no error")
            except ferry.Closed as error:
                said.append(str(error))
        del exchange, group
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    text = os.read(read, 65536).decode()
    group.barrier()
    return text, exchange_once(group)


def wait_for_a_late_rank(group, seconds):
    """Rank 0 gets SIGINT while it waits, and returns the seconds until the wait ended; rank 1 returns the culprit of
    its error."""
    if group.rank == 1:
        time.sleep(seconds)
        try:
            return group.barrier()
        except ferry.Interrupted as error:
            return error.culprit
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores SIGINT
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    begin = time.monotonic()
    try:
        group.barrier()
    except KeyboardInterrupt:
        return time.monotonic() - begin
    return -1.0


def refuse_a_call_on_the_last_rank(group):
    """The last rank gives a wrong argument; the calls of the others are refused for it."""
    exchange = group.exchange(max_tokens=2, hidden=8, num_experts=4, top_k=1, dtype="float32")
    ids = numpy.full((2, 1), 99 if group.rank == group.size - 1 else 0)
    exchange.dispatch(numpy.zeros((2, 8), numpy.float32), ids)


def play_five_exchanges(group):
    """Returns the time just before this rank combined for the last time."""
    exchange = group.exchange(max_tokens=16, hidden=64, num_experts=8, top_k=2, dtype="float32")
    for _ in range(5):
        received = exchange.dispatch(numpy.ones((16, 64), numpy.float32), numpy.arange(32).reshape(16, 2) % 8)
        began = time.monotonic()
        exchange.combine(received.rows, received.handle)
    return began


def dispatch_without_memory(group):
    """The last rank gets no memory for the routes of its first dispatch. Returns the name of the error."""
    num_tokens = 1 << 18
    exchange = group.exchange(max_tokens=num_tokens, hidden=1, num_experts=4, top_k=4, dtype="float32")
    tokens, ids = numpy.ones((num_tokens, 1), numpy.float32), numpy.full((num_tokens, 4), -1, numpy.int32)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    usual = resource.getrlimit(resource.RLIMIT_AS)
    if group.rank == group.size - 1:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), usual[1]))
    try:
        exchange.dispatch(tokens, ids)
        error = "none"
    except ferry.Error as raised:
        error = type(raised).__name__
    resource.setrlimit(resource.RLIMIT_AS, usual)
    exchange.dispatch(tokens[:5], ids[:5])
    return error
