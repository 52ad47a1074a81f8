"""The exchanges of one group, found by shape. ferry.deep_ep, ferry.transformers and ferry.vllm dispatch with them.

An exchange is made for a shape and a largest number of tokens of a rank, but the callers of these packages give both
with each dispatch. So a dispatch begins in the exchange of the dispatch before (`dispatch_again`). A rank refuses there
if it needs another exchange, if its call has other terms than the one before, or if its arguments are wrong. After a
refusal all ranks send each other their numbers of tokens and their calls (`agree`), and make a larger exchange together
when a rank has more tokens than fit. `dispatch` does all of this.

In DeepEP's low-latency calls and in ElasticBuffer the caller gives the largest number of tokens of a rank. So in these
calls the ranks agree only when a shape changes (`change`).

So no rank uses another exchange, or makes a new one, while other ranks wait in the one before. In a new view of the
group, whose ranks may have stopped in different calls, all ranks of the view agree on the first dispatch, unless it
leaves some of them out. Experts stay with the ranks that own them in view 1.
"""

import hashlib
import struct

from ferry.errors import Mismatch, PeerRejected, as_refusal, make_error
from ferry.views import keeping_owners

# The message of a rank before a dispatch: its number of tokens, or -1 to refuse; the digest of its call; the digest of
# the exchanges that it has made; its call as text, or why it refuses.
_HEAD = struct.Struct("<q16s8s224s")
_REFUSED = -1


def _of_view(name, doc):
    """Makes a property whose value is an exchange. In a new view of the group it is None until it is set again."""

    def read(self):
        view, exchange = self._of_view.get(name, (0, None))
        return exchange if view == self.group.view[0] else None

    def write(self, exchange):
        self._of_view[name] = self.group.view[0], exchange

    return property(read, write, doc=doc)


