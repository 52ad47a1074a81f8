#!/usr/bin/env python3
"""`ferry plan` for two hosts with slow cables agrees with the measurements of `ferry bench` there: no exchange is
faster than its bound, and the algorithms come in the order that was predicted. `ferry doctor --calibrate --hosts` finds
the rate of the cables. Called by ctest with the ferry program; exit code 77 where there are no hosts."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import hosts
from hosts import Hosts

FERRY = sys.argv.pop(1)
LIMIT_S = 200
SHAPE = ["--tokens", "256", "--hidden", "2048", "--experts", "64", "--top-k", "8"]
LEVELS = "host:2@0.0125GB/s,rank:2"


def last_object(command, **options):
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, **options)
    return json.loads(done.stdout.splitlines()[-1])


class Planned(unittest.TestCase):
    def test_the_order_that_was_predicted_is_measured(self):
        plan = last_object([FERRY, "plan", LEVELS, "--json", *SHAPE])["predictions"]
        predicted = {one["strategy"]: one for one in plan}
        # So far apart that no machine is slow enough to change the order: both wait for the same cables.
        self.assertGreater(predicted["fullmesh"]["pair_us"], 1.5 * predicted["hierarchical"]["pair_us"])
        measured = {}
        with Hosts(2, rate="100mbit") as bench:
            for algorithm in "hierarchical", "fullmesh":
                result = last_object([FERRY, "launch", "--hosts", "a:2,b:2", "--no-tag", "--", FERRY, "bench", "--mode",
                                      "environment", "--topology", LEVELS, "--algorithm", algorithm, "--check",
                                      "--iterations", "3", "--warmup", "1", "--json", *SHAPE], env=bench.environment)
                self.assertEqual(result["wrong"], 0)
                measured[algorithm] = result["pair_us"]["median"]
                bound = sum(predicted[algorithm]["bound_us"].values())
                self.assertGreater(measured[algorithm], 0.9 * bound)  # but for the burst that a cable lets pass
        self.assertGreater(measured["fullmesh"], measured["hierarchical"])

    def test_calibration_finds_the_rate_of_the_cables(self):
        with tempfile.TemporaryDirectory() as folder, Hosts(2, rate="400mbit") as bench:
            here, between = Path(folder, "here.json"), Path(folder, "between.json")
            here.write_text('{"tree": "rank:2", "host": {"together": true, "source": "assumed: nothing"}}')
            subprocess.run([FERRY, "doctor", "--calibrate", between, "--hosts", "a:2,b:2", "--machine", here,
                            "--rounds", "1"], check=True, env=bench.environment, timeout=LIMIT_S)
            tree = json.loads(between.read_text())["tree"]
        rate = float(tree.partition("@")[2].partition("GB/s")[0])
        self.assertTrue(tree.startswith("host:2@") and tree.endswith(",rank:2"), tree)
        self.assertGreater(rate, 0.8 * 0.05)
        self.assertLess(rate, 1.2 * 0.05)


if __name__ == "__main__":
    hosts.skip_unless_possible()
    unittest.main()
