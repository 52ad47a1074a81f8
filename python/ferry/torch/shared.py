"""Exchanges that layers share. The layers of one group with equal settings use one exchange, since they make their
calls one after the other. The exchange lives as long as a layer refers to it. Calls ferry.Group."""

import hashlib
import secrets
import weakref

from ferry.views import keeping_owners

# By the id of the group and the settings. A Shared holds its group, so that no other group gets that id.
_held: "weakref.WeakValueDictionary[tuple[int, str], Shared]" = weakref.WeakValueDictionary()


class Shared:
    """An exchange and its group. Experts are of the ranks that own them in a view of all ranks: there the weights
    are. `mark` is equal on the ranks that made the exchange together, and no other exchange has it."""

    def __init__(self, group, settings, mark):
        self.group, self.exchange, self.mark = group, group.exchange(**keeping_owners(group, settings)), mark


def shared(group, settings, besides=None):
    """The Shared of the group with these settings, other than `besides`; a new one unless all ranks hold the same one.
    A rank may have collected the layers that held it earlier than others, and the creation of one may have ended on
    some ranks only, when another died. Collective. Raises what Group.exchange raises, such as ferry.Mismatch for other
    settings on another rank."""
    text = repr(sorted(settings.items()))
    found = _held.get((id(group), text))
    if found is besides:
        found = None
    own = secrets.token_bytes(16) if found is None else found.mark
    said = group.all_gather(own)  # empty for a rank that the view lacks
    if found is None or any(mark not in (b"", own) for mark in said):
        mark = hashlib.blake2b(b"".join([text.encode(), *said]), digest_size=16).digest()
        found = _held[id(group), text] = Shared(group, settings, mark)
    return found
