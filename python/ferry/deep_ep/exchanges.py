"""The exchanges of one group, by shape: what Buffer (both kernel families) and ElasticBuffer dispatch with.

DeepEP's calls say with each dispatch what ferry wants to know once, when an exchange is made: how many tokens any rank
may have. So ranks first tell each other how many they have, what they are about to do and whether they will do it at
all, and make a larger exchange, together, when one has more than fit.
"""

import hashlib
import struct

from ferry.errors import make_error

# What a rank says before a dispatch: tokens, or -1 for "not me"; digest of the call; the call, or the reason.
_HEAD = struct.Struct("<q16s232s")
_REFUSED = -1


class Exchanges:
    """Finds exchanges of one ferry.Group; every method but refuse_combine is collective."""

    def __init__(self, group):
        self.group = group
        self.last = None  # of the last dispatch that returned a new handle, which sets it: where combines are
        self.by_call = {}  # exchanges of hold() that cannot be outgrown, by what a caller finds them sooner by
        self._by_config = {}
        self._described = {}

    def agree(self, num_tokens, call, counts=b""):
        """[(num_tokens, counts)] of all ranks, once all of them said the same `call`.

        call: tuple of (name, value) pairs that print alike on all ranks. counts: R int32, as bytes, that the others
        learn; empty: zeros.
        """
        if call not in self._described:
            text = ", ".join(f"{name}={value}" for name, value in call).encode()
            self._described[call] = hashlib.blake2b(text, digest_size=16).digest(), text
        return self._gather(num_tokens, *self._described[call], counts)

    def refuse(self, error):
        """Takes the place of agree on a rank whose arguments are wrong, and raises `error`."""
        self._gather(_REFUSED, b"", str(error).encode())
        raise error

    def refuse_combine(self, error, exchange=None):
        """Takes the place of a combine and raises `error`; without the exchange it was meant for, in `last`, where the
        others most likely are."""
        exchange = exchange or self.last
        if exchange is not None:
            exchange.refuse_combine(str(error))
        raise error

    def hold(self, max_tokens, key):
        """The exchange of `key`, tuple of (keyword, value) pairs, that takes max_tokens, which ranks agree on.

        One that is outgrown is dropped; handles and rows keep it as long as they need it.
        """
        room, exchange = self._by_config.get(key, (0, None))
        if room < max_tokens or exchange is None:
            room = 1 << max(max_tokens - 1, 0).bit_length()
            exchange = self.group.exchange(max_tokens=room, **dict(key))
            self._by_config[key] = room, exchange
        return exchange

    def _gather(self, num_tokens, digest, text, counts=b""):
        record = _HEAD.pack(num_tokens, digest, text) + counts.ljust(4 * self.group.size, b"\0")
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
