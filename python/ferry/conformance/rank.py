"""One rank of a session: a process that receives commands, runs their clauses and replies with complaints.

When a call of a clause raised on one rank, the ranks may have made different numbers of calls in their process group.
So they join a new process group, with the next epoch number, before the next clause.
"""

import ctypes
import datetime
import multiprocessing
import os
import pickle
import signal
import traceback

import torch
import torch.distributed as dist

from .clauses import World, clauses_of, implementation

_GRACE_SECONDS = 60  # added to the session's deadline, so that it passes first
_PR_SET_PDEATHSIG = 1
_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}


def play(connection, settings, rank):
    """Receives and runs commands until the connection ends. `settings` has ranks, device, seed, routing, deadline,
    folder, api and path."""
    import sys

    sys.path[:] = settings["path"]
    torch.set_num_threads(1)
    if settings["device"] != "cpu":
        if settings["device"] == "npu":
            import torch_npu  # noqa: F401
        getattr(torch, settings["device"]).set_device(rank)
    while True:
        try:
            command, *arguments = connection.recv()
        except EOFError:
            os._exit(0)  # without destructors: that of a broken group may not end
        if command == "join":
            _join(settings, rank, *arguments)
            connection.send(([], False))
        else:
            connection.send(_run(settings, rank, *arguments))


def _join(settings, rank, epoch):
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(
        _BACKENDS[settings["device"]], init_method=f"file://{settings['folder']}/epoch{epoch}", rank=rank,
        world_size=settings["ranks"], timeout=datetime.timedelta(seconds=settings["deadline"] + _GRACE_SECONDS))


def _run(settings, rank, module, name):
    """Runs one clause and returns (complaints, whether a call raised)."""
    world, raised = None, False
    try:
        world = World(implementation(module), dist.group.WORLD, rank, settings)
        clauses_of(settings["api"])[name].check(world)
        world.end()
    except BaseException as error:
        raised = True
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"
        complaints = [*(world.complaints if world else []), text[:600]]
        return complaints, raised
    return world.complaints, raised


def _end_with_session():
    """Makes the kernel kill this process when the process of the session ends, for whatever reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if not multiprocessing.parent_process().is_alive():  # the session ended before the call
        os._exit(1)


def entry(connection, settings, rank):
    """The function that the process of a rank runs."""
    _end_with_session()
    try:
        play(connection, pickle.loads(settings), rank)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)
