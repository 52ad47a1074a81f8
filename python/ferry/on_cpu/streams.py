"""Stream, Event and graphs of a device that is the CPU. All work is done when a call returns.

current_stream() returns the stream that a program has entered. An event stores the time at which it was recorded. A
graph can be made but not captured: the calls would not run again at replay(), and no error would show it."""

import contextlib
import threading
import time

from ferry.on_cpu.refusal import refusal

_thread = threading.local()
_NO_GRAPHS = "a CPU runs calls at once, there is nothing to capture and replay; run the program without graphs"


class Event:
    """An event. record() stores the time; all work issued before it is complete."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, **_):
        self.enable_timing = enable_timing
        self._time_ns = None

    def record(self, stream=None):
        """Stores the current time."""
        self._time_ns = time.perf_counter_ns()

    def elapsed_time(self, end_event):
        """Returns the milliseconds from this event to end_event, more than 0. Raises RuntimeError unless both were
        made with enable_timing=True and recorded."""
        if not (self.enable_timing and end_event.enable_timing):
            raise RuntimeError("elapsed_time needs two events that were made with enable_timing=True")
        if self._time_ns is None or end_event._time_ns is None:
            raise RuntimeError("elapsed_time needs two events that were recorded")
        return max(end_event._time_ns - self._time_ns, 1) / 1e6

    def query(self):
        """Returns True: the event is complete."""
        return True

    def wait(self, stream=None):
        """Returns at once."""

    def synchronize(self):
        """Returns at once."""

    ipc_handle = refusal("Event.ipc_handle", "events are of one process")
    from_ipc_handle = staticmethod(refusal("Event.from_ipc_handle", "events are of one process"))


class Stream:
    """A stream. Every call on it is complete when the call returns."""

    stream_id = device_index = cuda_stream = npu_stream = 0

    def __init__(self, device=None, priority=0, **_):
        self.device, self.priority = device, priority
        self._entered = []

    def synchronize(self):
        """Returns at once."""

    def query(self):
        """Returns True: no work is queued."""
        return True

    def record_event(self, event=None):
        """Records `event`, or a new event, and returns it."""
        event = Event() if event is None else event
        if isinstance(event, Event):
            event.record(self)
        return event

    def wait_event(self, event):
        """Returns at once: events of a CPU are complete."""

    def wait_stream(self, stream):
        """Returns at once."""

    def __enter__(self):
        self._entered.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *_):
        set_stream(self._entered.pop())


_default = Stream()


def default_stream(device=None):
    """Returns the default stream, which is the same in all threads."""
    return _default


def current_stream(device=None):
    """Returns this thread's current stream."""
    return getattr(_thread, "stream", _default)


def set_stream(stream):
    """Makes `stream` this thread's current one; None changes nothing."""
    if stream is not None:
        _thread.stream = stream


@contextlib.contextmanager
def stream(stream):
    """A context manager. In its block `stream` is this thread's current stream; None changes nothing."""
    before = current_stream()
    set_stream(stream)
    try:
        yield stream
    finally:
        set_stream(before)


class Graph:
    """The type of a graph of a device, for programs that name it."""

    capture_begin = refusal("capture_begin of a graph", _NO_GRAPHS)
    capture_end = refusal("capture_end of a graph", _NO_GRAPHS)
    replay = refusal("replay of a graph", _NO_GRAPHS)
    pool = refusal("pool of a graph", _NO_GRAPHS)

    def __init__(self, keep_graph=False):
        pass

    def reset(self):
        """Does nothing: no graph was captured."""


def graph_refusals(prefix):
    """Returns {name: function} for the functions that capture graphs; they raise NotMapped. `prefix` is the name of the
    module."""
    return {name: refusal(f"{prefix}.{name}", _NO_GRAPHS)
            for name in ("graph", "make_graphed_callables", "graph_pool_handle")}
