"""The ferry.Group behind a buffer, from whatever a program written for DeepEP gives its constructor."""

import contextlib

import ferry
from ferry.deep_ep import nodes


def join(group, comm=None):
    """ferry.Group of a torch.distributed ProcessGroup, a ferry.Group (as it is), or an mpi4py communicator.

    Collective over its ranks. Raises ferry.InvalidArgument when both are None.
    """
    if isinstance(group, ferry.Group):
        return group
    if group is not None:
        members = ferry.init(process_group=group)
        nodes.remember(group, members.topology)
        return members
    if comm is not None:
        return ferry.init(comm=comm)
    raise ferry.InvalidArgument("a buffer needs a group (torch ProcessGroup, ferry.Group) or a comm (mpi4py)")


@contextlib.contextmanager
def leaving(members):
    """Arguments that one rank gets wrong after it joined: `members` (None: the caller's) leave, so that ranks that wait
    for this one get ferry.PeerLost at once."""
    try:
        yield
    except Exception:
        if members is not None:
            members.destroy()
        raise
