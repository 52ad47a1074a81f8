#!/usr/bin/env python3
"""`ferry launch --hosts` on hosts that are apart: ranks run there, end with the launcher, and form a group.
Called by ctest with the ferry program, and faults_rank where hosts can be connected; exit code 77 where there are no
hosts."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

import hosts
from hosts import Hosts

FERRY = sys.argv.pop(1)
FAULTS_RANK = sys.argv.pop(1) if len(sys.argv) > 1 and "faults_rank" in sys.argv[1] else None
LIMIT_S = 100


class Launch(unittest.TestCase):
    def setUp(self):
        self.bench = Hosts(2)
        self.bench.__enter__()
        self.addCleanup(self.bench.__exit__)

    def command(self, *words):
        return [FERRY, "launch", "--hosts", "a:2,b:2", *words]

    def launch(self, *words, **options):
        return subprocess.run(self.command(*words), env=self.bench.environment, capture_output=True, text=True,
                              timeout=LIMIT_S, **options)

    def ranks_on(self, name):
        return int(self.bench.run(name, "sh", "-c", "grep -lx sleep /proc/[0-9]*/comm | wc -l").stdout)

    def ranks_come_to(self, count):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            found = [self.ranks_on(name) for name in "ab"]
            if found == [count, count]:
                break
            time.sleep(0.05)
        return found

    def test_ranks_run_where_they_should(self):
        done = self.launch("--", "sh", "-c", "echo $(hostname) $LOCAL_RANK $(pwd)")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()),
                         [f"[{rank}] {'ab'[rank // 2]} {rank % 2} {os.getcwd()}" for rank in range(4)])

    def test_ranks_end_with_the_launcher(self):
        process = subprocess.Popen(self.command("--", "sleep", "1000"), env=self.bench.environment)
        self.assertEqual(self.ranks_come_to(2), [2, 2])
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertEqual(self.ranks_come_to(0), [0, 0])

    def test_a_failure_on_one_host_ends_the_others(self):
        done = self.launch("--grace", "0.3", "--", "sh", "-c", "[ $RANK = 3 ] && exit 7; exec sleep 1000")
        self.assertEqual(done.returncode, 7)
        self.assertIn("on b: rank 3 (pid", done.stderr)
        self.assertEqual(self.ranks_come_to(0), [0, 0])

    def test_a_host_that_goes_down_is_named(self):
        process = subprocess.Popen(self.command("--grace", "0.3", "--", "sleep", "1000"), env=self.bench.environment,
                                   stderr=subprocess.PIPE, text=True)
        self.assertEqual(self.ranks_come_to(2), [2, 2])
        self.bench.boxes["b"].close()
        text = process.communicate(timeout=LIMIT_S)[1]
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("the connection to b", text)
        self.assertEqual(self.ranks_on("a"), 0)

    def skip_without_link(self):
        doctor = subprocess.run([FERRY, "doctor", "--json"], capture_output=True, text=True)
        reason = json.loads(doctor.stdout)["network"]["no_link"]
        if reason:
            self.skipTest(reason)

    def test_ranks_form_a_group_and_exchange(self):
        self.skip_without_link()
        done = self.launch("--no-tag", "--", FERRY, "bench", "--mode", "environment", "--hidden", "64", "--experts",
                           "16", "--tokens", "20", "--iterations", "5", "--check", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((result["wrong"], result["options"]["ranks"]), (0, 4))
        self.assertGreater(result["level_bytes"]["host"], 0)
        done = self.launch("--no-tag", "--", FERRY, "doctor", "--link", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        links = json.loads(done.stdout)["links"]
        self.assertEqual([link["hosts"] for link in links], [["a", "b"]])
        done = self.launch("--no-tag", "--", FERRY, "topology", "--job", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual((found["num_ranks"], found["nodes"]), (4, [0, 0, 1, 1]))

    def pids_of(self, rank):
        host = "ab"[rank // 2]
        found = self.bench.run(host, "sh", "-c", f"grep -lzx RANK={rank} /proc/[0-9]*/environ").stdout
        return host, [int(path.split("/")[2]) for path in found.split()]

    @unittest.skipIf(FAULTS_RANK is None, "built without UCX")
    def test_ranks_that_are_killed_take_their_places_again(self):
        """One rank, rank 0, and all ranks of a host without rank 0."""
        self.skip_without_link()
        plan = {"FERRY_TEST_SURVIVE": "1", "FERRY_TEST_ADMIT": "1", "FERRY_TEST_NODES": "2"}
        for victims in [3], [0], [2, 3]:
            with self.subTest(victims=victims):
                process = subprocess.Popen(self.command("--restart", "2", "--", FAULTS_RANK, "60", "8", "20"),
                                           env={**self.bench.environment, **plan}, stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE, text=True)
                self.addCleanup(process.kill)
                lines = [process.stdout.readline() for _ in range(4)]
                self.assertEqual(sorted(lines), [f"[{rank}] stopped\n" for rank in range(4)])
                for rank in victims:
                    host, pids = self.pids_of(rank)
                    self.bench.run(host, "kill", "-9", *map(str, pids))
                out, err = process.communicate(timeout=LIMIT_S)
                self.assertEqual(process.returncode, 0, out + err)
                self.assertEqual(err.count("started again as pid"), len(victims), err)
                self.assertEqual(sorted(line for line in out.splitlines() if "view" in line),
                                 [f"[{rank}] view 15" for rank in range(4)], err)

    def test_top_shows_ranks_with_tokens_on_one_host_and_ranks_with_experts_on_the_other(self):
        self.skip_without_link()
        bench = [FERRY, "bench", "--mode", "environment", "--split", "2:2", "--hidden", "64", "--experts", "16",
                 "--iterations", "1000000"]
        process = subprocess.Popen(self.command("--", *bench), env=self.bench.environment, stdout=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        group = self.seen_by_top()
        self.assertEqual([rank["host"] for rank in group["ranks"]], ["a", "a", "b", "b"])
        for rank in group["ranks"]:
            totals, has_tokens = rank["totals"], rank["host"] == "a"
            self.assertEqual(totals["rows_received"] > 0, not has_tokens)
            self.assertEqual(totals["window_bytes"] > 0, not has_tokens)
            self.assertGreater(totals["link_bytes"], 0)
        self.assertLess(group["imbalance"], 1.5)

    def seen_by_top(self):
        """The group of the job, once every rank has finished an operation."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            done = subprocess.run([FERRY, "top", "--once", "--json", "--interval", "0.2", "--hosts", "a:2,b:2"],
                                  env=self.bench.environment, capture_output=True, text=True, timeout=LIMIT_S)
            for group in json.loads(done.stdout)["groups"] if done.returncode == 0 else []:
                if len(group["ranks"]) == 4 and all(rank["totals"]["combines"] for rank in group["ranks"]):
                    return group
        self.fail("the job was not seen")


if __name__ == "__main__":
    hosts.skip_unless_possible()
    unittest.main()
