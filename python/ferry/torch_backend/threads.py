"""The threads of the backend. They end before the interpreter does.

A daemon thread that comes back from C++ code of torch while the interpreter ends, such as set_result() of a future, is
ended by Python below 3.14 in a way that aborts the process. So the threads are joined at the exit, before that.
"""

from __future__ import annotations

import threading
import time
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


def join() -> None:
    """Returns when the threads have ended, or after LONGEST seconds. Call when nothing is left for them to do."""
    until = time.monotonic() + LONGEST
    while (left := until - time.monotonic()) > 0:
        mine = [thread for thread in threading.enumerate() if isinstance(thread, _Thread)]
        if not mine:
            return
        mine[0].join(left)
