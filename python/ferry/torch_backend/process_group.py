"""The process group of the backend `ferry`. It makes one call of ferry.Collectives for each collective."""

from __future__ import annotations

import atexit
import functools
import itertools
import logging
import os
import resource
import secrets
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ferry import _core, group as groups
from ferry.errors import Broken, Capacity, Error, InvalidArgument, PeerLost
from ferry.torch_backend import threads
from ferry.torch_backend.collectives import Call, CollectiveCalls
from ferry.torch_backend.messages import Messenger, MessageWork
from ferry.torch_backend.splitting import Splitting
from ferry.torch_backend.tensors import Output, one, read
from ferry.torch_backend.work import IN_CALLBACKS, CoalescedWork, FerryWork, Issuer, Record, listed
from ferry.views import end_view

_NO_TIME = timedelta(0)
_WHERE = "ferry/where"  # key in the store of a group: the bytes that each rank may share, and the group's address
_MOST_SHARED = 1 << 40  # bytes of one rank: the limit of ferry.Collectives
_LOADED = secrets.token_hex(8)  # with the pid this names a process, also in containers, where pids begin anew
_LOG = logging.getLogger("ferry.torch_backend")


def _is_subclass_usable(base: type) -> bool:
    try:
        type("Tried", (base,), {})(0, 1)
    except TypeError:
        return False
    return True


_BACKEND = _is_subclass_usable(c10d.Backend)  # false before torch 2.14: the class is then a ProcessGroup


def create(options: Any, _backend_options: Any = None) -> "FerryGroup":
    """Makes a group; torch.distributed calls it. Collective over all ranks of the group."""
    return FerryGroup(options)


