"""Runs tests of expert parallelism and of torch.distributed on one machine, without a cluster or an accelerator.

    from ferry.testing import ranks

    @ranks(4)
    def test_all_to_all():
        rows = torch.full((4, 8), float(dist.get_rank()))
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows)
        assert received[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]

pytest finds such a function as any other. docs/torch_backend.md is the guide.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import operator
import tempfile
import threading
import unittest
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Iterator, Literal

import torch
import torch.distributed as dist

from ferry.errors import InvalidArgument
from ferry.group import run_threads, spawn

__all__ = ["ranks"]


def ranks(num_ranks: int, *, kind: Literal["processes", "threads"] = "processes", backend: str = "cpu:ferry",
          deadline: float = 60.0) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a function on num_ranks ranks, on each with torch.distributed initialised over `backend`.

    With kind "processes" each rank is a new process, which imports the function's module, so arguments (pytest's
    parameters and fixtures) must be picklable. With "threads" the ranks are threads of this process and start in
    milliseconds. Their Python code takes turns, and they share global variables. deadline is the number of seconds that
    one collective may wait.

    The decorated function raises the exception of the rank that failed first, and skips the test if a rank skips it.
    The results of the ranks are dropped. Raises InvalidArgument for num_ranks below 1 or another kind.
    """
    if num_ranks < 1:
        raise InvalidArgument(f"ranks({num_ranks}): at least 1 is needed")
    if kind not in ("processes", "threads"):
        raise InvalidArgument(f'kind is {kind!r}: "processes" and "threads" are known')

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def test(*args: Any, **kwargs: Any) -> None:
            if kind == "threads":
                with _separate_worlds():
                    store = dist.HashStore()
                    skipped = run_threads(num_ranks, _play, function, args, kwargs, store, backend, deadline,
                                          deadline=deadline)
            else:
                multiprocessing.set_forkserver_preload(["ferry.torch_backend"])  # imports torch once for all tests
                with tempfile.TemporaryDirectory(prefix="ferry-store-") as folder:
                    skipped = spawn(num_ranks, _play_named, function.__module__, function.__qualname__, args, kwargs,
                                    folder, backend, deadline, deadline=deadline, method="forkserver")
            for reason in filter(None, skipped):
                raise unittest.SkipTest(reason)

        return test

    return decorate


def _play_named(group, module, qualname, args, kwargs, folder, backend, deadline):
    function = operator.attrgetter(qualname)(importlib.import_module(module)).__wrapped__
    torch.set_num_threads(1)  # ranks share the cores
    return _play(group, function, args, kwargs, dist.FileStore(f"{folder}/store", group.size), backend, deadline)


def _play(group, function, args, kwargs, store, backend, deadline):
    """Runs the function on one rank; returns the reason why it was skipped, or None."""
    import ferry.torch_backend  # noqa: F401  (torch 2.13 finds the backend by this)

    dist.init_process_group(backend, store=store, rank=group.rank, world_size=group.size,
                            timeout=timedelta(seconds=deadline))
    try:
        function(*args, **kwargs)
        group.barrier()  # no rank leaves while another may be in its last collective
        return None
    except BaseException as error:
        if type(error).__name__ not in ("Skipped", "SkipTest"):  # pytest's and unittest's
            raise
        return str(error) or "skipped"
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


_WORLDS = threading.Lock()


@contextmanager
def _separate_worlds() -> Iterator[None]:
    """Gives each thread a global state of torch.distributed of its own, by the tools of torch's own tests."""
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    isolate = torch._C._distributed_c10d._set_thread_isolation_mode
    with _WORLDS:
        threaded._install_threaded_pg()
        isolate(True)
        try:
            yield
        finally:
            isolate(False)
            threaded._uninstall_threaded_pg()
