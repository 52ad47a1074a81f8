"""Names for groups, which are the values of `group_ep`. In torch_npu `group_ep` is the name of an HCCL communicator.

A name belongs to the thread that registers it, so that ranks which are threads can share one. The other threads of
the process may use it too, as long as no second thread has registered it.
"""

import threading
from typing import Dict

import torch.distributed as dist

from ferry import _core
from ferry.errors import InvalidArgument
from ferry.group import init

_lock = threading.Lock()
_communicators: Dict[str, Dict[threading.Thread, _core.CannCommunicator]] = {}


class Registration:
    """The result of register_group: ends with a `with` block, or with unregister_group."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        unregister_group(self.name)


def register_group(name, group, *, group_tp="", workers=1):
    """Makes `group_ep=name` mean `group` in this rank's calls: a ferry.Group, or a torch process group, which becomes
    one. Registering a name again replaces the group. Local for a ferry.Group, collective for a process group.

    group_tp: the name of the tensor-parallel domain, for calls with tp_world_size > 1. `group` then has all
    ep_world_size * tp_world_size ranks, rank ep_rank_id * tp_world_size + tp_rank_id.
    workers: threads that move rows for this rank, the caller included.
    Returns an object that unregisters the name at the end of a `with` block.
    Raises InvalidArgument when the name is not a string of 1 to 127 characters or equals group_tp, and when `group` is
    not a group.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= 127:
        raise InvalidArgument(f"register_group: name is {name!r}, need a string of 1 to 127 characters")
    if name == group_tp:
        raise InvalidArgument(f"register_group: group_tp is {group_tp!r}, need another name than the group's")
    if isinstance(group, dist.ProcessGroup):
        group = init(process_group=group)
    if not isinstance(group, _core.Group):
        raise InvalidArgument(f"register_group: group is {group!r}, need a ferry.Group or a torch process group")
    communicator = _core.CannCommunicator(group, name, group_tp, workers)
    with _lock:
        alive = {t: c for t, c in _communicators.get(name, {}).items() if t.is_alive()}
        _communicators[name] = {**alive, threading.current_thread(): communicator}
    return Registration(name)


def unregister_group(name):
    """Removes a name that this thread or exactly one other thread has registered. The group stays usable.

    Raises InvalidArgument for an unknown name.
    """
    with _lock:
        owner = _owner(name)
        del _communicators[name][owner]
        if not _communicators[name]:
            del _communicators[name]


def communicator_of(name):
    """Returns the communicator of `name` for this thread. Raises InvalidArgument with the known names for an unknown
    name."""
    with _lock:
        owner = _owner(name)
        return _communicators[name][owner]


def _owner(name):
    owners = _communicators.get(name, {})
    thread = threading.current_thread()
    if thread in owners:
        return thread
    if len(owners) == 1:
        return next(iter(owners))
    if owners:
        raise InvalidArgument(
            f"group {name!r} is registered by {len(owners)} threads, and {thread.name} is none of them: "
            "call register_group in the thread that makes the call"
        )
    known = ", ".join(repr(other) for other in sorted(_communicators)) or "none"
    raise InvalidArgument(f"group {name!r} is not registered with ferry.torch_npu.register_group; known: {known}")
