"""The backend `ferry` of torch.distributed: collectives of CPU tensors by ferry's engine.

    import ferry.torch_backend                     # not needed with torch 2.14 and later
    torch.distributed.init_process_group("cpu:ferry")

torch 2.14 and later find the backend by its name (the entry point torch.distributed.backends). torch 2.13 has no such
entry points, so there the program imports this module, and a process group of ferry is for the CPU alone.
docs/torch_backend.md is the guide.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Sequence

import torch
import torch.distributed

from ferry.errors import InvalidArgument

if TYPE_CHECKING:
    from ferry.torch_backend.process_group import FerryGroup

__all__ = ["admit", "fence", "register", "survive"]

_OLDEST = (2, 13)


def register() -> None:
    """Registers the name "ferry" with torch.distributed; a second call changes nothing.

    Raises InvalidArgument where torch is older than 2.13 or was built without torch.distributed.
    """
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _OLDEST:
        raise InvalidArgument(f"the backend ferry needs torch {'.'.join(map(str, _OLDEST))} or later: "
                              f"this is torch {torch.__version__}")
    if not torch.distributed.is_available():
        raise InvalidArgument(f"torch {torch.__version__} was built without torch.distributed")
    from ferry.torch_backend.process_group import create

    backends = torch.distributed.Backend
    if "FERRY" not in backends._plugins:
        backends.register_backend("ferry", create, extended_api=True, devices=["cpu"])


def survive(group: Any = None, timeout: timedelta | None = None) -> tuple[int, tuple[int, ...]]:
    """Goes on without the ranks that died or left. Collective among the others; returns (number of view, its ranks).

    `group`: a process group of ferry, by default that of all ranks. Ranks and the size of the group stay as they were.
    Between hosts, the ranks that go on must be more than half of all, or half with the lowest one. Later calls run
    among the ranks of the view: the tensors of a lost rank are not sent and have no defined contents when received,
    sums and means are those of the others, and a lost rank cannot be a root or a peer. Works in flight end first, at
    once if the group is broken, else each at its own deadline. Numbers of operations begin anew. `timeout` (None: that
    of the group), counted from the call, bounds the wait for the ranks and the making of the new view's memory. Raises
    Timeout with the number of a rank that is alive and has not come by then. After an error other than InvalidArgument
    the call may be repeated, and no other call of the group may be made before it has returned.
    """
    return _backend_of(group, "survive").survive(timeout)


def admit(ranks: Sequence[int] = (), group: Any = None, timeout: timedelta | None = None
          ) -> tuple[int, tuple[int, ...]]:
    """Lets processes take the places of ranks that the group has lost. Collective among the ranks of the view, after
    survive(); returns (number of view, its ranks).

    `ranks`: which ones; () for all that the view lacks. Such a process calls init_process_group with its rank and a
    store that still has the keys of the group; that call returns in the view that begins. `group` and `timeout` are
    those of survive(). Works in flight end first. Raises PeerRejected if no process came for a rank in time, or if such
    a process died; the view goes on, and the call may be repeated. Raises PeerLost if a rank of the view, or of the new
    one, died: call survive().
    """
    return _backend_of(group, "admit").admit(ranks, timeout)


def fence(rank: int, group: Any = None) -> None:
    """Ends the process of a rank of the group (SIGKILL) that is alive and does not come to survive().

    Local; returns when the process has ended. Raises InvalidArgument where the group is usable, and for this rank, a
    thread of this process, and a rank that the view lacks.
    """
    _backend_of(group, "fence").fence(rank)


def _backend_of(group: Any, call: str) -> FerryGroup:
    """The backend of a process group, by default that of all ranks. Raises InvalidArgument if it is not ferry's."""
    from ferry.torch_backend.process_group import FerryGroup

    backend = (group or torch.distributed.group.WORLD)._get_backend(torch.device("cpu"))
    if not isinstance(backend, FerryGroup):
        raise InvalidArgument(f"{call}: the backend of the group is {type(backend).__name__}, not ferry. With "
                              f"TORCH_DISTRIBUTED_DEBUG=DETAIL torch adds checks that need all ranks")
    return backend


register()
