"""Runs the operations of one group in the order in which they were issued, in the caller's thread or in a thread of the
group."""

from __future__ import annotations

import collections
import os
import threading
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist

from ferry.errors import Closed, InvalidArgument, Timeout
from ferry.torch_backend import threads

LATEST = 10  # operations that an error lists

IN_CALLBACKS: set[Record] = set()  # the operations that have ended, and whose callbacks have not returned
os.register_at_fork(after_in_child=IN_CALLBACKS.clear)


class Record:
    """The facts about an operation that an error contains: its name, its number in the group, shapes and state. It
    keeps no tensor alive."""

    __slots__ = ("group", "name", "number", "shapes", "state")

    def __init__(self, group: str, name: str, number: int, tensors: list[torch.Tensor]):
        self.group, self.name, self.number = group, name, number
        self.shapes = [(tensor.shape, tensor.dtype) for tensor in tensors]
        self.state = "queued"

    def __str__(self) -> str:
        shapes = ", ".join(f"{list(shape)} {str(dtype)[6:]}" for shape, dtype in self.shapes)
        return f"{self.name} {self.number} of group {self.group} ({shapes})"


def listed(calls: dict[int, list[str]]) -> str:
    """Returns lines with the calls of each rank; ranks with the same calls share them."""
    ranks: dict[tuple[str, ...], list[int]] = {}
    for rank, latest in calls.items():
        ranks.setdefault(tuple(latest), []).append(rank)
    return "".join(f"\nthe latest calls of {'rank' if len(same) == 1 else 'ranks'} {', '.join(map(str, same))}:"
                   + "".join(f"\n  {call}" for call in latest) for latest, same in ranks.items())


