"""deep_ep.utils.testing: timers by the wall clock. The timed functions are collective, so every rank makes the same
number of rounds, which is small."""

import contextlib
import os
import sys
import time

_MOST_WARMUPS, _MOST_TESTS = 2, 5


class empty_suppress(contextlib.AbstractContextManager):
    """Does nothing."""

    def __exit__(self, *_):
        pass


class suppress_stdout_stderr:
    """A context manager that discards the output of its block, output of C and C++ code included."""

    def __enter__(self):
        sys.stdout.flush()
        sys.stderr.flush()
        self._kept = [os.dup(descriptor) for descriptor in (1, 2)]
        self._streams = sys.stdout, sys.stderr
        self._nowhere = open(os.devnull, "w")
        for descriptor in (1, 2):
            os.dup2(self._nowhere.fileno(), descriptor)
        sys.stdout = sys.stderr = self._nowhere
        return self

    def __exit__(self, *_):
        sys.stdout, sys.stderr = self._streams
        self._nowhere.close()
        for descriptor, kept in zip((1, 2), self._kept):
            os.dup2(kept, descriptor)
            os.close(kept)


def flush_l2_cache(enabled: bool = True):
    """Does nothing."""


def _times(fn, num_warmups, num_tests, post_fn=None):
    """Calls fn at most 2 times without measuring, then at most 5 times, and returns the seconds of each measured call,
    which are above 0."""
    for _ in range(min(num_warmups, _MOST_WARMUPS)):
        fn()
    times = []
    for _ in range(min(max(num_tests, 1), _MOST_TESTS)):
        begin = time.perf_counter()
        fn()
        times.append(max(time.perf_counter() - begin, 1e-9))
        if post_fn is not None:
            post_fn()
    return times


def bench(fn, num_warmups: int = 50, num_tests: int = 50, post_fn=None, flush_l2: bool = True):
    """Returns (average, least, most) seconds of fn()."""
    times = _times(fn, num_warmups, num_tests, post_fn)
    return sum(times) / len(times), min(times), max(times)


def bench_kineto(fn, kernel_names, num_tests: int = 30, suppress_kineto_output: bool = False, trace_path=None,
                 flush_l2: bool = True, barrier_comm_profiling: bool = False, num_kernels_per_period: int = 1,
                 barrier=None):
    """Returns the seconds of each kernel. There are no kernels on a CPU, so the time of a call is divided evenly among
    the names.

    The result is a float for one name, and a sequence with a float for each of several names. If num_kernels_per_period
    is above 1, each float is replaced by a list of that many. With EP_USE_NVIDIA_TOOLS=1 in the environment the result
    is (1,).
    """
    names = (kernel_names,) if isinstance(kernel_names, str) else tuple(kernel_names)
    with (suppress_stdout_stderr if suppress_kineto_output else empty_suppress)():
        if barrier is not None:
            barrier()
        times = _times(fn, 1, num_tests)
    share = sum(times) / len(times) / len(names) / num_kernels_per_period
    each = share if num_kernels_per_period == 1 else [share] * num_kernels_per_period
    if int(os.environ.get("EP_USE_NVIDIA_TOOLS", 0)):
        return (1,)
    return each if isinstance(kernel_names, str) else type(kernel_names)([each] * len(names))
