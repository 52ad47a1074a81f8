"""What fronts need of the views of their groups (Group.survive)."""

import contextlib
import time

from ferry.errors import Broken, InvalidArgument, PeerLost, Timeout

_END_SECONDS = 0.02  # for a call of survive() that only ends the view


def end_view(group):
    """Ends the calls of the other ranks of the group, for a rank that cannot make its own now. They raise Broken. Then
    all ranks call begin_view(). Local."""
    with contextlib.suppress(Timeout):  # the others come later
        group.survive(_END_SECONDS)


def begin_view(group, seconds):
    """Returns in a view that all its ranks have come to with this call. Collective among the ranks that remain. The
    next view may begin in end_view() of a rank, which then comes here and ends it."""
    until = time.monotonic() + seconds
    while True:
        group.survive(max(until - time.monotonic(), _END_SECONDS))
        with contextlib.suppress(PeerLost, Broken):
            group.barrier()
            return


def need_all_ranks(group):
    """Raises InvalidArgument in a view of the group that lacks ranks, on all of its ranks."""
    number, ranks = group.view
    if len(ranks) < group.size:
        lacks = [rank for rank in range(group.size) if rank not in ranks]
        raise InvalidArgument(f"this call needs all {group.size} ranks, and view {number} of the group lacks {lacks}: "
                              "admit() others in their places, or make a new group")


def keeping_owners(group, settings):
    """Returns settings of Group.exchange with which experts are of the ranks that own them in a view of all ranks: an
    equal block for each. In a view that lacks ranks an exchange would divide them among the others."""
    placed = settings.get("expert_rank") or settings.get("expert_ranks")
    if placed or len(group.view[1]) == group.size:
        return settings
    return {**settings, "expert_ranks": list(range(group.size))}