class FerryGroup(CollectiveCalls, Splitting, c10d.Backend if _BACKEND else dist.ProcessGroup):  # type: ignore[misc]
    """Collectives and messages of dense CPU tensors, by shared memory on one host and by UCX between hosts.

    Sums are computed in float32 (of float64 and of integers in their own type), with the ranks in ascending order, and
    rounded once. Errors are those of ferry, and name the rank that caused them.
    """

    def __init__(self, options: Any):
        rank, size, store = options.group_rank, options.group_size, options.store
        super().__init__(rank, size)
        self._num_ranks = size
        self._store = store
        self._timeout = options.timeout
        self._group_id = str(options.group_id)
        self._global_ranks = list(getattr(options, "global_ranks_in_group", ()))
        self._coalesced: list[dist.Work] | None = None
        self._begin_splitting()
        make = self._take_place if _is_newcomer(store, rank) else self._meet
        self._group, self._shared_bytes = make({"name": f"torch {self._group_id}",
                                                "deadline": options.timeout.total_seconds()})
        self._begin_view(None)
        _GROUPS.add(self)
        if not _BACKEND:  # torch looks up the devices of a group by what is registered, and calls none of it
            self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM,
                                   _gloo(store, rank, size, options.timeout))

    def _meet(self, settings: dict[str, Any]) -> tuple[_core.Group, int]:
        """Makes the group of all ranks. Returns it and the bytes that each rank may share."""
        rank, size = self.rank(), self._num_ranks
        gather = _gather_of(self._store, rank, size, self._timeout)
        shared_bytes = min(map(int, gather(b"%d" % min(_shareable_bytes() // size, _MOST_SHARED))))
        group = groups.init(all_gather=gather, rank=rank, size=size, **settings)
        if rank == 0:
            self._store.set(_WHERE, f"{shared_bytes} {group.address}")
        return group, shared_bytes

    def _take_place(self, settings: dict[str, Any]) -> tuple[_core.Group, int]:
        """Does what _meet() does, in a process that takes the place of a rank that the group has lost."""
        self._store.wait([_WHERE], self._timeout)
        shared_bytes, address = self._store.get(_WHERE).decode().split(" ", 1)
        if not address:
            raise InvalidArgument(f"rank {self.rank()} of group {self._group_id} was another process before, and a "
                                  "group of several hosts without FERRY_SECRET admits nobody")
        return groups.init(address=address, slot=self.rank(), size=self._num_ranks, **settings), int(shared_bytes)

    def _begin_view(self, by: float | None) -> None:
        """Makes what belongs to a view of the group, by a moment of time.monotonic(). Collective among its ranks."""
        self._calls = _core.Collectives(self._group, creation_deadline=_until(by), shared_bytes=self._shared_bytes)
        self._sequence = self._num_messages = 0  # ranks may have stopped at different numbers
        threads.reserve()
        self._issuer = Issuer(self._group_id)
        self._messenger = Messenger(self._calls, self._group_id)

    # The methods that CollectiveCalls calls.

    def _issue(self, name: str, call: Call) -> FerryWork:
        timeout = getattr(call.opts, "timeout", None)
        if timeout is None or timeout < _NO_TIME:
            timeout = self._timeout
        record = self._record(name, call.tensors)
        work = FerryWork(record, functools.partial(self._run, record, call.run, timeout.total_seconds()), call.outputs)
        asynchronous = getattr(call.opts, "asyncOp", True)
        if self._coalesced is not None:
            self._coalesced.append(work)
            asynchronous = True
        return self._issuer.issue(work, asynchronous)

    def _refuse(self, name: str, error: InvalidArgument) -> None:
        """Sends a refusal in place of a call, so that the other ranks raise PeerRejected."""

        def refuse(_deadline: float) -> None:
            self._calls.refuse(str(error))
            raise error

        record = self._record(name, [])
        self._issuer.issue(FerryWork(record, functools.partial(self._run, record, refuse, 0.0), []), False)

    def _record(self, name: str, tensors: list[torch.Tensor]) -> Record:
        self._sequence += 1
        return Record(self._group_id, name, self._sequence, tensors)

    def _run(self, record: Record, run: Callable[[float], None], deadline: float) -> None:
        with self._named(record, self._latest_calls):
            run(deadline)

    @contextmanager
    def _named(self, record: Record, latest_calls: Callable[[], dict[int, list[str]]] = dict) -> Iterator[None]:
        """Adds the operation to an error, and the global rank of the culprit. Where the error ends the group, logs the
        latest collectives, and adds that of the culprit to the error."""
        try:
            yield
        except Error as error:
            text = f"{record}: {error}"
            names = dict(enumerate(self._global_ranks))
            if names.get(error.culprit, error.culprit) != error.culprit:
                text += f" (rank {error.culprit} of this group is global rank {names[error.culprit]})"
            if not error.group_usable:
                calls = latest_calls()
                if calls.get(error.culprit):
                    text += f"; the latest call of rank {error.culprit} is {calls[error.culprit][-1]}"
                _LOG.error("rank %d: %s\nthe latest collectives of this rank:\n%s%s", self.rank(), text,
                           self._issuer.history(), listed(calls))
            error.args = (text,)
            raise

    def _latest_calls(self) -> dict[int, list[str]]:
        """The latest calls of each other rank, as ferry numbers them: a coalesced collective is several."""
        try:
            return {rank: self._calls.latest_calls(rank) for rank in range(self._num_ranks) if rank != self.rank()}
        except Error:  # the group was destroyed meanwhile
            return {}

    # Calls between two ranks.

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Returns when all ranks have called it. Its error names the missing ranks. `timeout` is a timedelta or
        BarrierOptions."""
        opts = c10d.BarrierOptions()
        opts.asyncOp = False
        opts.timeout = getattr(timeout, "timeout", timeout) or self._timeout
        self.barrier(opts)

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int = 0) -> MessageWork:
        tensor, = one(tensors)
        rows = read(tensor, "tensor")
        return self._issue_message("send", tensor, functools.partial(self._calls.begin_send, rows, destination, tag))

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> MessageWork:
        tensor, = one(tensors)
        out = Output(tensor, "tensor")
        begin = functools.partial(self._calls.begin_recv, out.memory, source, tag)
        return self._issue_message("recv", tensor, begin, out.finish)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> MessageWork:
        return self.recv(tensors, -1, tag)

    def _issue_message(self, name, tensor, begin, finish=None):
        self._num_messages += 1
        record = Record(self._group_id, name, self._num_messages, [tensor])
        begin = functools.partial(begin, deadline=self._timeout.total_seconds())
        work = MessageWork(record, tensor, begin, finish, functools.partial(self._named, record))
        if self._coalesced is not None:
            self._coalesced.append(work)
        return self._messenger.issue(work)

    # Memory.

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether allocate_tensor() makes tensors of this device."""
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
        """A new tensor of one dimension, not initialised. all_gather_into_tensor, reduce_scatter_tensor and broadcast
        of data in such tensors that do not fit the caches need no copy into a window. It is one of torch.empty() where
        the memory that ranks share has no place for it."""
        if not self.supports_tensor_alloc(device):
            raise InvalidArgument(f"allocate_tensor: device is {device}: the backend ferry takes tensors of the CPU")
        try:
            return self._calls.empty(size * dtype.itemsize, torch.uint8).view(dtype)
        except Capacity:
            return torch.empty(size, dtype=dtype)

    # The group.

    def _get_backend(self, device: torch.device) -> Any:
        """The group itself: with torch 2.13 it is its own backend."""
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {device}")
        return self

    @property
    def supports_coalescing(self) -> bool:
        return True

    def start_coalescing(self, *_device: Any) -> None:
        self._coalesced = []

    def end_coalescing(self, *_device: Any) -> CoalescedWork:
        works, self._coalesced = self._coalesced or [], None
        return CoalescedWork(works)

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    def _pause(self) -> None:
        """Ends what this rank does for the view, before the next one."""
        self._issuer.close()
        self._messenger.close()
        self._messenger.join()

    def _go_on(self) -> None:
        """After _pause(), where the view stays: what belongs to it works as before."""
        self._issuer.reopen()
        self._messenger.reopen()

    def survive(self, timeout: timedelta | None = None) -> tuple[int, tuple[int, ...]]:
        """ferry.torch_backend.survive()."""
        if self._group.usable and self._messenger.is_busy():
            raise InvalidArgument("survive: messages of this rank are in flight, and the group is usable")
        by = time.monotonic() + (timeout or self._timeout).total_seconds()
        self._pause()
        while True:
            try:
                view = self._group.survive(_until(by))
            except InvalidArgument:  # refused before the view ended, so its objects go on
                self._go_on()
                raise
            try:
                self._begin_view(by)
                return view
            except (PeerLost, Broken) as error:  # one more was lost meanwhile
                _LOG.warning("rank %d: view %d ended at its beginning: %s", self.rank(), view[0], error)

    def end_view(self) -> None:
        """Ends the calls of the other ranks, for a rank that cannot make its own; then all call survive(). Local."""
        end_view(self._group)

    def admit(self, ranks: Sequence[int], timeout: timedelta | None = None) -> tuple[int, tuple[int, ...]]:
        """ferry.torch_backend.admit()."""
        if self._messenger.is_busy():
            raise InvalidArgument("admit: messages of this rank are in flight")
        by = time.monotonic() + (timeout or self._timeout).total_seconds()
        self._pause()
        try:
            view = self._group.admit(ranks, _until(by))
        except Error:  # this view goes on, or is over and waits for survive()
            self._go_on()
            raise
        self._begin_view(by)
        return view

    def fence(self, rank: int) -> None:
        """ferry.torch_backend.fence()."""
        self._group.fence(rank)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def name(self) -> str:
        return "ferry"

    getBackendName = _get_backend_name = name

    def abort(self) -> None:
        """Leaves the group. Ends the operations in flight with an error on this rank, and on other ranks with the error
        for a lost rank."""
        self._group.interrupt()
        self._end(at_once=False)

    def shutdown(self) -> None:
        """Leaves the group when the operations that were issued have ended, and at once while an exception is handled.

        A rank that fails issues no more, so an operation in flight may be one that the others never come to.
        """
        self._end(at_once=sys.exc_info()[0] is not None)

    def _end(self, at_once: bool) -> None:
        if at_once or self._issuer.is_mine() or self._messenger.is_mine():  # a signal handler interrupts a call
            self._group.destroy()
        self._issuer.close()
        self._messenger.close()
        self._group.destroy()
        self._messenger.join()
        _GROUPS.discard(self)


# Kept until their end: under TORCH_DISTRIBUTED_DEBUG=DETAIL torch keeps the C++ part of a group alone, which without
# its Python part has none of the methods above.
_GROUPS: set[FerryGroup] = set()


@atexit.register
def _end_operations() -> None:
    """Ends the groups before the interpreter does: other ranks may need operations that this rank has issued, and no
    thread may be in the engine or in torch when the interpreter ends."""
    at_once = getattr(sys, "last_type", None) is not None
    try:
        for group in list(_GROUPS):
            try:
                group._end(at_once)
            except KeyboardInterrupt:  # the operations of the other groups are not waited for
                at_once = True
                group._end(at_once)
    finally:
        threads.join()
        for record in list(IN_CALLBACKS):
            _LOG.error("the process ends although a callback of %s has not returned in %g s", record, threads.LONGEST)


def _until(by: float | None) -> float | None:
    """The seconds until a moment of time.monotonic(). One that has passed leaves time for a call in which nobody waits.
    """
    return None if by is None else max(by - time.monotonic(), 0.01)


def _shareable_bytes() -> int:
    """Returns the bytes that all ranks of a group together may share: the size of this machine's memory, or 0 where the
    address space of the process or the size of its files is limited, since that many bytes of both are reserved."""
    limits = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)
    if any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in limits):
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _is_newcomer(store: dist.Store, rank: int) -> bool:
    """Whether another process was this rank of the group before. Stores the name of this process as the rank's."""
    key, process = f"ferry/process/{rank}", f"{_LOADED} {os.getpid()}"
    is_newcomer = store.check([key]) and store.get(key) != process.encode()
    store.set(key, process)
    return is_newcomer


def _gather_of(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Callable[[bytes], list[bytes]]:
    rounds = itertools.count()
    meeting = store.add(f"ferry/meetings/{rank}", 1)  # after the end of a group its ranks may meet again in this store

    def gather(own: bytes) -> list[bytes]:
        number = next(rounds)
        store.set(f"ferry/{meeting}/{number}/{rank}", own)
        keys = [f"ferry/{meeting}/{number}/{peer}" for peer in range(size)]
        store.wait(keys, timeout)
        return [bytes(value) for value in store.multi_get(keys)]

    return gather


def _gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    """Makes a group of Gloo that connects two ranks when one of them first sends to the other."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_default_device(lazy_init=True)]
    return dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, options)
