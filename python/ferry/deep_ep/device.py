"""Device: what a Buffer whose ranks give it cuda tensors has beside its methods. Exchanges of ferry.cuda, the streams
that its calls keep to, and what a graph that captured them needs. Calls ferry.cuda.

Everything is issued on torch's current stream of the device, so in the order in which the caller works: that a call is
behind previous_event, and that what it returned is behind its event, holds without a stream of this library.
"""

import functools

import torch

import ferry.cuda
from ferry.deep_ep.events import EventHandle, EventOverlap
from ferry.exchanges import Exchanges


class Device:
    """One rank's device in one Buffer."""

    def __init__(self, members, device):
        self.device = device
        self.exchanges = Exchanges(members, functools.partial(ferry.cuda.Exchange, members, device=device))
        self._comm_stream = None
        self._captured = []

    def capturing(self):
        """Whether the current stream captures a graph: then nothing waits on the host, and ranks do not meet."""
        return torch.cuda.is_current_stream_capturing()

    def keep_if_captured(self, *used):
        """A graph that captured a call reads memory of ferry's but does not keep it alive: the buffer does."""
        if self.capturing():
            self._captured.append(used)

    def done(self):
        """The event of what the current stream was given so far. The stream of comm_stream() is behind it too."""
        if self._comm_stream is not None and not self.capturing():
            self._comm_stream.wait_stream(torch.cuda.current_stream(self.device))
        return moment(self.device)

    def comm_stream(self):
        """A stream that is behind all calls made since the first use of this property. No call is issued on it."""
        if self._comm_stream is None:
            self._comm_stream = torch.cuda.Stream(self.device)
            self._comm_stream.wait_stream(torch.cuda.current_stream(self.device))
        return self._comm_stream

    def meet(self, exchange, num_tokens, call, counts=b""):
        """Exchanges.agree, with the errors that kernels of `exchange` (or None) have met since: whatever one rank knows
        of, all ranks raise, and make the call together or not at all."""
        try:
            if exchange is not None:
                exchange.check()
        except Exception as error:
            self.exchanges.refuse(error)
        return self.exchanges.agree(num_tokens, call, counts)


def wait(previous_event):
    """What comes next on the current stream is behind an EventOverlap, if it has an event."""
    event = getattr(previous_event, "event", None)
    if event is not None:
        event.current_stream_wait()


def moment(device):
    """The event of what torch's current stream of the device was given so far."""
    return EventOverlap(EventHandle(torch.cuda.current_stream(device)))
