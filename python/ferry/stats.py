"""Named tuples that the native module returns."""

from typing import List, NamedTuple


class WindowBytes(NamedTuple):
    """The shared memory of one rank, in bytes."""

    expected: int
    """Allocated when the exchange is made: one receive buffer for balanced routing, with a margin."""
    worst: int
    """Reserved as addresses: all receive buffers, for the case that every rank sends every token to this rank."""


class Stats(NamedTuple):
    """Counters of an exchange since it was made, and the waits of its last operations."""

    dispatches: int
    combines: int
    rows_sent: int
    rows_received: int
    bytes_sent: int
    """Row bytes that dispatch wrote into windows."""
    bytes_pulled: int
    """Row bytes that combine read from windows."""
    bytes_copied: int
    """Row bytes copied into the window by combine, or out of it by dispatch."""
    window_growths: int
    """Times a receive buffer had to grow."""
    link_row_bytes: int
    """Bytes of rows, their scales and sums of them that this rank sent to other nodes."""
    link_bytes: int
    """All bytes that this rank sent to other nodes."""
    dispatch_wait_ns: List[int]
    """[R]: time the last dispatch waited for each source, nanoseconds."""
    combine_wait_ns: List[int]
    """[R]: time the last combine waited for each rank, nanoseconds."""
    imbalance: float
    """Rows of the busiest local expert in the last dispatch, divided by the mean of the local experts; 1 is even."""
