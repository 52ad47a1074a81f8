#!/usr/bin/env python3
"""What `ferry bench` counts between nodes is what `ferry topology` computes and docs/topology.md says, for each preset:
to the byte where a token goes to every expert, and within a few percent where chance chooses.
Called by ctest with the ferry program and docs/topology.md as its arguments."""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

FERRY, PAGE = sys.argv.pop(1), Path(sys.argv.pop(1)).read_text()
LIMIT_S = 100  # of one run, on a busy machine
ALGORITHMS = ["fullmesh", "hierarchical", "allgather"]
# | `topology` | all EXPERTS | level | fullmesh | hierarchical | allgather |
ROW = re.compile(r"^\| `(\S+)` \| all (\d+) \| (\w+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
CLOSE = 0.03  # the part by which the bytes of a random routing may differ from those expected


def ferry(*arguments):
    """The JSON object that ferry prints."""
    done = subprocess.run([FERRY, *arguments], capture_output=True, text=True, timeout=LIMIT_S,
                          env={**os.environ, "UCX_TLS": "tcp"})
    assert done.returncode == 0, (arguments, done.stderr)
    return json.loads(done.stdout.splitlines()[-1] if arguments[0] == "bench" else done.stdout)


def computed(topology, *shape, sums="row_type"):
    """{algorithm: {level: bytes}} as the bench counts: what leaves a group by all its links, and what a rank writes and
    reads, its own rows too. Here all groups of a level are alike, so what comes in is what goes out."""
    found = ferry("topology", topology, *shape, "--node-sums", sums, "--json")
    links = {level["name"]: level["links"] for level in found["levels"]}
    network = list(links)[:list(links).index("host") + 1] if "host" in links else []
    ranks = found["nodes"].count(0)
    counted = {}
    for algorithm in ALGORITHMS:
        pair = {level: sum(both.values()) for level, both in found["level_bytes"][algorithm].items()}
        counted[algorithm] = {level: pair[level] * links[level] for level in network}
        counted[algorithm]["rank"] = pair["rank"] * ranks / (ranks - 1)
    return counted


def counted(topology, algorithm, *shape, sums="row"):
    """{level: bytes} of a dispatch and its combine, on ranks that are threads."""
    ranks = ferry("topology", topology, "--json")["num_ranks"]
    found = ferry("bench", "--mode", "threads", "--topology", topology, "--ranks", str(ranks), *shape, "--algorithm",
                  algorithm, "--node-sums", sums, "--iterations", "1", "--warmup", "0", "--json")
    return found["level_bytes"]


def shape(tokens, hidden, top_k, experts):
    return ["--tokens", str(tokens), "--hidden", str(hidden), "--top-k", str(top_k), "--experts", str(experts)]


class Counted(unittest.TestCase):
    def setUp(self):
        reason = ferry("doctor", "--json")["network"]["no_link"]
        if reason:
            self.skipTest(reason)

    def test_every_expert_of_every_token_to_the_byte(self):
        rows = ROW.findall(PAGE)
        self.assertEqual({row[0] for row in rows}, {"gpu8:2", "host:4@8links,rank:8", "dies16:2",
                                                    "rack:2,host:2,rank:4", "server:4,rank:4"})
        for topology, experts, level, *bytes_on_page in rows:
            of_row = shape(4, 256, experts, experts)
            expected = computed(topology, *of_row)
            for algorithm, on_page in zip(ALGORITHMS, map(int, bytes_on_page)):
                with self.subTest(topology=topology, level=level, algorithm=algorithm):
                    self.assertAlmostEqual(expected[algorithm][level], on_page, places=3)
                    self.assertEqual(self.counted_once(topology, algorithm, of_row)[level], on_page)

    def test_two_ways_bring_every_copy_once(self):
        for one, two in (("host:2,rank:4", "host:2@also1xor,rank:4"),
                         ("rack:2,host:2,rank:4", "rack:2@also4xor,host:2,rank:4")):
            experts = 16 if "rack" in one else 8
            of_row = shape(4, 256, experts, experts)
            for algorithm in ALGORITHMS:
                with self.subTest(topology=two, algorithm=algorithm):
                    self.assertEqual(computed(two, *of_row)[algorithm], computed(one, *of_row)[algorithm])
                    self.assertEqual(self.counted_once(two, algorithm, of_row),
                                     self.counted_once(one, algorithm, of_row))

    seen = {}

    def counted_once(self, topology, algorithm, of_row):
        key = (topology, algorithm, *of_row)
        if key not in self.seen:
            self.seen[key] = counted(topology, algorithm, *of_row)
        return self.seen[key]

    def test_sums_in_every_type_to_the_byte(self):
        of_pair = shape(4, 256, 16, 16)
        for sums in "fp32", "exact":
            expected = computed("gpu8:2", *of_pair, sums=sums)["hierarchical"]["host"]
            self.assertEqual(counted("gpu8:2", "hierarchical", *of_pair, sums=sums)["host"], expected)

    def test_a_row_more_is_seen(self):
        expected = computed("gpu8:2", *shape(4, 256, 16, 16))["hierarchical"]["host"]
        more = counted("gpu8:2", "hierarchical", *shape(4, 256, 16, 16), "--tokens-per-rank", "5" + ",4" * 15)["host"]
        self.assertEqual(more - expected, 512)  # out of its node; its sum out of the other

    def test_experts_by_chance_come_close(self):
        by_chance = shape(128, 16, 8, 256)
        for topology, level in ("gpu8:2", "host"), ("rails8x8", "host"), ("rack:2,host:2,rank:4", "rack"):
            expected = {name: levels[level] for name, levels in computed(topology, *by_chance).items()}
            for algorithm in ALGORITHMS:
                found = counted(topology, algorithm, *by_chance)[level]
                near = {name for name in ALGORITHMS if abs(found / expected[name] - 1) < CLOSE}
                alike = {name for name in ALGORITHMS if abs(expected[algorithm] / expected[name] - 1) < 2 * CLOSE}
                self.assertIn(algorithm, near, (topology, found, expected))
                self.assertLessEqual(near, alike, (topology, found, expected))  # no other would have been as good


class Page(unittest.TestCase):
    def test_its_commands_print_its_table(self):
        lines = re.findall(r"^    ferry (topology .*)$", PAGE, re.MULTILINE)
        self.assertGreaterEqual(len(lines), 2)
        for line in lines:
            words = line.split()
            printed = subprocess.run([FERRY, *words], capture_output=True, text=True, timeout=LIMIT_S).stdout
            rows = re.findall(rf"^\| `{words[1]}` \| 8 of \d+ \| (\w+) \| (.*) \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
            self.assertGreaterEqual(len(rows), 2, line)
            for row in rows:
                self.assertRegex(printed, r"\n *" + r" +".join(map(re.escape, row)) + " ")

    def test_its_tokens_go_to_their_mates(self):
        for topology, level, position, mates in (("gpu8:2", "host", 3, {11}), ("rails8x8", "host", 3, {11, 59}),
                                                 ("rack:2,host:2,rank:4", "rack", 6, {14}),
                                                 ("rack:2,host:2,rank:4", "host", 2, {2, 10}),
                                                 ("dies16:2", "machine", 5, {21}),
                                                 ("dies16:2", "host", 1, {1, 17, 29})):
            self.assertLessEqual(mates, set(ferry("topology", topology, "--json")["mates"][level][position]))
            for mate in mates:
                self.assertRegex(PAGE, rf"ranks?\s+(\d+\s+and\s+)?{mate}\b")


if __name__ == "__main__":
    unittest.main()
