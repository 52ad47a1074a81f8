"""What fronts need to know of a view that lacks ranks of its group (Group.survive)."""

from ferry.errors import InvalidArgument


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
