"""One ferry.Group per process group, and one exchange per kind of layer: the layers of a model share them.

They live until their process group is destroyed, which all ranks do at the same point of the program. If they ended
with the last layer, that would be when each rank happens to collect its garbage, and the next model would find them on
some ranks only. Calls ferry."""

import struct
import weakref

import ferry

# As long as gloo waits, because ranks that save a checkpoint or compile come late. A rank that died is noticed at once.
DEADLINE = 1800.0

_by_group = weakref.WeakKeyDictionary()  # Exchanges of a process group, which they must not keep alive


def of(process_group):
    """The Exchanges of this process group. Local: the ranks meet at the first call of a layer."""
    found = _by_group.get(process_group)
    if found is None:
        found = _by_group[process_group] = Exchanges(process_group)
    return found


class Exchanges:
    """The exchanges of one process group."""

    def __init__(self, process_group):
        self._process_group = weakref.ref(process_group)
        self._group = None
        self._made = {}

    def dispatch(self, send, num_tokens, **settings):
        """(exchange, send(exchange)), where the exchange has these settings and room for the tokens of every rank.

        The number of tokens is free, and another on each rank. A call that one rank has too many tokens for is refused
        on all of them; then all ranks make a larger exchange and call again. So no ranks communicate before a call.
        Collective. Raises what send raises for any other reason.
        """
        key = tuple(settings.items())
        exchange = self._made.get(key) or self._make(key, num_tokens, settings)
        try:
            return exchange, send(exchange)
        except (ferry.InvalidArgument, ferry.PeerRejected):
            if self._most(num_tokens) <= exchange.config["max_tokens"]:
                raise
        exchange = self._make(key, num_tokens, settings)
        return exchange, send(exchange)

    def _make(self, key, num_tokens, settings):
        """Handles that a graph keeps for backward hold the exchange that this one takes the place of."""
        if self._group is None:
            self._group = ferry.init(process_group=self._process_group(), deadline=DEADLINE)
        room = 1 << (max(self._most(num_tokens), 1) - 1).bit_length()  # a power of two: few of them are ever made
        self._made[key] = self._group.exchange(max_tokens=room, **settings)
        return self._made[key]

    def _most(self, num_tokens):
        return max(struct.unpack("q", each)[0] for each in self._group.all_gather(struct.pack("q", num_tokens)))
