#!/usr/bin/env python3
"""Tests hosts.py itself: what hosts must share is shared, everything else is separate, and nothing of the hosts
remains. Called by ctest; exit code 77 where there are no hosts."""

import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import hosts
from hosts import Hosts

HERE = Path(__file__).resolve().parent
PORT = 7000
RECEIVE = f"""
import socket, sys
s = socket.create_server(("0.0.0.0", {PORT}))
s.settimeout(20)
print("up", flush=True)
c = s.accept()[0]
c.settimeout(3)
got = 0
try:
    while part := c.recv(1 << 20): got += len(part)
except TimeoutError:
    print("silence", end=" ")
print(got)
"""
SEND = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
s.sendall(bytes(int(sys.argv[3])))
print("sent", flush=True)
sys.stdin.readline()
"""


def begin(bench, name, script, *arguments):
    words = bench.command(name, sys.executable, "-c", script, *map(str, arguments))
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Bench(unittest.TestCase):
    def send(self, bench, source, target, num_bytes):
        """(seconds, bytes that came)"""
        receiver = begin(bench, target, RECEIVE)
        self.assertEqual(receiver.stdout.readline(), "up\n")
        start = time.monotonic()
        begin(bench, source, SEND, target, PORT, num_bytes).communicate()
        got = receiver.communicate()[0].strip()
        return time.monotonic() - start, int(got)

    def test_hosts_have_names_and_shared_memory_of_their_own(self):
        with Hosts(2) as bench:
            self.assertEqual([bench.run(name, "hostname").stdout for name in "ab"], ["a\n", "b\n"])
            bench.run("a", "touch", "/dev/shm/of-a", check=True)
            self.assertEqual(bench.run("b", "ls", "/dev/shm").stdout, "")
            self.assertFalse(Path("/dev/shm/of-a").exists())
            self.assertEqual(bench.run("b", "pwd").stdout.strip(), os.getcwd())

    def test_every_pair_of_four_hosts_is_joined(self):
        with Hosts(4) as bench:
            for source in bench.names:
                for target in bench.names:
                    if source != target:
                        self.assertEqual(self.send(bench, source, target, 1000)[1], 1000)

    def test_rate_limits_each_direction(self):
        for count in (2, 3):
            with Hosts(count, rate="100mbit") as bench:
                for source, target in ("ab", "ba"):
                    seconds, got = self.send(bench, source, target, 4_000_000)
                    self.assertEqual(got, 4_000_000)
                    self.assertGreater(seconds, 0.28)  # 0.32 s less the burst
                self.assertGreater(bench.sent_bytes("a"), 4_000_000)

    def test_rate_of_a_rack_limits_what_leaves_it(self):
        with Hosts(4, racks=2, rack_rate="100mbit") as bench:
            for target, least_s, most_s in ("b", 0, 0.25), ("c", 0.28, 5):
                seconds, got = self.send(bench, "a", target, 4_000_000)
                self.assertEqual(got, 4_000_000)
                self.assertTrue(least_s < seconds < most_s, (target, seconds))

    def test_hosts_without_a_cable_are_reached_over_those_between(self):
        with Hosts(4, cables={"ab": "", "bd": "100mbit", "ac": "", "cd": "100mbit"}) as bench:
            seconds, got = self.send(bench, "a", "d", 4_000_000)  # by b, over the cable that has a limit
            self.assertEqual(got, 4_000_000)
            self.assertGreater(seconds, 0.28)
            for source, target in ("da", "bc", "cb", "ab"):
                self.assertEqual(self.send(bench, source, target, 1000)[1], 1000)

    def test_a_cut_is_silent_and_can_be_mended(self):
        with Hosts(2) as bench:
            receiver = begin(bench, "b", RECEIVE)
            receiver.stdout.readline()
            sender = begin(bench, "a", SEND, "b", PORT, 1000)
            self.assertEqual(sender.stdout.readline(), "sent\n")
            bench.cut("a")
            sender.communicate("end\n")
            self.assertEqual(receiver.communicate()[0], "silence 1000\n")
            bench.join("a")
            self.assertEqual(self.send(bench, "a", "b", 10)[1], 10)

    def test_loss_is_repaired_by_tcp(self):
        reason = hosts.why_not(loss=1)
        if reason:
            self.skipTest(reason)
        with Hosts(2, loss=2) as bench:
            self.assertEqual(self.send(bench, "a", "b", 3_000_000)[1], 3_000_000)

    def test_nothing_is_left_after_sigkill(self):
        script = "echo $$; $FERRY_SSH a 'echo up; sleep 1000'"
        command = [str(HERE / "hosts.py"), "--hosts", "2", "--", "sh", "-c", script]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        pids = [int(process.stdout.readline())]
        self.assertEqual(process.stdout.readline(), "up\n")
        children = Path(f"/proc/{process.pid}/task").glob("*/children")
        pids += [int(pid) for file in children for pid in file.read_text().split()]
        self.assertGreaterEqual(len(pids), 4)  # two hosts, the command, and what it runs on host a
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.read()  # ends when the last process of the hosts has ended
        process.stdout.close()
        end = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual([pid for pid in pids if Path(f"/proc/{pid}").exists()], [])

    def test_ssh_works_beside_and_on_hosts(self):
        with Hosts(2) as bench:
            line = bench.environment["FERRY_SSH"].split()
            for words in ([*line, "b"], bench.command("a", *line, "b")):
                done = subprocess.run([*words, "hostname;", "cat; exit 3"], env=bench.environment, input="word\n",
                                      capture_output=True, text=True)
                self.assertEqual((done.stdout, done.returncode), ("b\nword\n", 3))
            done = subprocess.run([*line, "nowhere", "true"], env=bench.environment, capture_output=True)
            self.assertEqual(done.returncode, 255)

    def test_exit_code_is_that_of_the_command(self):
        command = [str(HERE / "hosts.py"), "--", "sh", "-c", "$FERRY_SSH b 'exit 5'"]
        self.assertEqual(subprocess.run(command).returncode, 5)


if __name__ == "__main__":
    hosts.skip_unless_possible()
    unittest.main(argv=sys.argv[:1])
