#!/usr/bin/env python3
"""A server whose ranks are killed by SIGKILL, one every few seconds, and started again by `ferry launch --restart`.

    python bench/serving_kills.py [--ranks 4] [--seconds 600] [--every 10] [--seed 1]

Each rank answers requests, one after the other: a dispatch and a combine of 64 tokens, compared with the oracle. Each
expert is on two ranks. When a rank is killed, the others call survive(), repeat the request in flight and go on with
the copies that remain. When the new process is ready (it says so in a file), they call admit() between two requests;
all make the exchange again, and the new rank gets the weights of its experts. A kill may hit a process that is still
starting, but not a second member. docs/lab/views.md has figures.

Exits with 1 if a result was wrong, a request was skipped, or a rank did not come back.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy

import ferry

TOKENS, HIDDEN, EXPERTS, TOP_K = 64, 256, 16, 4
LOOK_EVERY = 25  # requests between two looks for processes that are ready, and for the end
POOL = 16  # different requests of a rank
LOST = (ferry.PeerLost, ferry.PeerRejected, ferry.Broken)


def began_at():
    """The time.monotonic() at which this process was started."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def weights_of(expert):
    """Small integers, so that all sums are exact."""
    return numpy.random.default_rng(expert).integers(1, 5, HIDDEN).astype("float32")


class Requests:
    """The requests of a rank with their right answers."""

    def __init__(self, rank):
        pool = numpy.random.default_rng((7, rank))
        experts = numpy.stack([weights_of(expert) for expert in range(EXPERTS)])
        self.gates = numpy.broadcast_to(0.5 ** numpy.arange(TOP_K, dtype="float32"), (TOKENS, TOP_K)).copy()
        self.tokens = pool.integers(-4, 4, (POOL, TOKENS, HIDDEN)).astype("float32")
        self.ids = numpy.argsort(pool.random((POOL, TOKENS, EXPERTS)))[..., :TOP_K].copy()
        self.answers = self.tokens * (experts[self.ids] * self.gates[..., None]).sum(2)


class Log:
    """Lines of (time, event, values) that survive the process."""

    def __init__(self, folder, rank):
        self.file = open(folder / f"log-{rank}-{os.getpid()}", "a", buffering=1)

    def add(self, event, *values, at=None):
        print(f"{time.monotonic() if at is None else at:.6f}", event, *values, file=self.file)


