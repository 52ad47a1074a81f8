#!/usr/bin/env python3
"""The conformance suite between nodes, on hosts that share nothing but a network: every output of every rank equals the
oracle bit for bit. Called by ctest with the programs ferry and conformance_rank; exit code 77 where there are no
hosts."""

import subprocess
import sys
import unittest

import hosts
from hosts import NAMES, Hosts

FERRY, RANK = sys.argv.pop(1), sys.argv.pop(1)
LIMIT_S = 300


class Conformance(unittest.TestCase):
    def play(self, topology, *ranks_of_host):
        with Hosts(len(ranks_of_host)) as bench:
            where = ",".join(f"{name}:{ranks}" for name, ranks in zip(NAMES, ranks_of_host))
            done = subprocess.run([FERRY, "launch", "--no-tag", "--hosts", where, "--", RANK, topology],
                                  env=bench.environment, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^(48|16) scenarios\n$")  # fewer under sanitizers

    def test_two_hosts_of_four(self):
        self.play("host:2,rank:4", 4, 4)

    def test_four_hosts_of_two(self):
        self.play("host:4,rank:2", 2, 2, 2, 2)

    def test_uneven_hosts(self):
        self.play("host:2,rank:3+5", 3, 5)

    def test_two_racks_of_two_hosts_of_two(self):
        self.play("rack:2,host:2,rank:2", 2, 2, 2, 2)


if __name__ == "__main__":
    hosts.skip_unless_possible()
    unittest.main()
