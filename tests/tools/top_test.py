#!/usr/bin/env python3
"""`ferry top` and FERRY_METRICS beside real ranks: what is counted, a rank that is stopped, other hosts (this one, by a
script in ssh's place), text for Prometheus.
The first argument is the ferry program."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

FERRY = sys.argv.pop(1)
COUNTERS = (Path(__file__).resolve().parents[2] / "src/group/counters.h").read_text()
MAGIC = int(re.search(r"kMagic = (0x\w+);", COUNTERS)[1], 16)
NUM_COUNTERS = len(re.search(r"enum class Counter .*?\{(.*?)kNum\n", COUNTERS, re.S)[1].split())
LIMIT_S = 60  # of what takes a moment, on a busy machine
FOLDER = tempfile.TemporaryDirectory(prefix="ferry-top-")
SSH = Path(FOLDER.name, "ssh")
SSH.write_text('#!/bin/sh\n[ "$1" = nowhere ] && { echo "no host $1" >&2; exit 255; }\nshift\nexec sh -c "$*"\n')
SSH.chmod(0o755)
SHAPE = ["--tokens", "16", "--hidden", "7168", "--experts", "4", "--top-k", "2"]  # of bf16
ENDLESS = ["--iterations", "1000000", "--warmup", "1000000"]


def environment(**variables):
    return {**os.environ, **variables}


def top(*arguments):
    done = subprocess.run([FERRY, "top", *arguments], capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, done.stdout, done.stderr


@contextlib.contextmanager
def job(*options, ranks=2, **variables):
    """Ranks that exchange tokens until they are killed."""
    launch = [FERRY, "launch", "-n", str(ranks), "--grace", str(LIMIT_S), "--"]
    bench = [FERRY, "bench", "--mode", "environment", *SHAPE, *ENDLESS, *options]
    process = subprocess.Popen([*launch, *bench], env=environment(**variables), stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def groups(*arguments):
    _, text, _ = top("--once", "--json", "--interval", "0.1", *arguments)
    return json.loads(text)["groups"] if text else []


def pids_of(group):
    return [rank["totals"]["pid"] for rank in group["ranks"]]


def group_of(process, *arguments):
    """The group of a launch as `ferry top` has it, once each of its ranks has combined."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        for group in groups(*arguments):
            moved = all(rank["totals"]["combines"] for rank in group["ranks"])
            if moved and len(group["ranks"]) == group["num_ranks"] and set(pids_of(group)) <= descendants(process.pid):
                return group
    raise AssertionError("the job was not seen")


def descendants(pid):
    found = set()
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, tasks.read_text().split()):
            found |= {child} | descendants(child)
    return found


