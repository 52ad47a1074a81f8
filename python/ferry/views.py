"""What fronts need of the views of their groups (Group.survive)."""

import contextlib
import time

from ferry.errors import Broken, Error, InvalidArgument, PeerLost

_END_SECONDS = 0.02  # for a call of survive() that only ends the view


def end_view(group):
    """Ends the view of the group, for a rank that cannot make its next call. Calls of the other ranks raise Broken.
    Then all ranks call begin_view(). Local."""
    with contextlib.suppress(Error):  # Timeout: the others come later
        group.survive(_END_SECONDS)


def begin_view(group, seconds):
    """Begins the next view, and returns when each of its ranks has made this call. Collective among the ranks that
    remain. If a view begins while a rank is still in end_view(), that rank ends the view by this call, and all ranks
    begin another one."""
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
    """Returns settings of Group.exchange that leave each expert with the rank that owns it in a view of all ranks.
    Otherwise an exchange of a view that lacks ranks would divide the experts among the ranks of the view."""
    placed = settings.get("expert_rank") or settings.get("expert_ranks")
    if placed or len(group.view[1]) == group.size:
        return settings
    return {**settings, "expert_ranks": list(range(group.size))}
