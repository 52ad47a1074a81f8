"""Makes the ferry.Group of a buffer from the group or comm that a program written for DeepEP gives."""

import contextlib

import ferry
from ferry.deep_ep import nodes


def join(group, comm=None):
    """Makes a ferry.Group of a torch.distributed ProcessGroup or an mpi4py communicator; a ferry.Group is returned as
    it is.

    Collective over the ranks of the group. Raises ferry.InvalidArgument when both arguments are None.
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
    """A context manager for checks of arguments after this rank has joined `members`. When a check raises, this rank
    leaves the group, so that ranks that wait for it raise ferry.PeerLost at once. With None, a group that belongs to
    the caller, it does nothing."""
    try:
        yield
    except Exception:
        if members is not None:
            members.destroy()
        raise
