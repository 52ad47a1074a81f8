"""Two functions of a rank that run at the same time and take turns in their collective calls: a forward pass and a
backward pass.

Ranks must make their calls in one order. So the calls of a pair alternate, the first function's before the second's,
until one function has ended. That order depends only on the number of calls of each function, which is equal on all
ranks. While one function waits in a call the other computes. Only one computes at a time, because they share the
processors of the rank.

The modules of ferry.torch make their calls through take().
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Tuple, TypeVar

from ferry.errors import InvalidArgument

First = TypeVar("First")
Second = TypeVar("Second")

_here = threading.local()  # .pair, and .place (0 or 1) of the function that runs in this thread


def pair(first: Callable[[], First], second: Callable[[], Second]) -> Tuple[First, Second]:
    """Runs both functions at the same time and returns what they return. Collective.

    For a forward and a backward pass of two micro-batches, as in DualPipe: the rows of one travel while the other
    computes. `first` runs in this thread, `second` in another, where torch's settings of a thread (autocast, no_grad)
    are not those of this one: give it the backward pass. All ranks run functions that make the same calls. Those of
    ferry.moe and ferry.torch take turns, whatever their exchanges; calls of an exchange itself do not.

    Both run to their end. Then raises what `first` raised, else what `second` raised. An exception of the experts in a
    forward pass ends that pass on all ranks (ferry.PeerRejected), and does not affect the other function. Raises
    InvalidArgument for a pair in a pair, and for overlap="batches" with gradients in a pair.
    """
    if paired():
        raise InvalidArgument("pair: this function runs in a pair already")
    both = _Pair()
    with ThreadPoolExecutor(1, "ferry.pair") as thread:
        later = thread.submit(both.run, 1, second)
        result = both.run(0, first)
    return result, later.result()


def paired() -> bool:
    """Whether this thread runs a function of a pair."""
    return getattr(_here, "pair", None) is not None


def take(call: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """Makes a collective call; in a pair, waits for the turn of this function first."""
    return _here.pair.take(_here.place, call, arguments, more) if paired() else call(*arguments, **more)


class _Pair:
    def __init__(self) -> None:
        self.computes = threading.Lock()
        self.changed = threading.Condition()
        self.calls = [0, 0]  # for each function, the number of its calls that have returned
        self.ended = [False, False]

    def run(self, place: int, function: Callable[[], Any]) -> Any:
        _here.pair, _here.place = self, place
        try:
            with self.computes:
                return function()
        finally:
            _here.pair = None
            with self.changed:
                self.ended[place] = True
                self.changed.notify_all()

    def take(self, place: int, call: Callable[..., Any], arguments: Any, more: Any) -> Any:
        self.computes.release()
        try:
            with self.changed:
                self.changed.wait_for(lambda: self.is_turn_of(place))
            return call(*arguments, **more)
        finally:
            with self.changed:
                self.calls[place] += 1
                self.changed.notify_all()
            self.computes.acquire()

    def is_turn_of(self, place: int) -> bool:
        """Whether function `place` may make its next call: calls alternate, until one of the functions has ended."""
        return self.ended[1 - place] or self.calls[1 - place] >= self.calls[place] + place
