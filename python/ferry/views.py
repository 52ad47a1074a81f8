"""A check for calls that need all ranks with which the group was made (Group.survive)."""

from ferry.errors import InvalidArgument


def need_all_ranks(group):
    """Raises InvalidArgument in a view of the group that lacks ranks, on all of its ranks."""
    number, ranks = group.view
    if len(ranks) < group.size:
        lacks = [rank for rank in range(group.size) if rank not in ranks]
        raise InvalidArgument(f"this call needs all {group.size} ranks, and view {number} of the group lacks {lacks}: "
                              "make a new group of the ranks that remain")
