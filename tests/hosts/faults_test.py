#!/usr/bin/env python3
"""Faults between two hosts of two ranks each, in each phase: a cable is cut, a rank is killed or missing, packets are
lost. A rank that waits for a rank of the other host gets an error in time, which names the right rank, and nothing
remains. Called by ctest with the program faults_rank as its first argument; exit code 77 where there are no hosts."""

import os
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import hosts
from hosts import Hosts

PROGRAM = sys.argv.pop(1)
SIZE = 4
DEADLINE_S = 3
LONG_S = 30
# How long a rank may take to leave after its error: it tells other ranks, which may not hear it, and closes its
# sockets.
LEAVING_S = 4
FEW, MANY = 4, 160  # tokens of each rank
RATE = "12mbit"  # the rows of MANY tokens, 8 KiB each, cross for 1.7 s, as do their sums
UNDER_WAY_S = 0.4
HOST_OF = "aabb"
# Whom the ranks of a host may blame.
CUT = {"a": [2, 3], "b": [0, 1]}
LOST = {"a": [3], "b": [3]}


class Rank:
    """A process on its host; what it says, and when it ended."""

    more = {}  # variables of its environment
    host_of = HOST_OF
    holds = ()  # a command that runs on host a beside its ranks
    blocked = ""  # a rule for the firewall of host a

    def __init__(self, bench, rank, *arguments):
        self.name = self.host_of[rank]
        variables = {"FERRY_ADDR": "tcp://a:4711", "FERRY_RANK": rank, "FERRY_SIZE": SIZE,
                     "FERRY_SECRET": "a secret of this test", "FERRY_TEST_NODES": 2, **self.more}
        words = ["env", *[f"{name}={value}" for name, value in variables.items()], PROGRAM, *map(str, arguments)]
        self.process = subprocess.Popen(bench.command(self.name, *words), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self, number=signal.SIGKILL):
        """Sends the signal to the rank, not to nsenter, which runs the rank."""
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            os.kill(int(children.read()), number)

    def kill_when_it_runs(self):
        pid = self.process.pid
        while not Path(f"/proc/{pid}/task/{pid}/children").read_text() and self.process.poll() is None:
            time.sleep(0.001)
        self.kill()

    def end(self, within_s):
        """(code, culprit, message) of the line "end .."; without that line ("no end", -1, all output)."""
        out, err = self.process.communicate(timeout=within_s)
        found = re.search(r"^end (\w+) (-?\d+) (.*)$", out, re.MULTILINE | re.DOTALL)
        return (found[1], int(found[2]), found[3]) if found else ("no end", -1, out + err)


class Faults(unittest.TestCase):
    def start(self, *arguments, ranks=range(SIZE), hosts=2, **options):
        """Makes hosts and starts ranks. Waits until the ranks have stopped, if `arguments` name a place to stop at."""
        self.bench = Hosts(hosts, **options)
        self.bench.__enter__()
        self.addCleanup(self.bench.__exit__)
        self.ranks = {}
        for rank in ranks:
            self.add(rank, *arguments)
        if len(arguments) > 3:
            for rank in self.ranks.values():
                self.assertEqual(rank.process.stdout.readline(), "stopped\n")

    def add(self, rank, *arguments):
        self.ranks[rank] = Rank(self.bench, rank, *arguments)
        self.addCleanup(self.close, self.ranks[rank].process)

    def close(self, process):
        process.kill()
        process.communicate()

    def go(self):
        for rank in self.ranks.values():
            rank.go()

    def go_slowly(self):
        """Returns while rows are under way."""
        for name in self.bench.names:
            self.bench.boxes[name].tc("qdisc", "add", "dev", "eth0", "root", "tbf", "rate", RATE,
                                      "burst", hosts.BURST, "latency", hosts.LONGEST_QUEUE)
        self.go()
        time.sleep(UNDER_WAY_S)

    def ends(self, within_s):
        """{rank: how it ended} of all ranks in self.ranks, which have within_s in all."""
        end = time.monotonic() + within_s
        return {rank: process.end(max(0.1, end - time.monotonic())) for rank, process in self.ranks.items()}

    def expect_told(self, within_s, culprits, codes=("timeout", "peer_lost"), words=()):
        """All ranks end with an error that names a rank of culprits[host], and leave nothing behind. Returns the
        messages."""
        messages = []
        for rank, (code, culprit, message) in self.ends(within_s).items():
            text = f"rank {rank}: {code} {culprit} {message}"
            expected = culprits[HOST_OF[rank]]
            self.assertIn(code, codes, text)
            self.assertIn(culprit, expected, text)
            self.assertRegex(message, rf"\branks?( \d+ and)? ({'|'.join(map(str, expected))})\b", text)
            for word in words:
                self.assertIn(word, message, text)
            messages.append(message)
        self.expect_nothing_left()
        return messages

    def expect_well(self):
        for rank, end in self.ends(LONG_S).items():
            self.assertEqual(end, ("ok", -1, "\n"), rank)
        self.expect_nothing_left()

    def expect_nothing_left(self):
        for name in "ab":
            left = self.bench.run(name, "sh", "-c", "grep -l faults_rank /proc/[0-9]*/comm; ls /dev/shm")
            self.assertEqual(left.stdout, "")


