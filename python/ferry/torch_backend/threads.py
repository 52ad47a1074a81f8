"""The threads of the backend. They end before the interpreter does.

A daemon thread that comes back from C++ code of torch while the interpreter ends, such as set_result() of a future, is
ended by Python below 3.14 in a way that aborts the process. So the threads are joined at the exit, before that.
"""

from __future__ import annotations

import functools
import os
import queue
import sys
import threading
import time
import weakref
from typing import Any, Callable

LONGEST = 10.0  # seconds that an exit waits: a callback of the program may never return


class _Thread(threading.Thread):
    pass


def start(name: str, target: Callable[..., None], *args: Any) -> bool:
    """Runs target(*args) in a daemon thread. False: no thread can be started, as at the exit of Python 3.12 and later.
    """
    try:
        _Thread(target=target, args=args, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True


def start_or_queue(name: str, target: Callable[..., None], *args: Any) -> None:
    """Runs target(*args) in a daemon thread: a new one, or the one of reserve() where none can be started."""
    if not start(name, target, *args):
        _RESERVE.calls.put(functools.partial(target, *args))


def reserve() -> None:
    """Starts the thread that start_or_queue() uses at the exit, once in each process. Call before the exit."""
    with _RESERVE.lock:
        if not _RESERVE.started:
            _RESERVE.started = start("ferry at the exit", _RESERVE.run)


def join() -> None:
    """Returns when the threads have ended, or after LONGEST seconds. Call when nothing is left for them to do."""
    _RESERVE.calls.put(None)
    until = time.monotonic() + LONGEST
    while (left := until - time.monotonic()) > 0:
        mine = [thread for thread in threading.enumerate() if isinstance(thread, _Thread)]
        if not mine:
            return
        mine[0].join(left)


_RENEWED: weakref.WeakSet[Any] = weakref.WeakSet()


def renew_after_fork(owner: Any) -> None:
    """Calls owner._begin() in a forked child, which has none of the threads."""
    _RENEWED.add(owner)


def _after_fork() -> None:
    for owner in list(_RENEWED):
        owner._begin()


os.register_at_fork(after_in_child=_after_fork)


class _Reserve:
    def __init__(self) -> None:
        self._begin()
        renew_after_fork(self)

    def _begin(self) -> None:
        self.lock = threading.Lock()
        self.started = False
        self.calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def run(self) -> None:
        while (call := self.calls.get()) is not None:
            try:
                call()
            except BaseException:  # it would end a thread of the call's own; this one goes on with the next call
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


_RESERVE = _Reserve()
