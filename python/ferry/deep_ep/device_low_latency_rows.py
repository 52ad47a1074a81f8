"""The state behind a low-latency handle of cuda tensors, and the rows of a dispatch, which are views of the
window, in which they stay until the second dispatch after theirs.

L experts of this rank, R ranks, C = R * M rows per expert, H hidden.
"""

import numpy as np
import torch

from ferry.deep_ep import device_layout, handles
from ferry.errors import InvalidArgument

DEPTH = 2  # operations between their halves, and dispatches whose rows are kept
_UNIT = 4  # rows that a column of scales is a multiple of: columns begin at 16 bytes


class Padded:
    """A padded exchange, and what goes with its calls."""

    def __init__(self, exchange, capacity, dtype):
        self.exchange, self.dtype = exchange, dtype
        self.places = exchange.num_local_experts, capacity
        self.combining = None  # the last combine_send: what has its other half
        self._between_halves = 0  # operations whose hook was not called
        self._received = set()  # addresses of rows in the window

    def check_room(self):
        """Raises where two operations are between their halves."""
        if self._between_halves >= DEPTH:
            raise InvalidArgument(f"{self._between_halves} operations are in flight, the depth is {DEPTH}: call a hook")

    def hook(self, receive):
        """What makes the second half of an operation, once."""
        self._between_halves += 1
        pending = [receive]

        def hook():
            while pending:
                self._between_halves -= 1
                pending.pop()()

        return hook

    def received(self, rows):
        """Remembers where rows that are handed out lie."""
        self._received.add(rows.untyped_storage().data_ptr())

    def has(self, rows):
        """Whether they lie in received rows."""
        return rows.untyped_storage().data_ptr() in self._received

    def outputs(self, dtype, hidden):
        """[L, C, hidden] of the window for the next combine. One that is between its halves is completed first: until
        then other ranks may read what lay there before."""
        if self.combining is not None:
            self.combining.recv()
        return self.exchange.outputs(self.places[0] * self.places[1], dtype, hidden).view(*self.places, hidden)

    def is_next(self, outputs):
        """Whether these are the outputs of the next combine, and not of one that was made."""
        return outputs.numel() == 0 or outputs.data_ptr() == self.exchange.native.outputs


class DeviceSent:
    """The state behind a handle: where a dispatch went, and its route once it was received."""

    made_by = "Buffer.low_latency_dispatch of cuda tensors"

    def __init__(self, padded, shape, max_tokens, num_experts, owner):
        self.padded, self.owner = padded, owner
        self.shape = shape  # [T, K]
        self.max_tokens, self.num_experts = max_tokens, num_experts
        self.route = None  # ferry.cuda.Handle
        self.outputs = None  # [L, C, H] of the window, for a combine with zero_copy


class Arrival:
    """The receive half of a dispatch, and the tensors of a handle that it fills: source_tokens int32 [L, C], layout
    int64 [L, R]; counts int32 [L]."""

    def __init__(self, sent, statistics):
        """statistics: int32 [L] to add the counts to, or None."""
        exchange, (num_local, capacity) = sent.padded.exchange, sent.padded.places
        self._sent, self._statistics = sent, statistics
        self.counts = torch.empty(num_local, dtype=torch.int32, device=exchange.device)
        self.layout, self.source_tokens = handles.allocate_on(
            exchange.device, sent, (np.int64, (num_local, exchange.group.size)), (np.int32, (num_local, capacity)))

    def now(self, received):
        """(rows, scales or None, None)."""
        scales = _by_column(received.scales)
        self._fill(received, scales)
        return received.rows, scales, None

    def later(self, operation):
        """(rows, scales or None, hook): they are there after hook(); a second call is idle."""
        coming = operation.memory()
        scales = _by_column(coming.scales)
        self._sent.padded.received(coming.rows)
        return coming.rows, scales, self._sent.padded.hook(lambda: self._fill(operation.recv(), scales))

    def _fill(self, received, scales):
        handle = self._sent.route = received.handle
        self._sent.padded.received(received.rows)
        device_layout.fill_padded(handle.running_counts, received.sources, self.counts, self.layout, self.source_tokens)
        if scales is not None:
            scales.copy_(received.scales)
        if self._statistics is not None:
            self._statistics.add_(self.counts)


def _by_column(scales):
    """Memory for scales [L, C, n], with the last two dimensions column-major; None without scales."""
    if scales is None:
        return None
    num_local, capacity, columns = scales.shape
    memory = scales.new_empty((num_local, columns, -(-capacity // _UNIT) * _UNIT))
    return memory[:, :, :capacity].transpose(1, 2)
