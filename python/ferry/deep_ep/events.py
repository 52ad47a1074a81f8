"""EventOverlap and EventHandle: DeepEP's events, of calls on cuda tensors and of calls on the CPU.

Work on cuda tensors is behind an event of torch. A CPU has no stream that runs beside the caller: calls are complete
when they return, and every wait is over at once. Hooks run once, at the wait; a released event is gone.
"""

import torch


class EventHandle:
    """A moment of a CUDA stream (None: torch's current one); one that has passed, where this process has not used CUDA.
    """

    _event = None

    def __init__(self, stream=None):
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self._event = torch.cuda.Event()
            self._event.record(stream or torch.cuda.current_stream())

    def current_stream_wait(self):
        """What torch's current stream does from now on happens after the moment. The caller does not wait."""
        if self._event is not None:
            self._event.wait()


class EventOverlap:
    """What every call of DeepEP returns last: `event` (None: nothing to wait for) and tensors it keeps alive.

    As a context manager it waits at the end: `with event: other_work()`; `with event(release_handle=True):` lets go of
    the event as well. hook_after_wait, one callable, runs at the first wait, which returns what it returns.
    """

    def __init__(self, event=None, extra_tensors=None):
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait = None
        self._release_at_exit = False

    def current_stream_wait(self, release_handle=False):
        """Waits for the event, then runs the hook and returns its result, or None.

        Raises RuntimeError when there is no event: the call that made this was made without async_finish.
        """
        if self.event is None:
            raise RuntimeError("this EventOverlap has no event to wait for")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        result = hook() if hook is not None else None
        if release_handle:
            self.event = None
        return result

    wait = current_stream_wait

    def register_hook_after_wait(self, hook_after_wait):
        """Sets the hook; RuntimeError when there is one."""
        if self.hook_after_wait is not None:
            raise RuntimeError("this EventOverlap has a hook already")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle=False):
        self._release_at_exit = release_handle
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        release, self._release_at_exit = self._release_at_exit, False
        if self.event is not None:
            self.current_stream_wait(release_handle=release)


_HAPPENED = EventHandle.__new__(EventHandle)  # no moment of a stream


def overlap():
    """The event of a call that has just been completed."""
    return EventOverlap(_HAPPENED)
