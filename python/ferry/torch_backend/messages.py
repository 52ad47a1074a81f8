"""Messages of one rank to another: send, recv and recv_anysource of a group, by ferry.Collectives.begin_send and
begin_recv."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Callable, ContextManager

import torch

from ferry.errors import Closed, Error
from ferry.torch_backend import threads
from ferry.torch_backend.work import FerryWork, Record

if TYPE_CHECKING:
    from ferry import _core

_FOR_A_CALLER = 200e-6  # seconds that the thread waits first: a caller that waits at once moves its message itself


class MessageWork(FerryWork):
    """A message. `begin` begins it; `finish` is called when it has been received."""

    def __init__(self, record: Record, tensor: torch.Tensor, begin: Callable[[], _core.Message],
                 finish: Callable[[], None] | None, named: Callable[[], ContextManager[None]]):
        super().__init__(record, self._end, [tensor])
        self._named = named
        self.begin = begin
        self.is_send = finish is None
        self._finish = finish
        self._source = -1
        self._lost: Error | None = None
        self._message: _core.Message | None = None

    def begin_by(self, messenger: "Messenger") -> None:
        self.queue(messenger)
        self._message = self.begin()

    def has_ended(self, error: Error | None) -> bool:
        """Whether it has been moved, or never will be because of the error."""
        self._lost = error
        return self._message.ended or error is not None

    def _end(self) -> None:
        with self._named():
            if not self._message.ended:
                raise self._lost
            self._source = self._message.finish()
        if self._finish is not None:
            self._finish()

    def _source_rank(self) -> int:
        return self._source


class Messenger:
    """Moves the messages of one group that have begun, each as soon as it can go on.

    A message that can go at once has ended when it has been issued. Others move in a thread of the group, or in the
    thread of a caller that waits for one of them.
    """

    def __init__(self, calls: _core.Collectives, name: str):
        self._calls = calls
        self._name = name
        self._closed = False
        self._begin()
        threads.renew_after_fork(self)

    def _begin(self) -> None:
        self._pending: list[MessageWork] = []
        self._serving = False
        self._changed = threading.Condition()  # guards _pending and _serving
        self._turn = threading.Lock()  # held in progress()
        self._mover = 0  # the thread that is there

    def issue(self, work: MessageWork) -> MessageWork:
        with self._changed:
            if self._closed:
                raise Closed(f"{work.record}: the process group was destroyed")
            work.begin_by(self)
            is_refused = work.has_ended(None)
            if not is_refused:
                self._pending.append(work)
        if is_refused:
            work.execute()
            return work
        if self._turn.acquire(blocking=False):
            self._move(wait=False)
        if not work.is_completed():
            self._serve_by_a_thread()
        return work

    def help(self, work: FerryWork) -> None:
        """Moves messages in this thread until `work` has ended, unless another thread does."""
        while not work.is_completed() and self._turn.acquire(blocking=False):
            self._move(wait=True)

    def is_mine(self) -> bool:
        """Whether this thread moves messages. True in a signal handler that interrupts its wait."""
        return self._mover == threading.get_ident()

    def is_busy(self) -> bool:
        with self._changed:
            return bool(self._pending)

    def close(self) -> None:
        """Refuses messages from now on; returns when those that were sent have ended, unless this thread moves them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        while not self.is_mine() and self._sends():
            if self._turn.acquire(blocking=False):
                self._move(wait=True)
                continue
            with self._changed:
                self._changed.wait_for(lambda: not self._sends() or not self._turn.locked())

    def reopen(self) -> None:
        """Takes messages again. Those that are in flight go on."""
        self._closed = False

    def _sends(self) -> list[MessageWork]:
        return [work for work in self._pending if work.is_send]

    def join(self) -> None:
        """Returns when the thread has ended, or after threads.LONGEST seconds; at once if this thread moves messages.
        Call after the end of the group, which ends all messages."""
        with self._changed:
            self._changed.wait_for(lambda: not self._serving or self.is_mine(), threads.LONGEST)

    def _move(self, wait: bool) -> None:
        """Moves messages, and ends the works of those that have been moved. Call with the turn, which this releases."""
        error, futures = None, []
        self._mover = threading.get_ident()
        try:
            try:
                self._calls.progress(wait=wait)
            except Error as raised:
                error = raised
            with self._changed:
                ended = [work for work in self._pending if work.has_ended(error)]
                self._pending = [work for work in self._pending if work not in ended]
            futures = [(work, work.execute()) for work in ended]
        finally:
            self._mover = 0
            self._turn.release()
        with self._changed:
            self._changed.notify_all()
        for work, future in futures:
            if future is not None:
                work.fulfil_apart(future)

    def _serve_by_a_thread(self) -> None:
        """Wakes the thread that moves messages, or starts it. Where no thread can be started, messages move in the next
        call that issues a message or waits for one."""
        with self._changed:
            self._changed.notify_all()
            if not self._serving:
                self._serving = threads.start(f"ferry messages {self._name}", self._serve)

    def _serve(self) -> None:
        while True:
            time.sleep(_FOR_A_CALLER)
            with self._changed:
                while not self._pending and not self._closed:
                    self._changed.wait()
                if not self._pending:
                    self._serving = False
                    self._changed.notify_all()
                    return
            self._turn.acquire()
            self._move(wait=True)
