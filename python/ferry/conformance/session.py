"""A session starts ranks, which are processes, and runs clauses on them one after another.

A clause is broken if it does not end before its deadline, or if a process ends during it. The next clause then runs on
new processes."""

import contextlib
import multiprocessing
import multiprocessing.connection
import pickle
import sys
import tempfile
import time
from typing import List, NamedTuple

from . import rank as rank_of_session
from .clauses import clauses_of


_START_SECONDS = 120  # the most time in which ranks start and connect
_FOLLOW_SECONDS = 5  # the most time that the other ranks get after a call of one rank raised


class UnknownClause(ValueError):
    """A name that no clause has."""


class Verdict(NamedTuple):
    """The verdict on one clause. `complaints` are texts "rank r: ..."; there are none if the clause holds."""

    name: str
    text: str
    complaints: List[str]
    seconds: float

    @property
    def holds(self):
        return not self.complaints


class Session:
    """A context manager: `with Session("deep_ep", 2) as session: session.judge("module")`. `deadline` is the seconds
    that a clause may take, `routing` the ids that the clauses trace.* use (routing.read)."""

    def __init__(self, api, ranks=2, device="cpu", seed=1, deadline=60.0, routing=None):
        self.clauses = clauses_of(api)
        self.deadline = deadline
        self._settings = dict(api=api, ranks=ranks, device=device, seed=seed, routing=routing, deadline=deadline,
                              path=list(sys.path))
        self._processes, self._epoch = [], 0
        self._joined = False  # whether the ranks are in one process group and have made the same calls in it

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-")
        self._settings["folder"] = self._folder.name
        return self

    def __exit__(self, *_):
        self._end()
        self._folder.cleanup()

    def judge(self, module, names=None):
        """Runs the clauses with these names (None: all) and yields the Verdict of each. Raises UnknownClause for an
        unknown name."""
        unknown = set(names or ()) - set(self.clauses)
        if unknown:
            raise UnknownClause(f"no clause {', '.join(sorted(unknown))}; there are {', '.join(self.clauses)}")
        for name in names or self.clauses:
            begin = time.monotonic()
            complaints = self._play(module, name)
            yield Verdict(name, self.clauses[name].text, complaints, time.monotonic() - begin)

    def _start(self):
        context = multiprocessing.get_context("spawn")
        settings = pickle.dumps(self._settings)
        for rank in range(self._settings["ranks"]):
            ours, theirs = context.Pipe()
            process = context.Process(target=rank_of_session.entry, args=(theirs, settings, rank), daemon=True,
                                      name=f"conformance rank {rank}")
            process.start()
            theirs.close()
            self._processes.append((process, ours))

    def _end(self):
        for process, pipe in self._processes:
            pipe.close()
            process.kill()
            process.join()
        self._processes, self._joined = [], False

    def _play(self, module, name):
        """Runs one clause and returns the complaints of all ranks."""
        if not self._joined:
            complaints = self._join()
            if complaints:
                return complaints
        complaints, raised = self._ask(("clause", module, name), self.deadline)
        self._joined = self._joined and not raised
        return complaints

    def _join(self):
        """Starts the ranks if none is running, and makes them join a new process group. Returns complaints if they do
        not."""
        if not self._processes:
            self._start()
        self._epoch += 1
        self._joined = True
        return self._ask(("join", self._epoch), _START_SECONDS)[0]

    def _ask(self, command, seconds):
        """Sends a command to the ranks and waits for their replies. Returns (complaints, whether a call raised). If a
        rank does not reply in time, or its process has ended, the processes of all ranks are ended."""
        waiting = {pipe: rank for rank, (_, pipe) in enumerate(self._processes)}
        for pipe in waiting:
            with contextlib.suppress(OSError):  # said below
                pipe.send(command)
        complaints, raised, ended, until = [], False, False, time.monotonic() + seconds
        while waiting:
            ready = multiprocessing.connection.wait(list(waiting), max(until - time.monotonic(), 0))
            if not ready:
                break
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    said, failed = pipe.recv()
                except (EOFError, OSError):
                    self._processes[rank][0].join()
                    code = self._processes[rank][0].exitcode
                    said, failed, ended = [f"the process ended with exit code {code}"], True, True
                raised = raised or failed
                until = min(until, time.monotonic() + _FOLLOW_SECONDS) if failed else until
                complaints += [(rank, text) for text in said]
        complaints += [(rank, "the call did not return in its time") for rank in sorted(waiting.values())]
        if waiting or ended:
            self._end()
        return [f"rank {rank}: {text}" for rank, text in complaints], bool(raised)