class Joining(Faults):
    def test_a_rank_never_joins(self):
        self.start(DEADLINE_S, FEW, 1, ranks=[0, 1, 2])
        self.expect_told(DEADLINE_S + LEAVING_S, LOST, codes=["timeout"], words=["did not come to tcp://a:4711"])

    def test_the_link_is_cut(self):
        self.start(DEADLINE_S, FEW, 1, ranks=[0, 1, 2])
        time.sleep(0.3)  # they meet
        self.bench.cut("b")
        self.add(3, DEADLINE_S, FEW, 1)
        self.expect_told(DEADLINE_S + LEAVING_S, CUT, codes=["timeout"])

    def test_a_rank_that_came_is_killed(self):
        for victim in 0, 2:
            with self.subTest(victim=victim):
                self.start(LONG_S, FEW, 1, ranks=[0, 1, 2])
                time.sleep(0.5)  # they wait for rank 3
                self.ranks[victim].kill()
                self.ranks.pop(victim).process.wait()
                self.expect_told(2, {"a": [victim], "b": [victim]}, codes=["peer_lost"])


    def test_a_rank_is_killed_at_any_moment_while_links_are_made(self):
        for step in range(12):
            victim = step % SIZE
            with self.subTest(step=step):
                self.start(DEADLINE_S, FEW, 5000)
                time.sleep(0.03 * step)
                self.ranks[victim].kill_when_it_runs()
                self.ranks.pop(victim).process.wait()
                self.expect_told(DEADLINE_S + 2 * LEAVING_S, {"a": [victim], "b": [victim]},
                                 codes=["timeout", "peer_lost", "broken"])


class LinkIsCut(Faults):
    def cut_stopped(self, *place):
        self.start(DEADLINE_S, FEW, 3, *place)
        self.bench.cut("b")
        self.go()

    def cut_under_way(self, *place):
        """Returns the messages in one text. A rank that has all that it wants may be told in the next operation
        only."""
        self.start(DEADLINE_S, MANY, 2, *place)
        self.go_slowly()
        self.bench.cut("b")
        return "\n".join(self.expect_told(DEADLINE_S + LEAVING_S, CUT))

    def test_before_the_counts_of_a_dispatch(self):
        self.cut_stopped("dispatch", 1)
        self.expect_told(DEADLINE_S + LEAVING_S, CUT, words=["dispatch 3", "counts"])

    def test_while_rows_are_under_way(self):
        self.assertIn("dispatch 1: gave up waiting for ro", self.cut_under_way("dispatch", 0))  # rows, or room

    def test_between_dispatch_and_combine(self):
        self.cut_stopped("combine", 1)
        self.expect_told(DEADLINE_S + LEAVING_S, CUT, words=["combine 4", "outputs"])

    def test_while_sums_are_under_way(self):
        self.assertIn("combine 2: gave up waiting for", self.cut_under_way("combine", 0))

    def test_for_seconds_and_mended_while_ranks_wait(self):
        for seconds in (1, 10):
            with self.subTest(seconds):
                self.start(LONG_S, FEW, 20, "dispatch", 5)
                self.bench.cut("b")
                self.go()
                time.sleep(seconds)
                self.bench.join("b")
                self.expect_well()

    def test_for_ten_seconds_and_mended_while_rows_are_under_way(self):
        self.start(LONG_S, MANY, 2, "dispatch", 0)
        self.go_slowly()
        self.bench.cut("b")
        time.sleep(10)
        self.bench.join("b")
        self.expect_well()

    def test_for_half_of_a_short_deadline_and_mended_while_rows_are_under_way(self):
        """By itself TCP would send again only after 12.6 s."""
        self.start(12, MANY, 2, "dispatch", 0)
        self.go_slowly()
        self.bench.cut("b")
        time.sleep(6.6)
        self.bench.join("b")
        self.expect_well()


