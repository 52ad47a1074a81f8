"""The state of a low-latency handle of cuda tensors, and the rows of a dispatch. The rows are views of the window, and
are valid until the second dispatch after theirs.

L experts of this rank, R ranks, C = R * M rows per expert, H hidden.
"""

import numpy as np
import torch

from ferry.deep_ep import device_layout, handles
from ferry.errors import InvalidArgument

DEPTH = 2  # the most operations between their halves, and dispatches whose rows are kept
_UNIT = 4  # a column of scales has a multiple of 4 rows, so that each begins at a multiple of 16 bytes


class Padded:
    """A padded exchange, its unfinished operations, and the addresses of the rows that it returned."""

    def __init__(self, exchange, capacity, dtype):
        self.exchange, self.dtype = exchange, dtype
        self.places = exchange.num_local_experts, capacity
        self.combining = None  # the last combine_send; its recv() is the receive half
        self._between_halves = 0  # operations whose hook was not called
        self._received = set()  # addresses of rows in the window

    def check_room(self):
        """Raises InvalidArgument when two operations are between their halves."""
        if self._between_halves >= DEPTH:
            raise InvalidArgument(f"{self._between_halves} operations are in flight, the depth is {DEPTH}: call a hook")

    def hook(self, receive):
        """Returns the hook of an operation. Its first call does the receive half; later calls do nothing."""
        self._between_halves += 1
        pending = [receive]

        def hook():
            while pending:
                self._between_halves -= 1
                pending.pop()()

        return hook

    def received(self, rows):
        """Stores the address of rows that a dispatch returns, for has()."""
        self._received.add(rows.untyped_storage().data_ptr())

    def has(self, rows):
        """Whether `rows` are in the memory of rows that a dispatch returned."""
        return rows.untyped_storage().data_ptr() in self._received

    def outputs(self, dtype, hidden):
        """Returns [L, C, hidden] of the window, for the rows of the next combine. An unfinished combine is completed
        first, since until then other ranks may read its rows in this memory."""
        if self.combining is not None:
            self.combining.recv()
        return self.exchange.outputs(self.places[0] * self.places[1], dtype, hidden).view(*self.places, hidden)

    def is_next(self, outputs):
        """Whether `outputs` is the memory for the next combine, and not that of an earlier one."""
        return outputs.numel() == 0 or outputs.data_ptr() == self.exchange.native.outputs


class DeviceSent:
    """The state of a handle: the shape of a dispatch, and its route after the rows have been received."""

    made_by = "Buffer.low_latency_dispatch of cuda tensors"

    def __init__(self, padded, shape, max_tokens, num_experts, owner):
        self.padded, self.owner = padded, owner
        self.shape = shape  # [T, K]
        self.max_tokens, self.num_experts = max_tokens, num_experts
        self.route = None  # ferry.cuda.Handle
        self.outputs = None  # [L, C, H] of the window, for a combine with zero_copy


class Arrival:
    """The receive half of a dispatch. It fills two tensors of the handle, source_tokens int32 [L, C] and layout int64
    [L, R], and the counts, int32 [L]."""

    def __init__(self, sent, statistics):
        """The counts are added to `statistics`, int32 [L], unless it is None."""
        exchange, (num_local, capacity) = sent.padded.exchange, sent.padded.places
        self._sent, self._statistics = sent, statistics
        self.counts = torch.empty(num_local, dtype=torch.int32, device=exchange.device)
        self.layout, self.source_tokens = handles.allocate_on(
            exchange.device, sent, (np.int64, (num_local, exchange.group.size)), (np.int32, (num_local, capacity)))

    def now(self, received):
        """Returns (rows, scales or None, None) of a dispatch that has been received."""
        scales = _by_column(received.scales)
        self._fill(received, scales)
        return received.rows, scales, None

    def later(self, operation):
        """Returns (rows, scales or None, hook). The first hook() fills rows and scales; later calls do nothing."""
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
    """Makes memory for scales [L, C, n] with the last two dimensions column-major. Returns None without scales."""
    if scales is None:
        return None
    num_local, capacity, columns = scales.shape
    memory = scales.new_empty((num_local, columns, -(-capacity // _UNIT) * _UNIT))
    return memory[:, :, :capacity].transpose(1, 2)