class Exchanges:
    """Finds and makes the exchanges of one ferry.Group. All methods except known(), refuse_combine() and close() are
    collective.

    `make` makes an exchange from its keyword arguments. None means group.exchange, for ranks on the CPU.
    """

    def __init__(self, group, make=None):
        self.group = group
        self._make = make or group.exchange
        self.last = None  # the exchange of the last dispatch that returned a new handle; its caller sets it
        self._of_view = {}  # by the name of an attribute: its view and its exchange
        self._terms = ()  # the terms of the last dispatch_again() that had any
        self.by_call = {}  # exchanges of hold() that no larger one replaces, by arguments of a call (low_latency.py)
        self._by_config = {}
        self._made = bytes(8)  # a digest of what hold() has made, in this order
        self._described = {}

    meeting = _of_view("meeting", "The exchange of the last agreed dispatch, in which dispatch_again() begins.")
    current = _of_view("current", "The exchange of the last dispatch of a caller of change().")

    def agree(self, num_tokens, call, counts=b""):
        """Sends num_tokens and counts to all ranks, and returns [(num_tokens, counts)] of all ranks; a rank that the
        view lacks has no tokens. Raises ferry.Mismatch unless `call` is equal on all ranks, and ferry.PeerRejected if a
        rank refuses. Collective.

        `call` is a tuple of (name, value) pairs that print equally on all ranks. `counts` is at most R + 1 int32, as
        bytes, and is filled up with zeros to R + 1.
        """
        if call not in self._described:
            text = ", ".join(f"{name}={value}" for name, value in call).encode()
            self._described[call] = hashlib.blake2b(text, digest_size=16).digest(), text
        return self._gather(num_tokens, *self._described[call], counts)

    def dispatch(self, send, num_tokens, **settings):
        """Makes a dispatch in the exchange that has these settings and room for the tokens of each rank. Returns
        (exchange, send(exchange)). Raises ferry.Mismatch if the settings differ between ranks, and the errors of
        `send`. Collective.

        `send` makes a dispatch of the exchange that is its argument. It must raise only the errors of that dispatch,
        which the exchange sends to the other ranks.
        """
        key = tuple(settings.items())
        room, exchange = self.known(key)
        received = self.dispatch_again(exchange if num_tokens <= room else None, send)
        if received is None:
            said = self.agree(num_tokens, key)
            exchange = self.hold(max(tokens for tokens, _ in said), key)
            received = send(exchange)
            self.meeting = exchange
        return exchange, received

    def dispatch_again(self, exchange, send, terms=None):
        """Makes the dispatch send(exchange) and returns its result if all ranks use the exchange of the dispatch
        before. Otherwise returns None on every rank, and the caller calls agree(). `exchange` is None on a rank that
        has not found its exchange. Collective.

        `terms` are (name, value) pairs that must be equal on all ranks but that an exchange does not compare; the call
        of agree() contains them too. None means the terms of the dispatch before, for a call in which the exchange
        compares everything that must be equal."""
        meeting, before = self.meeting, self._terms
        self._terms = before if terms is None else terms
        if meeting is None:
            return None
        if exchange is not meeting or self._terms != before:
            meeting.refuse_dispatch("its call needs another exchange")
            return None
        try:
            return send(meeting)
        except PeerRejected:
            return None
        except Mismatch:  # another rank makes a combine; all ranks raise
            raise
        except Exception as error:
            if getattr(error, "group_usable", True):  # the other ranks wait in agree()
                self._say_refused(error)
            raise

    def leave(self, exchange, shape, active_ranks=None):
        """A rank whose call needs another exchange than the call before calls this first. If another rank makes a call
        in the old exchange, that rank raises PeerRejected and this rank raises ferry.Mismatch. Collective.

        `exchange` is the old exchange; without one (None) nothing is done. `shape` has the (name, value) pairs of this
        rank's call, for the error of the other ranks.
        """
        if exchange is None:
            return
        named = ", ".join(f"{name}={value}" for name, value in shape)
        try:
            exchange.skip(f"its call has another shape: {named}", active_ranks)
        except Mismatch as error:
            message = f"this rank's call has another shape than the one before ({named}), not that of all ranks"
            raise make_error("mismatch", message, error.culprit, True) from error

    def change(self, shape, active_ranks=None):
        """Does leave() of `current`, and then all ranks agree on the shape. They do not agree if active_ranks lacks
        ranks of the view, since those do not take part."""
        self.leave(self.current, shape, active_ranks)
        if self._all_take_part(active_ranks):
            self.agree(0, shape)

    def refuse_change(self, exchange, error, active_ranks=None):
        """A rank whose arguments are wrong calls this instead of change() and the dispatch. It refuses on all ranks and
        raises `error`, as InvalidArgument if it is an exception of torch or Python."""
        error = as_refusal(error)
        if exchange is not None:
            exchange.refuse_dispatch(str(error), active_ranks)
        elif self._all_take_part(active_ranks):
            self._say_refused(error)
        raise error

    def _all_take_part(self, active_ranks):
        return active_ranks is None or set(active_ranks).issuperset(self.group.view[1])

    def refuse(self, error):
        """A rank whose arguments are wrong calls this instead of dispatch_again() and agree(). It refuses on all ranks
        and raises `error`, as InvalidArgument if it is an exception of torch or Python."""
        error = as_refusal(error)
        if self.meeting is not None:
            self.meeting.refuse_dispatch(str(error))
        self._say_refused(error)
        raise error

    def refuse_combine(self, error, exchange=None):
        """A rank whose arguments are wrong calls this instead of a combine. It refuses the combine in `exchange` and
        raises `error`. Without an exchange it uses `last`, in which the other ranks most likely are."""
        error = as_refusal(error)
        exchange = exchange or self.last
        if exchange is not None:
            exchange.refuse_combine(str(error))
        raise error

    def known(self, key):
        """Returns (the largest number of tokens, the exchange) of `key`; (0, None) if hold() has not made it. Local."""
        return self._by_config.get(key, (0, None))

    def hold(self, max_tokens, key):
        """Returns an exchange of `key`, a tuple of (keyword, value) pairs, with room for max_tokens tokens of a rank.
        Makes it if there is none; then it is collective. Both arguments are equal on all ranks.

        A smaller exchange of the same key is dropped; handles and rows keep it alive as long as they need it.
        """
        room, exchange = self.known(key)
        if room < max_tokens or exchange is None:
            room = 1 << max(max_tokens - 1, 0).bit_length()
            exchange = self._make(max_tokens=room, **keeping_owners(self.group, dict(key)))
            self._by_config[key] = room, exchange
            self._made = hashlib.blake2b(self._made + repr((room, key)).encode(), digest_size=8).digest()
        return exchange

    def close(self):
        """Closes the exchanges and destroys the group. Local."""
        for _, exchange in self._by_config.values():
            exchange.close()
        self._by_config, self.by_call, self.last, self._of_view = {}, {}, None, {}
        self.group.destroy()

    def _say_refused(self, error):
        self._gather(_REFUSED, b"", str(error).encode())

    def _gather(self, num_tokens, digest, text, counts=b""):
        record = _HEAD.pack(num_tokens, digest, self._made, text) + counts.ljust(4 * (self.group.size + 1), b"\0")
        said = self.group.all_gather(record)  # empty for a rank that the view lacks
        if len({each[24:32] for each in said if each}) > 1:  # a view ended after only some ranks made an exchange
            self._by_config, self.by_call, self._made = {}, {}, bytes(8)
        digests = {each[8:24] for each in said if each}
        if num_tokens != _REFUSED and len(digests) > 1:
            raise _disagreement(said)
        nothing = bytes(len(record))
        return [(int.from_bytes(each[:8], "little"), each[_HEAD.size:]) for each in (one or nothing for one in said)]


def _disagreement(said):
    """Returns the error of agree(): PeerRejected with the first rank that refused, or else Mismatch with the first rank
    whose call differs from that of the lowest rank."""
    heads = {rank: _HEAD.unpack_from(each) for rank, each in enumerate(said) if each}
    texts = {rank: text.rstrip(b"\0").decode(errors="replace") for rank, (*_, text) in heads.items()}
    for rank, (num_tokens, *_) in heads.items():
        if num_tokens == _REFUSED:
            return make_error("peer_rejected", f"rank {rank} refused its call: {texts[rank]}", rank, True)
    first = min(heads)
    other = next(rank for rank, head in heads.items() if head[1] != heads[first][1])
    message = f"rank {first} dispatches with {texts[first]}; rank {other} with {texts[other]}"
    return make_error("mismatch", message, other, True)