class RankIsKilled(Faults):
    """The others are told long before the deadline, since the network says that nobody is there."""

    def kill_under_way(self, *place):
        self.start(LONG_S, MANY, 100, *place)
        self.go_slowly()
        self.ranks[3].kill()
        self.ranks.pop(3).process.wait()
        # "broken": a call that waits for nobody was told before.
        self.expect_told(2 * LEAVING_S, LOST, codes=["peer_lost", "broken"])

    def test_in_a_dispatch(self):
        self.kill_under_way("dispatch", 0)

    def test_in_a_combine(self):
        self.kill_under_way("combine", 0)


class Survival(Faults):
    """The ranks that are left call survive(), and play rounds with right results: with the exchange that they have, and
    with another exchange and collectives, which they make in the new view."""

    def setUp(self):
        Rank.more = {"FERRY_TEST_SURVIVE": 1}
        self.addCleanup(setattr, Rank, "more", {})
        self.addCleanup(setattr, Rank, "host_of", HOST_OF)

    def start_rounds(self, hosts, deadline_s):
        self.start(deadline_s, FEW, 20, hosts=hosts)
        if Rank.blocked:
            self.bench.firewall("a", Rank.blocked)
        if Rank.holds:
            self.addCleanup(self.close, subprocess.Popen(self.bench.command("a", *Rank.holds)))
        for rank in self.ranks.values():
            line = rank.process.stdout.readline()
            self.assertEqual(line, "stopped\n", None if line else rank.process.stderr.read())
        time.sleep(0.2)

    def kill(self, *victims, hosts=2, deadline_s=LONG_S):
        """Kills the victims and returns what the others said."""
        self.start_rounds(hosts, deadline_s)
        for victim in victims:
            self.ranks[victim].kill()
        for victim in victims:
            self.ranks.pop(victim).process.wait()
        said = self.all_said()
        self.expect_nothing_left()
        return said

    def all_said(self):
        ends = {}
        for rank, process in self.ranks.items():
            out, err = process.process.communicate(timeout=2 * LONG_S)
            ends[rank] = out + err
        return ends

    def expect_go_on(self, *victims, **options):
        left = set(range(SIZE)) - set(victims)
        for rank, said in self.kill(*victims, **options).items():
            self.assertIn(f"view {sum(1 << one for one in left)}\nend ok", said, rank)

    def test_one_rank_is_killed(self):
        for victim in range(SIZE):
            with self.subTest(victim=victim):
                self.expect_go_on(victim)

    def test_one_rank_of_each_host_is_killed(self):
        self.expect_go_on(1, 2)

    def test_a_whole_host_is_killed(self):
        self.expect_go_on(2, 3)
        for rank, said in self.kill(0, 1).items():
            self.assertRegex(said, r"end (peer_lost|broken)", rank)

    def test_the_whole_host_of_rank_0_is_killed(self):
        """Ranks 1 to 3 are on two other hosts."""
        Rank.host_of, Rank.more = "abcc", {"FERRY_TEST_SURVIVE": 1, "FERRY_TEST_NODES": 3}
        self.expect_go_on(0, hosts=3)

    def come_back(self, *victims, on, at="a"):
        """Rank 0 is on host a, rank 1 on b, the others on c. The victims are killed, and processes on host `on` take
        their places: these know host `at` as the group's address. Returns what all ranks said."""
        Rank.host_of = "abcc"
        Rank.more = {"FERRY_TEST_SURVIVE": 1, "FERRY_TEST_ADMIT": 1, "FERRY_TEST_NODES": 3}
        self.start_rounds(4, deadline_s=LONG_S)
        for victim in victims:
            self.ranks[victim].kill()
        for victim in victims:
            self.ranks.pop(victim).process.wait()
        Rank.host_of = "".join(on if rank in victims else host for rank, host in enumerate("abcc"))
        Rank.more = {"FERRY_NEWCOMER": 1, "FERRY_TEST_NODES": 3, "FERRY_ADDR": f"tcp://{at}:4711"}
        for victim in victims:
            self.add(victim, LONG_S, FEW, 20)
        said = self.all_said()
        self.expect_nothing_left()
        return said

    def test_lost_ranks_come_back(self):
        for victims, on, at in [([3], "c", "a"), ([1], "d", "a"), ([2, 3], "d", "a"), ([0], "a", "b"),
                                ([0], "d", "a,b")]:
            with self.subTest(victims=victims, on=on):
                for rank, said in self.come_back(*victims, on=on, at=at).items():
                    self.assertIn("view 15\nend ok", said, rank)

    def test_a_process_cannot_share_the_memory_of_another_host(self):
        for rank, said in self.come_back(3, on="d").items():
            ends = r"end (\w+ 3|peer_lost [0-2]) .*rank 3 is of the node of rank 2.*different hosts"
            self.assertRegex(said, ends, rank)

    def grow(self, host_of, topology):
        """Ranks 0 and 1 begin a group of four, and then the others come. Returns what all ranks said."""
        Rank.host_of = host_of
        Rank.more = {"FERRY_SIZE": 2, "FERRY_GROUP_SIZE": SIZE, **topology}
        self.start(LONG_S, FEW, 20, ranks=(0, 1), hosts=2)
        Rank.more = {"FERRY_NEWCOMER": 1, **topology}
        for rank in (2, 3):
            self.add(rank, LONG_S if topology else 2, FEW, 20)
        said = self.all_said()
        self.expect_nothing_left()
        return said

    def test_a_group_grows_by_a_host(self):
        for rank, said in self.grow("aabb", {"FERRY_TOPOLOGY": "host:2,rank:2"}).items():
            self.assertIn("grows from 3\nview 15\nend ok" if rank < 2 else "view 15\nend ok", said, rank)

    def test_a_group_grows_on_each_host(self):
        topology = {"FERRY_TOPOLOGY": "host:4,rank:1", "FERRY_TEST_NODES": 4}
        for rank, said in self.grow("abab", topology).items():
            self.assertIn("view 15\nend ok", said, rank)

    def test_the_hosts_of_absent_ranks_must_be_known(self):
        for rank, said in self.grow("abab", {}).items():
            refused = "end invalid_argument 2 .*on the host of rank 0 or on that of rank 1: give a topology"
            self.assertRegex(said, refused if rank < 2 else "end timeout", rank)

    def test_the_host_of_rank_0_disappears(self):
        """No error tells it: the others find that it is silent. Its rank finds that it is alone."""
        Rank.host_of, Rank.more = "abcc", {"FERRY_TEST_SURVIVE": 1, "FERRY_TEST_NODES": 3}
        self.start_rounds(3, deadline_s=12)
        self.bench.cut("a")
        for rank, said in self.all_said().items():
            self.assertIn("end peer_lost" if rank == 0 else "view 14\nend ok", said, rank)
        self.expect_nothing_left()

    def test_stopped_ranks_of_a_host_are_waited_for(self):
        """For longer than a host may be silent, because its kernel still answers."""
        self.start_rounds(2, deadline_s=11)
        stopped = [self.ranks.pop(rank) for rank in (2, 3)]
        for rank in stopped:
            rank.kill(signal.SIGSTOP)
        try:
            all_said = self.all_said()
        finally:
            for rank in stopped:
                rank.kill()
                rank.process.send_signal(signal.SIGCONT)  # nsenter stops with its child
                rank.process.wait()
        for rank, said in all_said.items():
            self.assertRegex(said, r"end timeout 2 survive: rank 2 .*did not come to view 2", rank)
        self.expect_nothing_left()

    def test_ports_are_those_that_ucx_may_use(self):
        Rank.more["UCX_TCP_PORT_RANGE"] = "4800-4899"
        self.expect_go_on(0)

    def test_the_port_cannot_be_reached(self):
        """The rank that cannot reach it is named at the deadline, and the group stays usable."""
        Rank.host_of = "abcc"
        Rank.more = {"FERRY_TEST_SURVIVE": 1, "FERRY_TEST_NODES": 3, "FERRY_TEST_LATER_PORTS": "4998-4998"}
        Rank.blocked = f"ip saddr {hosts.address(2)} tcp dport 4998 drop"
        self.addCleanup(setattr, Rank, "blocked", "")
        for rank, said in self.kill(2, hosts=3, deadline_s=10).items():
            self.assertRegex(said, rf"end timeout {0 if rank == 3 else 3} .*4998.*; usable", rank)

    def test_no_port_is_free(self):
        """The rank that would listen is named to all, and the group stays usable."""
        Rank.more["FERRY_TEST_LATER_PORTS"] = "4998-4998"
        Rank.holds = "python3", "-c", "import socket, time; held = socket.create_server(('', 4998)); time.sleep(60)"
        self.addCleanup(setattr, Rank, "holds", ())
        for rank, said in self.kill(0).items():
            self.assertRegex(said, r"end system 1 .*UCX_TCP_PORT_RANGE=4998-4998.*; usable", rank)


class Loss(Faults):
    def test_of_two_packets_in_a_hundred_changes_nothing(self):
        reason = hosts.why_not(loss=1)
        if reason:
            self.skipTest(reason)
        self.start(LONG_S, FEW, 100, loss=2)
        self.expect_well()
        for name in "ab":
            dropped = re.search(r"clsact.*\n.*dropped (\d+)", self.bench.run(name, "tc", "-s", "qdisc").stdout)
            self.assertGreater(int(dropped[1]), 0)


if __name__ == "__main__":
    hosts.skip_unless_possible()
    unittest.main()
