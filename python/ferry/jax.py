"""Makes jax.lax.ragged_all_to_all work on CPU devices: importing this module registers the lowering that XLA:CPU lacks.

    import ferry.jax
    moved = jax.jit(jax.shard_map(lambda *args: jax.lax.ragged_all_to_all(*args, axis_name="x"), ...))(...)

The CPU devices of one process are threads, so a device can read the rows of other devices in memory. Each call makes
two callbacks. The first stores the rows that this device sends and returns a number for them, the ticket. The second
reads the rows for the tickets of all devices. Between them XLA's all_gather exchanges the tickets; devices wait only
there. docs/jax.md is the guide, and docs/decisions/jax.md says why no callback waits.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from ferry.errors import Error, InvalidArgument, Mismatch

__all__: list[str] = []


class _Sent(NamedTuple):
    """The rows that a device sends, [sum of sizes, ...], in the order of the devices that receive them."""

    rows: np.ndarray
    sizes: np.ndarray  # [devices] rows for each
    places: np.ndarray  # [devices] first row in the output of each


_lock = threading.Lock()
_tickets = itertools.count()
_sent: dict[int, tuple[_Sent | Error, int]] = {}  # ticket -> (the rows, the number of devices that have not read them)


def _put(rank: np.ndarray, operand: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, places: np.ndarray
         ) -> np.ndarray:
    """Stores a copy of the rows that this device sends, and returns their ticket."""
    sent: _Sent | Error
    if offsets.min() < 0 or sizes.min() < 0 or (offsets.astype(np.int64) + sizes).max() > len(operand):
        rows = f"{offsets.tolist()} + {sizes.tolist()}"
        sent = InvalidArgument(f"ragged_all_to_all: device {rank} sends rows {rows} of {len(operand)}")
    else:
        parts = [operand[first:first + size] for first, size in zip(offsets, sizes)]
        sent = _Sent(np.concatenate(parts), sizes.copy(), places.copy())
    with _lock:
        ticket = next(_tickets) % 2**31
        _sent[ticket] = sent, len(sizes)
    return np.int32(ticket)


def _take(ticket: int) -> _Sent | Error:
    with _lock:
        sent, readers = _sent.pop(ticket)
        if readers > 1:
            _sent[ticket] = sent, readers - 1
    return sent


def _read(rank: np.ndarray, tickets: np.ndarray, output: np.ndarray, recv_sizes: np.ndarray) -> np.ndarray:
    """Returns a copy of the output into which the rows that all devices send to this device have been written."""
    received, device = output.copy(), int(rank)
    all_sent = [_take(int(ticket)) for ticket in tickets]
    for source, sent in enumerate(all_sent):
        if isinstance(sent, Error):
            raise sent
        size, place = int(sent.sizes[device]), int(sent.places[device])
        if size != recv_sizes[source]:
            raise Mismatch(f"ragged_all_to_all: device {source} sends {size} rows to device {device}, which expects "
                           f"{recv_sizes[source]}")
        if place < 0 or place + size > len(received):
            raise InvalidArgument(f"ragged_all_to_all: device {source} sends {size} rows to row {place} of device "
                                  f"{device}, whose output has {len(received)}")
        first = int(sent.sizes[:device].sum())
        received[place:place + size] = sent.rows[first:first + size]
    return received


def _callback(name: str, function: Any, shape_of: Any) -> Primitive:
    """Makes a primitive whose lowering on the CPU calls `function` with numpy arrays.

    jax.pure_callback would first convert the operands to arrays of JAX, in a thread of the pool in which other devices
    may be waiting.
    """

    def lower(ctx, *operands):
        results, _, _ = mlir.emit_python_callback(ctx, lambda *arrays: (function(*arrays),), None, list(operands),
                                                  ctx.avals_in, ctx.avals_out, has_side_effect=True,
                                                  returns_token=False)
        return results

    primitive = Primitive(name)
    primitive.def_abstract_eval(shape_of)
    mlir.register_lowering(primitive, lower, platform="cpu", cacheable=False)
    return primitive


_put_p = _callback("ferry_put", _put, lambda *operands: jax.core.ShapedArray((), np.dtype(np.int32)))
_read_p = _callback("ferry_read", _read, lambda rank, tickets, output, sizes:
                    jax.core.ShapedArray(output.shape, output.dtype))


def _ragged_all_to_all(operand: jax.Array, output: jax.Array, input_offsets: jax.Array, send_sizes: jax.Array,
                       output_offsets: jax.Array, recv_sizes: jax.Array, *, axis_name: Any, axis_index_groups: Any
                       ) -> jax.Array:
    rank = jax.lax.axis_index(axis_name)
    if axis_index_groups is not None:
        rank_in_group = np.zeros(sum(map(len, axis_index_groups)), np.int32)
        for group in axis_index_groups:
            rank_in_group[list(group)] = range(len(group))
        rank = jax.numpy.asarray(rank_in_group)[rank]
    ticket = _put_p.bind(rank, operand, input_offsets, send_sizes, output_offsets)
    tickets = jax.lax.all_gather(ticket, axis_name, axis_index_groups=axis_index_groups)
    return _read_p.bind(rank, tickets, output, recv_sizes)


mlir.register_lowering(jax.lax.ragged_all_to_all_p, mlir.lower_fun(_ragged_all_to_all, multiple_results=False),
                       platform="cpu")