class FerryWork(dist.Work):
    """One operation. `run` moves its data; `outputs` are the tensors that it writes."""

    def __init__(self, record: Record, run: Callable[[], None], outputs: list[torch.Tensor]):
        super().__init__()
        self.record = record
        self.outputs = outputs
        self._run: Callable[[], None] | None = run
        self._error: BaseException | None = None
        self._ended = False
        self._process = os.getpid()
        self._issuer: Any = None  # this and _ending are set if another thread may run the operation
        self._ending: threading.Condition | None = None
        self._future: torch.futures.Future | None = None

    def queue(self, issuer: Any) -> None:
        self._issuer, self._ending = issuer, threading.Condition()

    def execute(self) -> torch.futures.Future | None:
        """Runs the operation. Returns a future for fulfil() or fulfil_apart(), which run callbacks of the program."""
        self.record.state = "running"
        try:
            assert self._run is not None
            self._run()
            self.record.state = "done"
        except BaseException as error:
            self._error = error
            self.record.state = "failed"
        self._run = None
        if self._ending is None:
            self._ended = True
            return None
        with self._ending:
            self._ended = True
            self._ending.notify_all()
            future = self._future
        if future is not None:
            IN_CALLBACKS.add(self.record)
        return future

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns when the operation has ended. Raises the error of the operation, or Timeout after `timeout`, where 0
        means the deadline of the operation."""
        if not self._ended:
            self._check_process()
            seconds = timeout.total_seconds()
            if seconds <= 0:
                self._issuer.help(self)
            with self._ending:
                if not self._ending.wait_for(lambda: self._ended, seconds if seconds > 0 else None):
                    raise Timeout(f"{self.record}: not done after {seconds} s; it goes on")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._ended

    def is_success(self) -> bool:
        return self._ended and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self.outputs

    def get_future(self) -> torch.futures.Future:
        if not self._ended:
            self._check_process()
        if self._ending is None:
            return self._future or self._ended_future()
        with self._ending:
            if self._future is not None:
                return self._future
            if not self._ended:
                self._future = torch.futures.Future()
                return self._future
        return self._ended_future()

    getFuture = get_future  # the name that torch calls from C++

    def _check_process(self) -> None:
        """A forked child has none of the threads that may run the operation, and must not run it."""
        if os.getpid() != self._process:
            raise Closed(f"{self.record}: this process was forked before it was done; only its parent can wait for it")

    def _ended_future(self) -> torch.futures.Future:
        self._future = torch.futures.Future()
        self.fulfil(self._future)
        return self._future

    def fulfil(self, future: torch.futures.Future) -> None:
        try:
            if self._error is None:
                future.set_result(self.outputs)
            elif isinstance(self._error, Exception):
                future.set_exception(self._error)
            else:  # Ctrl-C: torch's futures take subclasses of Exception only
                future.set_exception(RuntimeError(f"{type(self._error).__name__} in {self.record}"))
        finally:  # set_result raises if the program has completed the future itself
            IN_CALLBACKS.discard(self.record)

    def fulfil_apart(self, future: torch.futures.Future) -> None:
        """Does what fulfil() does, in another thread: a callback may wait for other operations, or never return."""
        threads.start_or_queue(f"ferry callback of {self.record}", self.fulfil, future)


class CoalescedWork(dist.Work):
    """Several operations that a program handles as one. It has ended when all of them have ended."""

    def __init__(self, works: list[dist.Work]):
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def get_future(self) -> torch.futures.Future:
        return torch.futures.collect_all([work.get_future() for work in self._works])

    getFuture = get_future


class Issuer:
    """Runs the operations of one group one at a time, in the order in which they were issued.

    An operation that the caller waits for runs in the caller's thread when none is before it. Any other runs in a
    thread of the group, or in the thread of a caller that waits for it before the group's thread has begun it.

    Callbacks of futures run when the operation has ended and its thread has given up the turn: they may wait for
    operations that are issued after it (as PowerSGD's hook does). While a thread is in a callback, another one serves.
    """

    def __init__(self, name: str):
        self._name = name
        self.latest: collections.deque[Record] = collections.deque(maxlen=LATEST)
        self._closed = False
        self._begin()
        threads.renew_after_fork(self)

    def _begin(self) -> None:
        self._queue: collections.deque[FerryWork] = collections.deque()
        self._turn = threading.Lock()  # held while an operation runs
        self._runner = 0  # the thread that runs an operation
        self._issued = threading.Condition()
        self._servers = 0  # threads that wait for an operation or run one; not those in a callback

    def is_mine(self) -> bool:
        """Whether this thread runs an operation. True in a signal handler that interrupts the wait of one."""
        return self._runner == threading.get_ident()

    def issue(self, work: FerryWork, asynchronous: bool) -> FerryWork:
        if self.is_mine():
            raise InvalidArgument(f"{work.record}: called by a signal handler inside a call of this group")
        self.latest.append(work.record)
        if not asynchronous and not self._queue and self._turn.acquire(blocking=False):
            try:
                if not self._queue:
                    if self._closed:
                        raise Closed(f"{work.record}: the process group was destroyed")
                    self._execute(work)
            finally:
                self._turn.release()
            if work.is_completed():
                work.wait()
                return work
        work.queue(self)
        with self._issued:
            if self._closed:
                raise Closed(f"{work.record}: the process group was destroyed")
            self._queue.append(work)
            served = self._serve_by_a_thread()
            self._issued.notify()
        if not served:
            self._run_until_ended(work)
        if not asynchronous:
            work.wait()
        return work

    def _run_until_ended(self, work: FerryWork) -> None:
        while not work.is_completed():
            self._turn.acquire()
            self._run_next(FerryWork.fulfil_apart)

    def help(self, work: FerryWork) -> None:
        """Runs `work` and the operations before it in this thread, unless another thread is running an operation."""
        while not work.is_completed() and self._turn.acquire(blocking=False):
            done = self._run_next(FerryWork.fulfil)
            if done is None:
                return
            if done is not work and not isinstance(done.exception(), (Exception, type(None))):
                raise done.exception()  # Ctrl-C, or the exit that a signal handler asks for, is this thread's

    def close(self) -> None:
        """Refuses operations from now on; returns when those that were issued have ended, unless this thread is in one.
        Their callbacks may still run in other threads."""
        with self._issued:
            self._closed = True
            self._issued.notify_all()
        if self.is_mine():
            return
        self._turn.acquire()
        while self._run_next(FerryWork.fulfil_apart):
            self._turn.acquire()

    def reopen(self) -> None:
        """Takes operations again."""
        self._closed = False

    def history(self) -> str:
        """The latest operations and their states. Other threads may issue more meanwhile."""
        return "\n".join(f"  {record.state}: {record}" for record in list(self.latest))

    def _execute(self, work: FerryWork) -> torch.futures.Future | None:
        """Call with the turn."""
        self._runner = threading.get_ident()
        try:
            return work.execute()
        finally:
            self._runner = 0

    def _run_next(self, fulfil: Callable[[FerryWork, torch.futures.Future], None]) -> FerryWork | None:
        """Runs the next operation, and then its callbacks. Call with the turn, which this releases after the operation.
        Returns the operation; None if there is none."""
        try:
            if not self._queue:
                return None
            work = self._queue.popleft()
            future = self._execute(work)
        finally:
            self._turn.release()
        if future is not None:
            fulfil(work, future)
        return work

    def _serve_by_a_thread(self) -> bool:
        """Call with _issued. False: no thread serves, and none can be started."""
        if self._servers == 0 and threads.start(f"ferry {self._name}", self._serve):
            self._servers = 1
        return self._servers > 0

    def _serve(self) -> None:
        serves = True

        def fulfil(work: FerryWork, future: torch.futures.Future) -> None:
            nonlocal serves
            serves = False
            with self._issued:
                self._servers -= 1
                if self._queue:
                    self._serve_by_a_thread()
            work.fulfil(future)

        while True:
            with self._issued:
                if not serves:
                    if self._servers > 0:
                        return
                    self._servers, serves = 1, True
                while not self._queue and not self._closed:
                    self._issued.wait()
                if not self._queue:
                    self._servers -= 1
                    return
            self._turn.acquire()
            self._run_next(fulfil)
