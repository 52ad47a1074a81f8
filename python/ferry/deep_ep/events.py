"""EventOverlap and EventHandle are DeepEP's events, for calls on cuda tensors and for calls on CPU tensors.

The event of a call on cuda tensors is an event of torch. Calls on CPU tensors are complete when they return, so a wait
for their event returns at once. A hook runs once, at the first wait.
"""

import torch


class EventHandle:
    """A torch event that is recorded on a CUDA stream (None: torch's current one). Where this process has not used
    CUDA there is no torch event, and a wait returns at once."""

    _event = None

    def __init__(self, stream=None):
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self._event = torch.cuda.Event()
            self._event.record(stream or torch.cuda.current_stream())

    def current_stream_wait(self):
        """Makes later work on torch's current stream wait for the event. The calling thread does not wait."""
        if self._event is not None:
            self._event.wait()


class EventOverlap:
    """The last value that every call of DeepEP returns. It has the `event` of the call (None: nothing to wait for), and
    keeps extra_tensors alive.

    As a context manager it waits at the end of the block: `with event: other_work()`. With
    `with event(release_handle=True):` it also sets `event` to None. hook_after_wait is a callable that runs at the
    first wait; that wait returns the value of the hook.
    """

    def __init__(self, event=None, extra_tensors=None):
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait = None
        self._release_at_exit = False

    def current_stream_wait(self, release_handle=False):
        """Waits for the event, then runs the hook and returns its value; None without a hook.

        Raises RuntimeError when there is no event.
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
        """Sets the hook. Raises RuntimeError when one is set already."""
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


_HAPPENED = EventHandle.__new__(EventHandle)  # without a torch event, so a wait returns at once


def overlap():
    """Returns the event of a call that is complete."""
    return EventOverlap(_HAPPENED)
