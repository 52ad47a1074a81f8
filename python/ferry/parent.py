"""Makes a process end when the process that started it ends, for whatever reason. Otherwise a group of ranks would keep
running after the program that started it."""

import ctypes
import fcntl
import multiprocessing
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent():
    """Makes the kernel kill this process when the process that started it ends. A process of multiprocessing calls it
    before anything else."""
    parent = multiprocessing.parent_process()
    if os.getppid() == parent.pid:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:  # the parent is a fork server, which outlives its children: SIGKILL comes when the pipe of the program closes
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if not parent.is_alive():  # the program ended before the lines above
        os._exit(1)
