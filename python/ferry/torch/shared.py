"""Exchanges that layers share. The layers of one group with equal settings use one exchange, since they make their
calls one after the other. The exchange lives as long as a layer refers to it. Calls ferry.Group."""

import hashlib
import secrets
import weakref

from ferry.errors import InvalidArgument
from ferry.views import keeping_owners

_NONE, _HELD = b"\0", b"\1"  # the first byte of a rank's message: whether the rank has the exchange

# By the id of the group and the settings. A Shared holds its group, so that no other group gets that id.
_held: "weakref.WeakValueDictionary[tuple[int, str], Shared]" = weakref.WeakValueDictionary()


class Shared:
    """An exchange and its group. In it each expert belongs to the rank that owns it in a view of all ranks, since that
    rank has its weights. `mark` is equal on the ranks that use the exchange together, and no other exchange has it."""

    def __init__(self, group, exchange, mark):
        self.group, self.exchange, self.mark = group, exchange, mark


def shared(group, settings, besides=None):
    """Returns the Shared of the group with these settings, other than `besides`, if all ranks hold the same one; a rank
    that took the place of a lost rank joins its exchange. Otherwise all ranks make a new one: some ranks may have freed
    the layers that held it, or may lack it because a rank died while it was made. Collective. Raises what
    Group.exchange raises, such as ferry.Mismatch for other settings on another rank."""
    key, placed = (id(group), repr(sorted(settings.items()))), keeping_owners(group, settings)
    found = _held.get(key)
    if found is besides:
        found = None
    marks = agreed = _said(group, _HELD + found.mark if found else _NONE + secrets.token_bytes(16))
    held = {one for one in marks if one.startswith(_HELD)}
    if len(held) == 1 and len(set(marks)) > 1:  # ranks without one may be new, and join it
        found = found or _joined(group, placed, min(held)[1:])
        agreed = _said(group, _HELD if found else _NONE)
    if found is None or len(set(agreed)) > 1:
        mark = hashlib.blake2b(b"".join([key[1].encode(), *marks]), digest_size=16).digest()
        found = Shared(group, group.exchange(**placed), mark)
    _held[key] = found
    return found


def _said(group, own):
    """What the ranks of the view say. Collective."""
    return [one for one in group.all_gather(own) if one]  # empty for a rank that the view lacks


def _joined(group, settings, mark):
    """The exchange of the members, which this rank joins if they offer it one with these settings; or None."""
    try:
        return Shared(group, group.join_exchange(**settings), mark)
    except InvalidArgument:
        return None
