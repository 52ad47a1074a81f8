"""The state of a low-latency handle, and the rows of a dispatch, which are views of the window. The rows arrive before
the dispatch returns, or when the caller calls a hook.

L experts of this rank, R ranks, C = R * M rows per expert, H hidden.
"""

import numpy as np
import torch

from ferry import _core
from ferry.deep_ep import handles
from ferry.errors import Capacity

_FP8 = getattr(torch, "float8_e4m3fn", torch.uint8)  # torch without the type has the bytes
_GROUP = 128  # channels that share a scale


class Sent:
    """The state of a handle: the top-k ids of a dispatch, and its route after the rows have been received."""

    made_by = "Buffer.low_latency_dispatch"

    def __init__(self, exchange, ids, active_ranks, max_tokens, num_experts, owner):
        """ids is a numpy array [T, K]."""
        self.owner = owner
        self.exchange = exchange
        self.ids = ids.copy()  # a copy, as the caller may write to topk_idx before the combine
        self.active_ranks = active_ranks  # None: those of the view
        self.max_tokens = max_tokens
        self.num_experts = num_experts
        self.route = None  # ferry.Handle; None until the rows have been received
        self.outputs = None  # [L, C, H] of the window, for a combine with zero_copy

    def takes_part(self, rank):
        """Whether `rank` is active in this dispatch. A rank that is not active sends and receives nothing and waits for
        no rank; the wait times in the statistics of its exchange are those of earlier calls."""
        return self.active_ranks is None or rank in self.active_ranks


class Arrival:
    """The receive half of a dispatch. It fills two tensors of the handle, source_tokens int32 [L, C] and layout int64
    [L, R], and the counts, int32 [L]."""

    def __init__(self, sent, rank, num_ranks, statistics):
        """statistics is (counts, waits), the caller's tensors to which numbers are added; each may be None."""
        num_local, capacity = sent.exchange.num_local_experts, num_ranks * sent.max_tokens
        self._sent, self._rank, self._statistics = sent, rank, statistics
        self.counts = torch.empty(num_local, dtype=torch.int32)
        _, (self.layout, self.source_tokens) = handles.allocate(
            sent, (np.int64, (num_local, num_ranks)), (np.int32, (num_local, capacity)))
        self._has_rows = sent.takes_part(rank) and num_local > 0

    def now(self, received, x, wire):
        """Returns (rows, scales or None, None) of a dispatch that has been received, as views of the window."""
        self._fill(received)
        if not self._has_rows:
            return (*padded_rows(self.source_tokens.shape, x, wire), None)
        return received.rows, received.scales, None

    def later(self, operation, x, wire):
        """Returns (rows, scales or None, hook). The tensors are views of the window, and are complete after hook() has
        been called; a second call does nothing. When earlier views keep all buffers of the window in use, or this rank
        receives no rows, the tensors are new ones."""
        views = self._coming(operation)
        rows, scales = views or padded_rows(self.source_tokens.shape, x, wire)
        to_fill = () if views else (rows, scales)
        pending = [operation]

        def hook():
            while pending:
                self._sent.owner.check("hook")
                self._fill(pending.pop().recv(), *to_fill)

        return rows, scales, hook

    def _coming(self, operation):
        """Returns (rows, scales or None), views of the window where the rows will arrive. Returns None when no buffer
        of the window is free, or when this rank receives no rows."""
        if not self._has_rows:
            return None
        try:
            memory = operation.memory()
        except Capacity:
            return None
        return memory.rows, memory.scales

    def _fill(self, received, rows=None, scales=None):
        """Fills the tensors of the handle and the counts, and adds to the statistics. The received rows and scales are
        copied to `rows` and `scales` where these are given."""
        sent = self._sent
        sent.route = received.handle
        if self._has_rows:
            _core.hand_over_padded(received, self.counts, self.layout, self.source_tokens, rows, scales)
        else:
            self.source_tokens.fill_(-1)
            self.layout.zero_()
            self.counts.zero_()
        counts, waits = self._statistics
        if counts is not None:
            counts.add_(self.counts)
        if waits is not None and sent.takes_part(self._rank):
            add_waits(waits, sent.exchange.stats().dispatch_wait_ns, self._rank)


def padded_rows(places, x, wire):
    """Makes uninitialised (rows [L, C, H], scales or None) in the form that a dispatch of x [T, H] with the wire format
    `wire` returns. `places` is (L, C)."""
    num_local, capacity = places
    hidden = x.shape[1]
    if wire == "none":
        return x.new_empty((num_local, capacity, hidden)), None
    groups = -(-hidden // _GROUP)
    columns, dtype = (-(-groups // 4), torch.int32) if wire == "fp8_ue8m0" else (groups, torch.float32)
    by_column = torch.empty((num_local, columns, -(-capacity // 4) * 4), dtype=dtype)  # columns begin at 16 bytes
    return torch.empty((num_local, capacity, hidden), dtype=_FP8), by_column[:, :, :capacity].transpose(1, 2)


def add_waits(statistics, waits_ns, rank):
    """Adds the nanoseconds waited for each source rank to `statistics`: int64 [R], or the row of `rank` of [R, R]."""
    (statistics if statistics.dim() == 1 else statistics[rank]).add_(torch.tensor(waits_ns))
