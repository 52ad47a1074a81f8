"""The exchanges of one group, by shape: what ferry.deep_ep, ferry.transformers and ferry.vllm dispatch with.

Their callers give with each dispatch what an exchange needs once, when it is made: the shape, and how many tokens any
rank may have. So a dispatch begins in the exchange of the dispatch before (`dispatch_again`): a rank that cannot use
it, or will not take part at all, refuses there, and so does one whose call has other terms than the one before. Only
then ranks send each other how many tokens they have and what
they are about to do (`agree`), and make a larger exchange, together, when one has more than fit. `dispatch` does all of
that. DeepEP's low-latency calls and ElasticBuffer say how many tokens any rank may have: their ranks meet when a shape
changes (`change`).

So no rank uses another exchange, or makes a new one, while other ranks wait in the one before.
"""

import hashlib
import struct

from ferry.errors import Mismatch, PeerRejected, as_refusal, make_error

# What a rank says before a dispatch: tokens, or -1 for "not me"; digest of the call; the call, or the reason.
_HEAD = struct.Struct("<q16s232s")
_REFUSED = -1


class Exchanges:
    """Finds exchanges of one ferry.Group; every method but refuse_combine is collective.

    make: what makes one, from its keywords; None: the group, for ranks on the CPU.
    """

    def __init__(self, group, make=None):
        self.group = group
        self._make = make or group.exchange
        self.last = None  # of the last dispatch that returned a new handle, which sets it: where combines are
        self.meeting = None  # of the last dispatch that ranks agreed on: where those of dispatch_again begin
        self._terms = ()  # of the last dispatch_again that gave any
        self.by_call = {}  # exchanges of hold() that cannot be outgrown, by the key that finds them without a meeting
        self._by_config = {}
        self._described = {}

    def agree(self, num_tokens, call, counts=b""):
        """[(num_tokens, counts)] of all ranks, once all of them said the same `call`.

        call: tuple of (name, value) pairs that print equally on all ranks. counts: at most R + 1 int32, as bytes, that
        the others learn, filled up with zeros to R + 1.
        """
        if call not in self._described:
            text = ", ".join(f"{name}={value}" for name, value in call).encode()
            self._described[call] = hashlib.blake2b(text, digest_size=16).digest(), text
        return self._gather(num_tokens, *self._described[call], counts)

    def dispatch(self, send, num_tokens, **settings):
        """(exchange, send(exchange)): a dispatch in the exchange that has these settings and room for the tokens of
        each rank. Raises ferry.Mismatch where ranks give other settings, and what `send` raises.

        send: makes a dispatch of the exchange that it is given. It raises nothing else than what that dispatch raises,
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
        """send(exchange), a dispatch, if all ranks go on with the exchange of the dispatch before; else None on every
        rank, which agree() follows. exchange None: this rank does not know it.

        terms: (name, value) pairs that ranks must agree on and that an exchange does not compare; the call of agree()
        has them. None: those of the dispatch before, as the exchange compares all that matters."""
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
        except Mismatch:  # somebody is in a combine: all know
            raise
        except Exception as error:
            if getattr(error, "group_usable", True):  # the others wait in agree()
                self._say_refused(error)
            raise

    def leave(self, exchange, shape, active_ranks=None):
        """Called before a rank uses another exchange than for the call before. Ranks whose call is like that one are
        there: unless all ranks leave, they get PeerRejected, and this rank ferry.Mismatch.

        exchange: the one to be left; None: there is none. shape: (name, value) pairs of this rank's call, sent to the
        other ranks.
        """
        if exchange is None:
            return
        named = ", ".join(f"{name}={value}" for name, value in shape)
        try:
            exchange.skip(f"its call has another shape: {named}", active_ranks)
        except Mismatch as error:
            message = f"this rank's call has another shape than the one before ({named}), not that of all ranks"
            raise make_error("mismatch", message, error.culprit, True) from error

    def change(self, exchange, shape, active_ranks=None):
        """leave(), and then all ranks agree on the shape. Not where some are left out: they do not come to agree."""
        self.leave(exchange, shape, active_ranks)
        if active_ranks is None:
            self.agree(0, shape)

    def refuse_change(self, exchange, error, active_ranks=None):
        """Takes the place of change() and of the dispatch on a rank whose arguments are wrong, and raises `error`,
        or InvalidArgument for an exception of torch or Python."""
        error = as_refusal(error)
        if exchange is not None:
            exchange.refuse_dispatch(str(error), active_ranks)
        elif active_ranks is None:
            self._say_refused(error)
        raise error

    def refuse(self, error):
        """Takes the place of dispatch_again and agree on a rank whose arguments are wrong, and raises as
        refuse_change does."""
        error = as_refusal(error)
        if self.meeting is not None:
            self.meeting.refuse_dispatch(str(error))
        self._say_refused(error)
        raise error

    def refuse_combine(self, error, exchange=None):
        """Takes the place of a combine and raises `error`; without the exchange it was meant for, in `last`, where the
        others most likely are."""
        error = as_refusal(error)
        exchange = exchange or self.last
        if exchange is not None:
            exchange.refuse_combine(str(error))
        raise error

    def known(self, key):
        """(tokens that it takes, the exchange) of `key`; (0, None): hold() has not made it yet."""
        return self._by_config.get(key, (0, None))

    def hold(self, max_tokens, key):
        """The exchange of `key`, tuple of (keyword, value) pairs, that takes max_tokens, which ranks agree on.

        One that is outgrown is dropped; handles and rows keep it as long as they need it.
        """
        room, exchange = self.known(key)
        if room < max_tokens or exchange is None:
            room = 1 << max(max_tokens - 1, 0).bit_length()
            exchange = self._make(max_tokens=room, **dict(key))
            self._by_config[key] = room, exchange
        return exchange

    def close(self):
        """Closes the exchanges and destroys the group; local."""
        for _, exchange in self._by_config.values():
            exchange.close()
        self._by_config, self.by_call, self.last, self.meeting = {}, {}, None, None
        self.group.destroy()

    def _say_refused(self, error):
        self._gather(_REFUSED, b"", str(error).encode())

    def _gather(self, num_tokens, digest, text, counts=b""):
        record = _HEAD.pack(num_tokens, digest, text) + counts.ljust(4 * (self.group.size + 1), b"\0")
        said = self.group.all_gather(record)
        digests = {each[8:24] for each in said}
        if num_tokens != _REFUSED and len(digests) > 1:
            raise _disagreement(said)
        return [(int.from_bytes(each[:8], "little"), each[_HEAD.size:]) for each in said]


def _disagreement(said):
    """Why ranks do not go on: the first one that refused, else the first two that want different things."""
    heads = [_HEAD.unpack_from(each) for each in said]
    texts = [text.rstrip(b"\0").decode(errors="replace") for _, _, text in heads]
    for rank, (num_tokens, _, _) in enumerate(heads):
        if num_tokens == _REFUSED:
            return make_error("peer_rejected", f"rank {rank} refused its call: {texts[rank]}", rank, True)
    other = next(rank for rank, head in enumerate(heads) if head[1] != heads[0][1])
    message = f"rank 0 dispatches with {texts[0]}; rank {other} with {texts[other]}"
    return make_error("mismatch", message, other, True)
