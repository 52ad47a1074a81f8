"""Exchanges that layers share. The layers of one group with equal settings use one exchange, since they make their
calls one after the other. The exchange lives as long as a layer refers to it. Calls ferry.Group."""

import hashlib
import weakref

from ferry.views import keeping_owners

# By the id of the group and the settings. A Shared holds its group, so that no other group gets that id.
_held: "weakref.WeakValueDictionary[tuple[int, str], Shared]" = weakref.WeakValueDictionary()


class Shared:
    """An exchange and its group. Experts are of the ranks that own them in a view of all ranks: there the weights
    are."""

    def __init__(self, group, settings):
        self.group, self.exchange = group, group.exchange(**keeping_owners(group, settings))


def shared(group, settings):
    """The Shared of the group with these settings, a new one unless all ranks hold it: a rank may have collected the
    layers that held it earlier than others. Collective. Raises what Group.exchange raises, such as ferry.Mismatch for
    other settings on another rank."""
    text = repr(sorted(settings.items()))
    found = _held.get((id(group), text))
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    held = group.all_gather(digest if found is not None else bytes(16))
    if found is None or any(held[rank] != digest for rank in group.view[1]):
        found = _held[id(group), text] = Shared(group, settings)
    return found