class Server:
    """One rank."""

    def __init__(self, group, folder, log):
        self.group, self.folder, self.log = group, folder, log
        self.requests = Requests(group.rank)
        size = group.size
        self.per_rank = 2 * EXPERTS // size  # slots: the experts of this rank, and copies of those of the next one
        held = [(rank * EXPERTS // size + slot) % EXPERTS for rank in range(size) for slot in range(self.per_rank)]
        self.replicas = [[slot for slot, other in enumerate(held) if other == expert] for expert in range(EXPERTS)]
        self.held = held[group.rank * self.per_rank:(group.rank + 1) * self.per_rank]
        self.weights = numpy.zeros((EXPERTS, HIDDEN), "float32")
        self.knows_weights = group.view[0] == 1
        if self.knows_weights:
            for expert in self.held:
                self.weights[expert] = weights_of(expert)
        self.exchange, self.number, self.served, self.began = None, 0, 0, 0.0
        self.begin_view("joined")

    def begin_view(self, event):
        """Local: other ranks go to other experts, and the looks of all ranks begin anew."""
        number, self.members = self.group.view
        self.log.add(event, number, len(self.members))
        (self.folder / f"status-{self.group.rank}").write_text(f"{os.getpid()} {len(self.members)}")
        self.since_look, self.is_first, self.is_prepared = 0, True, False
        there = [[copy for copy, slot in enumerate(slots) if slot // self.per_rank in self.members]
                 for slots in self.replicas]
        self.table = numpy.array([copies[self.group.rank % len(copies)] for copies in there], "int32")

    def prepare(self):
        """Where a rank of the view lacks the exchange, all make it, or wait for the missing ranks: an exchange that is
        made without them has other slots. Collective, at the beginning of each view."""
        told = self.group.all_gather(bytes([self.exchange is not None, self.knows_weights]))
        self.is_prepared = True
        if all(told[rank][0] for rank in self.members):
            return
        self.exchange = None
        if len(self.members) < self.group.size:
            return
        knowing = [part[1:] == b"\1" for part in told]
        if not all(knowing[rank] for rank in self.members):
            calls = ferry.Collectives(self.group)
            for expert, slots in enumerate(self.replicas):
                holders = [slot // self.per_rank for slot in slots if knowing[slot // self.per_rank]]
                calls.broadcast(self.weights[expert], holders[0])
        self.knows_weights = True
        self.exchange = self.group.exchange(
            max_tokens=TOKENS, hidden=HIDDEN, num_experts=self.per_rank * self.group.size, top_k=TOP_K,
            dtype="float32", replicas=self.replicas, replica_choice="by_table")

    def answer(self):
        """One request. Its number grows when the answer is there, so that an error repeats it."""
        which, requests = self.number % POOL, self.requests
        received = self.exchange.dispatch(requests.tokens[which], requests.ids[which], replica_table=self.table)
        factors = self.weights[self.held]
        outputs = received.rows * numpy.repeat(factors, received.handle.tokens_per_expert, axis=0)
        sums = self.exchange.combine(outputs, received.handle, requests.gates)
        if not numpy.array_equal(sums, requests.answers[which]):
            self.log.add("wrong", self.number)
            raise AssertionError(f"request {self.number} of rank {self.group.rank} has a wrong answer")
        if self.is_first:
            self.log.add("first", self.group.view[0])
            self.began, self.is_first = time.monotonic(), False
        self.number += 1
        self.served += 1
        if time.monotonic() - self.began > 0.5:
            self.note_served()

    def note_served(self):
        """Logs the requests since the last note, and the seconds that they took."""
        if self.served > 1:
            now = time.monotonic()
            self.log.add("served", self.number - self.served, self.number, now - self.began, len(self.members))
            self.served, self.began = 0, now

    def look(self):
        """Admits the processes that are ready. Returns whether the server ends. Collective."""
        missing = [rank for rank in range(self.group.size) if rank not in self.members]
        seen = [(self.folder / "end").exists(), *(self.is_ready(rank) for rank in missing)]
        told = [part for part in self.group.all_gather(bytes(seen)) if part]
        ready = [rank for place, rank in enumerate(missing, 1) if all(part[place] for part in told)]
        if ready:
            self.note_served()
            self.log.add("admits", *ready)
            with suppress(ferry.InvalidArgument, ferry.Mismatch):  # a process that does not fit ends no view
                self.group.admit(ready, deadline=20)
                self.exchange = None
                self.begin_view("admitted")
        return not missing and any(part[0] for part in told)

    def is_ready(self, rank):
        with suppress(OSError):
            return Path("/proc", (self.folder / f"ready-{rank}").read_text()).exists()
        return False

    def run(self):
        while True:
            try:
                if not self.is_prepared:
                    self.prepare()
                if self.exchange:
                    self.answer()
                else:
                    time.sleep(0.01)
                self.since_look += 1
                if (self.since_look % LOOK_EVERY == 0 or not self.exchange) and self.look():
                    return
            except LOST as error:
                self.log.add("lost", type(error).__name__, error.culprit)
                self.note_served()
                while not self.group.usable:
                    with suppress(*LOST):
                        self.group.survive()
                        self.begin_view("survived")


def serve(folder):
    rank = int(os.environ["RANK"])
    log = Log(folder, rank)
    log.add("born", at=began_at())
    log.add("imported")
    (folder / f"ready-{rank}").write_text(str(os.getpid()))
    with ferry.init(deadline=60) as group:
        server = Server(group, folder, log)
        server.run()
        server.note_served()
        log.add("end", server.number)


# The program that starts the ranks and kills them.


def ranks_of(launcher):
    """{rank: pid}"""
    found = {}
    with suppress(OSError):  # one of the processes ends
        for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found.update({int(each[5:]): int(pid) for each in variables if each.startswith(b"RANK=")})
    return found


def members_of(folder, ranks):
    """The ranks whose processes are in the view of all ranks, or [] while the view lacks ranks."""
    found = []
    for rank, pid in ranks.items():
        with suppress(OSError, ValueError):
            of_pid, members = map(int, (folder / f"status-{rank}").read_text().split())
            found += [rank] if (of_pid, members) == (pid, len(ranks)) else []
    return found


def kill_one(launcher, folder, size, draw):
    """Kills a rank where no member is missing, else a process that is still to become one, or none. Returns (time,
    rank, pid, was it a member) or None."""
    ranks = ranks_of(launcher)
    if len(ranks) < size:
        return None
    members = members_of(folder, ranks)
    starting = [rank for rank in ranks if not (folder / f"status-{rank}").exists() or
                not (folder / f"status-{rank}").read_text().startswith(f"{ranks[rank]} ")]
    candidates = members if len(members) == size else starting if draw.random() < 0.5 else []
    if not candidates:
        return None
    victim = draw.choice(candidates)
    at = time.monotonic()
    os.kill(ranks[victim], 9)
    return at, victim, ranks[victim], victim in members


def read_logs(folder):
    """{(rank, pid): [(time, event, values)]}"""
    logs = {}
    for path in folder.glob("log-*"):
        lines = [line.split() for line in path.read_text().split("\n")[:-1]]
        _, rank, pid = path.name.split("-")
        if lines:  # else it was killed before the first one
            logs[int(rank), int(pid)] = [(float(at), event, values) for at, event, *values in lines]
    return logs


def first_after(log, event, since):
    return next((at for at, name, _ in log if name == event and at > since), None)


def skipped(log):
    """The requests of a process that no answer was logged for, among those before its last answer."""
    notes = [tuple(map(int, values[:2])) for _, event, values in log if event == "served"]
    return [(one[1], two[0]) for one, two in zip(notes, notes[1:]) if one[1] != two[0]]


def times_of(kills, logs):
    """Milliseconds or seconds by name, one for each kill of a member and for each process that came back."""
    found = {name: [] for name in ("error", "survived", "next", "imported", "joined", "back", "total")}
    for at, victim, pid, was_member in kills:
        others = [log for (rank, _), log in logs.items() if rank != victim and log[0][0] < at and log[-1][0] > at]
        if was_member:
            for name, event in (("error", "lost"), ("survived", "survived"), ("next", "first")):
                times = [first_after(log, event, at) for log in others]
                found[name].append(1000 * (max(filter(None, times), default=at) - at))
        later = sorted((log for (rank, one), log in logs.items() if rank == victim and log[0][0] > at - 0.02
                        and one != pid), key=lambda log: log[0][0])
        first = first_after(later[0], "first", at) if later else None
        if first is None:  # killed again while it started
            continue
        born = later[0][0][0]
        imported, joined = (first_after(later[0], event, 0) for event in ("imported", "joined"))
        for name, value in (("imported", imported - born), ("joined", joined - imported), ("back", first - born),
                            ("total", first - at)):
            found[name].append(value)
    return found


def rates_of(logs, kills, size):
    """Tokens per second of all ranks: before the first kill, in full views later, in views that lack a rank."""
    sums = {"before the first kill": [0, 0.0], "later, all ranks": [0, 0.0], "a rank missing": [0, 0.0]}
    begin = kills[0][0] if kills else float("inf")
    for log in logs.values():
        for at, event, values in log:
            if event != "served":
                continue
            begun, ended, seconds, members = int(values[0]), int(values[1]), float(values[2]), int(values[3])
            phase = ("a rank missing" if members < size else
                     "before the first kill" if at < begin else "later, all ranks")
            sums[phase][0] += (ended - begun) * TOKENS * members  # as if all ranks were as fast as this one
            sums[phase][1] += seconds * members
    return {phase: tokens / seconds * (size if phase != "a rank missing" else size - 1)
            for phase, (tokens, seconds) in sums.items() if seconds}


def report(kills, logs, size, exit_code):
    found = times_of(kills, logs)
    hit = sum(was_member for *_, was_member in kills)
    answered = sum(int(values[1]) - int(values[0]) for log in logs.values() for _, event, values in log
                   if event == "served")
    wrong = sum(event == "wrong" for log in logs.values() for _, event, _ in log)
    gaps = [gap for log in logs.values() for gap in skipped(log)]
    ended = sum(log[-1][1] == "end" for log in logs.values())
    print(f"{len(kills)} kills, {hit} of members, {len(kills) - hit} of processes that started; requests answered: "
          f"{answered}, wrong: {wrong}, skipped: {len(gaps)}; ranks at the end: {ended}; exit code {exit_code}")
    for name, text in (("error", "ms, kill to the error"), ("survived", "ms, kill to the end of survive()"),
                       ("next", "ms, kill to the next answer of the slowest rank"),
                       ("imported", "s, start of a process to its last import"),
                       ("joined", "s, from there to ferry.init()'s return"),
                       ("back", "s, start of a process to its first answer"),
                       ("total", "s, kill to the first answer of the new process")):
        if found[name]:
            print(f"{text}: median {statistics.median(found[name]):.3g}, longest {max(found[name]):.3g} "
                  f"({len(found[name])})")
    for phase, rate in rates_of(logs, kills, size).items():
        print(f"tokens per second, {phase}: {rate:,.0f}")
    return wrong == 0 and not gaps and ended == size and exit_code == 0 and bool(found["back"])


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def drive(options, folder):
    draw = random.Random(options.seed)
    command = [sys.executable, "-m", "ferry", "launch", "-n", str(options.ranks), "--restart", "100000", "--",
               sys.executable, os.path.abspath(__file__), "--serve", str(folder)]
    launcher = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    kills = []
    try:
        is_full = lambda: len(members_of(folder, ranks_of(launcher))) == options.ranks  # noqa: E731
        if not wait_until(is_full, 120):
            raise RuntimeError("the ranks did not meet in 120 s")
        end = time.monotonic() + options.seconds
        while time.monotonic() + options.every < end and launcher.poll() is None:
            time.sleep(options.every * draw.uniform(0.9, 1.1))
            kills += filter(None, [kill_one(launcher, folder, options.ranks, draw)])
        wait_until(is_full, 60)
        time.sleep(1)
        (folder / "end").touch()
        exit_code = launcher.wait(120)
    finally:
        launcher.terminate()
        launcher.wait()
    return report(kills, read_logs(folder), options.ranks, exit_code)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="%(default)s")
    parser.add_argument("--seconds", type=float, default=600, help="%(default)s")
    parser.add_argument("--every", type=float, default=10, help="seconds between two kills (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the kills (%(default)s)")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve)
    with tempfile.TemporaryDirectory(prefix="ferry-serving-") as folder:
        sys.exit(0 if drive(options, Path(folder)) else 1)


if __name__ == "__main__":
    main()
