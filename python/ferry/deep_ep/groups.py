"""The ferry.Group behind a buffer, from whatever a program written for DeepEP gives its constructor."""

import ferry


def join(group, comm=None):
    """ferry.Group of a torch.distributed ProcessGroup, a ferry.Group (as it is), or an mpi4py communicator.

    Collective over its ranks, which must be on one host. Raises ferry.InvalidArgument when both are None.
    """
    if isinstance(group, ferry.Group):
        return group
    if group is not None:
        return ferry.init(process_group=group)
    if comm is not None:
        return ferry.init(comm=comm)
    raise ferry.InvalidArgument("a buffer needs a group (torch ProcessGroup, ferry.Group) or a comm (mpi4py)")
