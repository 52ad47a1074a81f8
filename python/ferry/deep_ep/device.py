"""Device is the part of a Buffer for cuda tensors. It has exchanges of ferry.cuda, the communication stream, and
references that keep memory alive for captured graphs.

All work is issued on torch's current stream of the device, so it runs in the order in which the caller issues it. A
call runs after previous_event, and its results are complete when its event is, without a stream of ferry's own.
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
        """Whether the current stream is capturing a graph. During a capture no call waits on the host, and the ranks do
        not compare their calls (meet)."""
        return torch.cuda.is_current_stream_capturing()

    def keep_if_captured(self, *used):
        """Keeps `used` alive as long as this object if a graph is being captured. A graph reads ferry's memory, but
        does not keep the memory alive."""
        if self.capturing():
            self._captured.append(used)

    def done(self):
        """Returns an event after all work that the current stream has been given. Later work on comm_stream() waits for
        this work too."""
        if self._comm_stream is not None and not self.capturing():
            self._comm_stream.wait_stream(torch.cuda.current_stream(self.device))
        return moment(self.device)

    def comm_stream(self):
        """Returns a stream that waits for the work of all calls. No call is issued on it. It is made at the first use,
        and then waits for the work issued before."""
        if self._comm_stream is None:
            self._comm_stream = torch.cuda.Stream(self.device)
            self._comm_stream.wait_stream(torch.cuda.current_stream(self.device))
        return self._comm_stream

    def meet(self, exchange, num_tokens, call, counts=b""):
        """Does what Exchanges.agree does, after a check for errors in earlier kernels of `exchange` (or None). If one
        rank finds an error, all ranks raise, so either all ranks make the call or none does."""
        try:
            if exchange is not None:
                exchange.check()
        except Exception as error:
            self.exchanges.refuse(error)
        return self.exchanges.agree(num_tokens, call, counts)


def wait(previous_event):
    """Makes later work on the current stream wait for an EventOverlap, if it has an event."""
    event = getattr(previous_event, "event", None)
    if event is not None:
        event.current_stream_wait()


def moment(device):
    """Returns an event that is complete when torch's current stream of the device has finished all work that it has
    been given until now."""
    return EventOverlap(EventHandle(torch.cuda.current_stream(device)))
