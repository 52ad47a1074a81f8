#!/usr/bin/env python3
"""`ferry topology` as a user runs it: text, JSON, pictures, and refused command lines. Called by ctest with the ferry
program as its first argument."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

FERRY = sys.argv.pop(1)
LIMIT_S = 60


def topology(*arguments):
    """(exit code, text of stdout, text of stderr)"""
    done = subprocess.run([FERRY, "topology", *arguments], capture_output=True, text=True,
                          timeout=LIMIT_S)
    return done.returncode, done.stdout, done.stderr


def topology_json(*arguments):
    code, out, err = topology(*arguments, "--json")
    assert (code, err) == (0, ""), (code, out, err)
    return json.loads(out)


class Report(unittest.TestCase):
    def test_shows_the_tree_mates_bytes_and_the_choice(self):
        code, out, err = topology("host:2@12.5GB/s@5us,rank:3+5")
        self.assertEqual((code, err), (0, ""))
        for line in ("8 ranks, 2 nodes", "  host 1: ranks 3-7", "         4      1     7",
                     "auto is hierarchical"):
            self.assertIn(line + "\n", out)
        self.assertIn("of its host, in host 0, 1, ..\n", out)
        self.assertIn("in host 0, 1, .. of the same rack\n", topology("rack:2,host:2,rank:4")[1])
        for word in ("1 link of 12.5 GB/s, 5 us", "network", "loads and stores", "it takes 1."):
            self.assertIn(word, out)
        self.assertLessEqual(max(map(len, out.splitlines())), 100)

    def test_large_ones_fit_a_screen(self):
        code, out, _ = topology("gpu8:1000")
        self.assertEqual((code, "8000 ranks, 1000 nodes" in out), (0, True))
        self.assertIn(".. and 952 lines more", out)
        self.assertLess(len(out.splitlines()), 100)

    def test_json_says_the_same_and_can_be_read_again(self):
        found = topology_json("rack:2,host:1+2@5us,rank:3")
        self.assertEqual(found["topology"], "rack:2,host:1+2@5us,rank:3")
        self.assertEqual(found["nodes"], [0, 0, 0, 1, 1, 1, 2, 2, 2])
        self.assertEqual(found["mates"], {"rack": [[0, 3], [1, 4], [2, 5], [0, 6], [1, 7], [2, 8]],
                                          "host": [[0, 3, 6], [1, 4, 7], [2, 5, 8]]})
        self.assertEqual(found["second_way_mates"], {})
        self.assertEqual(found["auto"]["algorithm"], "hierarchical")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "found.json")
            with open(path, "w") as file:
                json.dump(found, file)
            self.assertEqual(topology_json(path), found)

    def test_mates_over_a_second_way(self):
        text = "rack:2@10GB/s@also1xor5GB/s,host:2,rank:1"
        found = topology_json(text)
        self.assertEqual(found["topology"], text)
        self.assertEqual(found["mates"]["rack"], [[0, 2], [1, 3]])
        self.assertEqual(found["second_way_mates"], {"rack": [[1, 3], [0, 2]]})
        self.assertIn("mates over the second way: the rank that serves a position of its rack", topology(text)[1])

    def test_bytes_follow_the_shape(self):
        def bytes_of(*arguments):
            levels = topology_json("host:2,rank:1", *arguments)["level_bytes"]
            return levels["allgather"]["host"]["dispatch"]
        self.assertEqual(bytes_of("--tokens", "3", "--hidden", "256"), 3 * 256 * 2)
        self.assertEqual(bytes_of("--tokens", "3", "--hidden", "256", "--dtype", "fp32"),
                         3 * 256 * 4)
        self.assertEqual(bytes_of("--tokens", "3", "--hidden", "256", "--wire", "fp8"),
                         3 * (256 + 2 * 4))
        sums = topology_json("host:2,rank:2", "--node-sums", "fp32")["level_bytes"]
        host = sums["hierarchical"]["host"]
        self.assertEqual(host["combine"], 2 * host["dispatch"])

    def test_finds_this_machine(self):
        self.assertEqual(topology_json("--ranks", "3")["num_ranks"], 3)
        self.assertEqual(topology_json("--found")["num_ranks"], len(os.sched_getaffinity(0)))
        self.assertEqual(topology_json()["auto"]["reason"], "one node: nothing crosses")

    def test_draws(self):
        with tempfile.TemporaryDirectory() as folder:
            svg, dot = os.path.join(folder, "a.svg"), os.path.join(folder, "a.dot")
            self.assertEqual(topology("dies16:2", "--draw", svg)[0], 0)
            self.assertEqual(topology("dies16:2", "--draw", dot)[0], 0)
            space = "{http://www.w3.org/2000/svg}"
            words = [text.text for text in xml.etree.ElementTree.parse(svg).iter(space + "text")]
            self.assertLessEqual({"machine 1: 16 links", "host 7", "31"}, set(words))
            with open(dot) as file:
                lines = file.read().splitlines()
            # Mates: of a machine with the other, of a host with the next of its machine.
            self.assertEqual(sum(" -- " in line for line in lines), 16 + 2 * 3 * 4)
            self.assertEqual(sum(line.count("{") - line.count("}") for line in lines), 0)


class Refusal(unittest.TestCase):
    def test_wrong_lines_are_refused(self):
        for arguments, named in [(["host:2,rank:3+"], "'' is not a number"),
                                 (["host:2@5GiB/s,rank:3"], "5GiB/s"),
                                 (["rank:4", "--ranks", "5"], "--ranks is 5"),
                                 (["rank:4", "--top-k", "9", "--experts", "8"], "--experts is 8"),
                                 (["rank:4", "--draw", "a.png"], "a.png"),
                                 (["rank:4", "--found"], "excludes"),
                                 (["rank:4", "--wire", "zip"], "zip"),
                                 (["/nowhere/a.json"], "cannot open '/nowhere/a.json'")]:
            code, out, err = topology(*arguments)
            self.assertEqual((code, out, named in err), (2, "", True), (arguments, err))

    def test_a_picture_that_cannot_be_written_is_an_error(self):
        code, _, err = topology("rank:4", "--draw", "/nowhere/a.svg")
        self.assertEqual((code, "/nowhere/a.svg" in err), (1, True), err)


if __name__ == "__main__":
    unittest.main()