class Top(unittest.TestCase):
    def test_shows_what_ranks_do_and_does_not_disturb_them(self):
        with job() as process:
            group = group_of(process)
            for number, rank in enumerate(group["ranks"]):
                totals = rank["totals"]
                self.assertEqual((rank["rank"], rank["ended"], rank["host"]), (number, False, socket.gethostname()))
                self.assertIn("bench --mode environment", rank["program"])
                self.assertLessEqual(abs(totals["dispatches"] - totals["combines"]), 1)
                self.assertEqual(totals["rows_sent"], 32 * totals["dispatches"])
                self.assertEqual(totals["bytes_pulled"], 32 * 2 * 7168 * totals["combines"])
                self.assertGreater(totals["window_bytes"], 0)
                self.assertGreater(rank["resident_bytes"], 0)
                self.assertEqual(totals["link_bytes"], 0)
            again = group_of(process)
            self.assertEqual(again["group"], group["group"])
            self.assertGreater(again["ranks"][0]["totals"]["dispatches"], group["ranks"][0]["totals"]["dispatches"])
            self.assertIsNone(process.poll())

    def test_names_the_rank_that_the_others_wait_for(self):
        with job(ranks=3) as process:
            stopped = pids_of(group_of(process))[1]
            os.kill(stopped, signal.SIGSTOP)
            try:
                time.sleep(0.1)  # until the others have come to their waits
                group = group_of(process)
                _, table, _ = top("--once")
            finally:
                os.kill(stopped, signal.SIGCONT)
            self.assertEqual(group["slowest"], 1)
            for rank in group["ranks"]:
                self.assertEqual(max(rank["wait_shares"], key=rank["wait_shares"].get, default=None),
                                 None if rank["rank"] == 1 else "1")
                self.assertEqual(rank["per_second"]["dispatches"], 0)
            self.assertRegex(table, rf"group {group['group']}: 3 of 3 ranks, ferry bench")
            self.assertRegex(table, r"slowest: rank 1, the others wait for it \d+ % of their time")

    def test_a_rank_that_has_ended_is_told_while_others_run(self):
        with job() as process:
            before = group_of(process)
            victim, other = pids_of(before)
            os.kill(other, signal.SIGSTOP)  # so that `other` does not end when `victim` does
            os.kill(victim, signal.SIGKILL)
            ended = []
            while ended != [True, False] and process.poll() is None:
                ended = [[rank["ended"] for rank in group["ranks"]] for group in groups()
                         if group["group"] == before["group"]][0]
            self.assertEqual(ended, [True, False])

    def test_threads_of_a_process_are_ranks_too(self):
        command = [FERRY, "bench", "--ranks", "2", "--mode", "threads", *SHAPE, *ENDLESS]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                end, seen = time.monotonic() + LIMIT_S, []
                while [process.pid] * 2 not in seen and time.monotonic() < end:
                    seen = [pids_of(group) for group in groups()]
                self.assertIn([process.pid] * 2, seen)
            finally:
                process.kill()

    def test_ranks_without_experts_are_no_imbalance(self):
        with job("--split", "3:1", ranks=4) as process:
            group = group_of(process)
        windows = [rank["totals"]["window_bytes"] > 0 for rank in group["ranks"]]
        received = [rank["totals"]["rows_received"] > 0 for rank in group["ranks"]]
        self.assertEqual((windows, received), ([False, False, False, True],) * 2)
        self.assertEqual(group["imbalance"], 1)

    def test_other_hosts_are_asked_by_ssh(self):
        with job() as process:
            # Both are this one: what they tell of a group is put together.
            group = group_of(process, "--ssh", str(SSH), "--hosts", "a:4,user@b")
            self.assertEqual([rank["rank"] for rank in group["ranks"]], [0, 1])
        code, text, errors = top("--once", "--ssh", str(SSH), "--hosts", "nowhere")
        self.assertEqual((code, text), (1, ""))
        self.assertEqual(errors, "ferry top: host nowhere: its ferry top ended: no host nowhere\n\n")

    def test_files_that_only_look_like_a_group_are_passed_over(self):
        # Ranks, where the rows begin, bytes of a row.
        for head in [(2**60, 4096, 4096), (2**17, 0, 2**21), (2, 2**63, 4096), (2, 4096, 8), (2, 0, 2**63)]:
            with open(os.memfd_create("ferry"), "r+b") as file:
                file.truncate(1 << 38)
                file.write(struct.pack("<5Q", MAGIC, 7, *head))
                file.flush()
                code, text, error = top("--once", "--json", "--interval", "0.1")
            self.assertIn(code, (0, 1), error)
            self.assertNotIn("0000000000000007", text)

    def test_files_of_another_user_are_passed_over(self):
        if os.geteuid() != 0:
            self.skipTest("NOT TESTED: only root can play two users")
        # A whole group of one rank, whose row begins with the process that holds the file.
        program = ("import os, struct, sys\nos.setgid(65534); os.setuid(65534)\n"
                   "file = open(os.memfd_create('ferry'), 'r+b')\nfile.truncate(1 << 20)\n"
                   "file.write(struct.pack('<5Q', int(sys.argv[1]), 7, 1, 4096, 4096))\n"
                   "file.seek(4096); file.write(struct.pack('<Q', os.getpid())); file.flush()\n"
                   "print(flush=True); sys.stdin.read()")
        with subprocess.Popen([sys.executable, "-c", program, str(MAGIC)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as stranger:
            try:
                stranger.stdout.readline()
                self.assertNotIn("0000000000000007", [group["group"] for group in groups()])
            finally:
                stranger.kill()

    def test_rows_of_one_file_are_read_up_to_a_limit(self):
        ranks, row_bytes = 1 << 16, (16 + (1 << 16)) * 8
        with open(os.memfd_create("ferry"), "r+b") as file:
            file.truncate(4096 + ranks * row_bytes)
            file.write(struct.pack("<5Q", MAGIC, 8, ranks, 4096, row_bytes))
            for rank in range(100):
                file.seek(4096 + rank * row_bytes)
                file.write(struct.pack("<Q", os.getpid()))
            file.flush()
            (group,) = [group for group in groups() if group["group"] == "0000000000000008"]
        self.assertEqual(len(group["ranks"]), (1 << 22) // (ranks + NUM_COUNTERS))

    def test_wrong_options_are_refused(self):
        for arguments, words in ((["--interval", "0"], "0.1"), (["--nothing"], "--nothing")):
            code, _, errors = top(*arguments)
            self.assertEqual(code, 2)
            self.assertIn(words, errors)


def samples(text):
    """{(name, labels without the group): value} of a text for Prometheus."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = {}
    for line in lines:
        name, labels, value = re.fullmatch(r'(\w+)\{group="[0-9a-f]{16}",(.*)\} ([0-9.]+)', line).groups()
        found[name, labels] = float(value)
    return found


class Metrics(unittest.TestCase):
    def bench(self, metrics):
        command = [FERRY, "bench", "--ranks", "2", *SHAPE, "--iterations", "5", "--json"]
        return subprocess.run(command, env=environment(FERRY_METRICS=metrics), capture_output=True, text=True,
                              timeout=LIMIT_S)

    def test_a_file_has_the_last_values_when_the_job_is_done(self):
        path = Path(FOLDER.name, "metrics-%p.prom")
        done = self.bench(f"file:{path}")
        self.assertEqual(done.returncode, 0, done.stderr)
        (file,) = Path(FOLDER.name).glob("metrics-*.prom")
        found = samples(file.read_text())
        for rank in range(2):
            dispatches = found["ferry_dispatches_total", f'rank="{rank}"']
            self.assertGreaterEqual(dispatches, 5)
            self.assertEqual(found["ferry_rows_sent_total", f'rank="{rank}"'], 32 * dispatches)
        self.assertIn("# TYPE ferry_window_bytes gauge", file.read_text())
        self.assertTrue(any(name == "ferry_wait_seconds_total" for name, _ in found))

    def test_a_port_answers_while_the_job_runs(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with job(FERRY_METRICS=f"port:{port}") as process:
            group_of(process)
            for _ in range(2):
                asked = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
                asked.request("GET", "/metrics")
                answer = asked.getresponse()
                self.assertEqual(answer.headers["Content-Type"], "text/plain; version=0.0.4")
                found = samples(answer.read().decode())
            self.assertGreater(found["ferry_combines_total", 'rank="1"'], 0)
            taken = self.bench(f"port:{port}")
            self.assertIn(f"FERRY_METRICS=port:{port}: cannot listen: Address already in use", taken.stderr)

    def test_addresses_of_this_host_reply_too(self):
        for address in ("0.0.0.0", "[::1]", "127.0.0.2"):
            family = socket.AF_INET6 if "[" in address else socket.AF_INET
            with socket.socket(family) as free:
                free.bind((address.strip("[]"), 0))
                port = free.getsockname()[1]
            with job(FERRY_METRICS=f"{address}:{port}") as process:
                group_of(process)
                asked = http.client.HTTPConnection(address.strip("[]"), port, timeout=LIMIT_S)
                asked.request("GET", "/metrics")
                self.assertIn("ferry_combines_total", asked.getresponse().read().decode())

    def test_a_link_in_place_of_the_new_file_is_not_followed(self):
        victim, path = Path(FOLDER.name, "victim"), Path(FOLDER.name, "linked.prom")
        victim.write_text("mine")
        Path(f"{path}.new").symlink_to(victim)
        done = self.bench(f"file:{path}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(victim.read_text(), "mine")
        self.assertIn("ferry_dispatches_total", path.read_text())
        self.assertFalse(path.is_symlink())

    def test_what_cannot_be_done_is_refused(self):
        for metrics, words in (("5", 'FERRY_METRICS="5" is none of file:PATH, port:N and ADDRESS:N'),
                               ("host:9400", 'FERRY_METRICS="host:9400" is none of'),
                               ("10.0.0.1:0", 'FERRY_METRICS="0" is not a whole number from 1 to 65535'),
                               ("port:0", 'FERRY_METRICS="0" is not a whole number from 1 to 65535'),
                               ("file:/nowhere/x", "FERRY_METRICS=file:/nowhere/x: cannot write: No such file")):
            done = self.bench(metrics)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
