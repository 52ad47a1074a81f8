"""One rank of a session: a process that receives commands, runs their clauses and replies with complaints.

A clause whose call raised on some rank leaves the ranks at different places of their process group. So the ranks join
a new one, of the next epoch, before the next clause.
"""

import datetime
import os
import pickle
import traceback

import torch
import torch.distributed as dist

from ferry.conformance.clauses import World, clauses_of, implementation
from ferry.parent import end_with_parent

_GRACE_SECONDS = 60  # the session's deadline comes first
_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}


def play(connection, settings, rank):
    """The life of a rank; settings: ranks, device, seed, deadline, folder, api, path."""
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
            os._exit(0)  # a broken group may not want to end
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
    """(complaints, whether a call raised)."""
    world, raised = None, False
    try:
        world = World(implementation(module), dist.group.WORLD, rank, settings["ranks"], settings["device"],
                      settings["seed"])
        clauses_of(settings["api"])[name].check(world)
        world.end()
    except BaseException as error:
        raised = True
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"
        complaints = [*(world.complaints if world else []), text[:600]]
        return complaints, raised
    return world.complaints, raised


def entry(connection, settings, rank):
    """What the process starts with."""
    end_with_parent()
    try:
        play(connection, pickle.loads(settings), rank)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)
