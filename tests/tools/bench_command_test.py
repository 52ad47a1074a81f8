#!/usr/bin/env python3
"""`ferry bench` as a user runs it: table, JSON, trace, codes, and what happens when a rank dies.
The first argument is the ferry program."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

FERRY = sys.argv.pop(1)
LIMIT_S = 100  # of one run, on a busy machine
SMALL = ["--ranks", "3", "--hidden", "33", "--experts", "10", "--top-k", "3", "--tokens", "9",
         "--iterations", "4", "--warmup", "1"]
KEYS = {"options", "tokens", "iterations", "dispatch_us", "combine_us", "pair_us", "limit_us",
        "limit_ratio", "rows", "algorithm", "algorithm_reason", "level_bytes", "level_limit_us",
        "remote_rows", "dispatch_bytes", "combine_bytes", "window_bytes",
        "imbalance", "compared", "wrong", "stores", "store_trials"}


def bench(*arguments):
    """Runs a bench to its end: (exit code, text of stdout, text of stderr)."""
    done = subprocess.run([FERRY, "bench", *SMALL, *arguments], capture_output=True, text=True,
                          timeout=LIMIT_S)
    return done.returncode, done.stdout, done.stderr


def bench_json(*arguments):
    code, out, err = bench("--json", *arguments)
    assert code == 0, (code, out, err)
    return json.loads(out.splitlines()[-1])


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:
        return []


def wait_for(condition, within_s=60):
    end = time.monotonic() + within_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class Report(unittest.TestCase):
    def test_json_has_every_key_and_plausible_values(self):
        result = bench_json("--check")
        self.assertLessEqual(KEYS, result.keys())
        for key in "dispatch_us", "combine_us", "pair_us":
            times = result[key]
            self.assertEqual(set(times), {"min", "median", "p99"})
            self.assertTrue(0 < times["min"] <= times["median"] <= times["p99"], times)
        limit = result["limit_us"]
        self.assertEqual(set(limit), {"dispatch", "combine", "pair"})
        self.assertAlmostEqual(limit["pair"], limit["dispatch"] + limit["combine"])
        self.assertAlmostEqual(result["limit_ratio"], result["pair_us"]["median"] / limit["pair"])
        self.assertEqual(result["rows"], 3 * 9 * 3)
        self.assertEqual(result["stores"], ["cached"] * 3)  # they fit the private caches
        self.assertEqual(result["store_trials"], [0] * 3)
        self.assertEqual(result["dispatch_bytes"], result["rows"] * 33 * 2)
        self.assertEqual(result["combine_bytes"], result["rows"] * 33 * 2)
        self.assertEqual((result["tokens"], result["iterations"], result["wrong"]), (9, 4, 0))
        self.assertGreaterEqual(result["compared"], 2 * (result["rows"] + 3 * 9) * 33)
        self.assertEqual(result["options"]["hidden"], 33)

    def test_every_mode_layout_and_type_agrees_with_the_oracle(self):
        for mode in "processes", "threads":
            for layout in "rank_major", "expert_major", "padded":
                for dtype in "bf16", "fp16", "fp32":
                    result = bench_json("--check", "--mode", mode, "--layout", layout,
                                        "--dtype", dtype, "--routing", "zipf:1.1")
                    self.assertEqual(result["wrong"], 0, (mode, layout, dtype))
                    self.assertEqual(result["options"]["layout"], layout)

    def test_every_wire_agrees_with_the_oracle(self):
        for wire in "int8", "fp8", "fp8_pow2", "fp8_ue8m0":
            result = bench_json("--check", "--wire", wire, "--hidden", "64")
            self.assertEqual((result["wrong"], result["options"]["wire"]), (0, wire))

    def test_uneven_and_empty_ranks_workers_and_pinning(self):
        result = bench_json("--check", "--tokens-per-rank", "0,5,40", "--workers", "2", "--pin")
        self.assertEqual((result["wrong"], result["rows"]), (0, 45 * 3))
        self.assertEqual(bench_json("--check", "--tokens", "0")["rows"], 0)

    def test_a_split_has_tokens_and_experts_on_different_ranks(self):
        whole = bench_json("--ranks", "5", "--check")
        split = bench_json("--split", "3:2", "--check", "--mode", "threads")
        self.assertEqual(split["options"]["ranks"], 5)
        self.assertEqual(split["wrong"], 0)
        self.assertGreater(split["compared"], 0)
        self.assertEqual(split["rows"], 3 * 9 * 3)  # 3 ranks with tokens, top-3
        self.assertEqual(split["remote_rows"], split["rows"])
        self.assertLess(split["window_bytes"], whole["window_bytes"])
        code, out, _ = bench("--split", "3:2")
        self.assertIn("tokens on 3 ranks and experts on 2", out)
        for wrong, why in ((["--split", "3"], "'3' is not of the form 6:2"),
                           (["--split", "3:0"], "'3:0' is not of the form 6:2"),
                           (["--split", "3:2,2:3"], "'3:2,2:3' is not of the form 6:2"),
                           (["--split", "1000:25"], "at most 1024 ranks"),
                           (["--split", "2:1", "--shared-experts", "1", "--shared-ranks", "1"],
                            "not with --device cuda, --shared-ranks")):
            code, _, err = bench(*wrong)
            self.assertEqual(code, 2, err)
            self.assertIn(why, err)

    def test_sweep_has_a_point_and_a_line_for_each_value(self):
        code, out, _ = bench("--sweep", "tokens=1,4", "--json", "--routing", "real")
        self.assertEqual(code, 0)
        points = json.loads(out.splitlines()[-1])["points"]
        self.assertEqual([point["tokens"] for point in points], [1, 4])
        lines = [line for line in out.splitlines()[:-1] if not line.startswith("#")]
        self.assertEqual([line.split()[0] for line in lines], ["1", "4"])

    def test_table_fits_a_hundred_columns_and_pipes_see_no_progress(self):
        code, out, err = bench("--check")
        self.assertEqual((code, err), (0, ""))
        self.assertLessEqual(max(len(line) for line in out.splitlines()[1:]), 100)
        self.assertIn("0 of ", out.splitlines()[-1])

    def test_a_terminal_sees_how_long_a_sweep_still_takes(self):
        ours, terminal = os.openpty()
        subprocess.run([FERRY, "bench", *SMALL, "--sweep", "tokens=1,4"], stdout=subprocess.DEVNULL, stderr=terminal,
                       timeout=LIMIT_S, check=True)
        told = os.read(ours, 65536).decode()
        os.close(terminal)
        os.close(ours)
        first, second = told.split("4 tokens per rank", 1)
        self.assertNotIn("left", first)
        self.assertRegex(second, r"measuring the ranks, about \d+ s remaining \.\.")

    def test_rebalance_measures_blocks_copies_and_uniform_routing(self):
        options = ["--rebalance", "--redundant-experts", "8", "--routing", "zipf:1.5", "--check", "--tokens", "64"]
        result = bench_json(*options)
        for part in (result, result["rebalanced"], result["uniform"]):
            self.assertTrue(part["wrong"] == 0 < part["compared"] and part["pair_us"]["median"] > 0)
        self.assertLess(result["rebalanced"]["imbalance"], result["imbalance"])
        lines = [line for line in bench(*options)[1].splitlines() if not line.startswith("#")]
        self.assertEqual(len(lines), 3)
        for wrong, complaint in ((["--redundant-experts", "3"], "13 experts with them are not as many on each of 3"),
                                 (["--sweep", "tokens=1,2"], "not with --sweep"),
                                 (["--topology", "host:1,rank:3"], "--check")):
            code, _, err = bench(*options, *wrong)
            self.assertTrue(code == 2 and complaint in err, err)

    def test_trace_has_a_track_per_rank_and_waits_per_source(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            bench_json("--trace", path)
            with open(path) as file:
                events = json.load(file)["traceEvents"]
        names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.assertEqual(names, {0: "rank 0", 1: "rank 1", 2: "rank 2"})
        for rank in range(3):
            spans = [e for e in events if e["ph"] == "X" and e["tid"] == rank]
            self.assertTrue(all(e["ts"] >= 0 and e["dur"] >= 0 for e in spans))
            operations = [e for e in spans if "args" in e]
            self.assertEqual(len(operations), 40)
            self.assertEqual(len(operations[0]["args"]["wait_us"]), 3)
            self.assertLessEqual({"send", "reduce"}, {e["name"] for e in spans})


class BetweenNodes(unittest.TestCase):
    RANKS, ROW_BYTES, TOKENS = 4, 66, 9

    def setUp(self):
        done = subprocess.run([FERRY, "doctor", "--json"], capture_output=True, text=True)
        reason = json.loads(done.stdout)["network"]["no_link"]
        if reason:
            self.skipTest(reason)

    def run_nodes(self, *arguments):
        return bench_json("--ranks", str(self.RANKS), "--topology", "host:2@0.001GB/s,rank:2",
                          "--check", *arguments)

    def test_every_algorithm_agrees_with_the_oracle_and_counts_what_crosses(self):
        crossed = {}
        for algorithm in "fullmesh", "hierarchical", "allgather":
            for sums in "row", "fp32", "exact":
                result = self.run_nodes("--algorithm", algorithm, "--node-sums", sums)
                self.assertEqual((result["wrong"], result["algorithm"]), (0, algorithm))
                crossed[algorithm, sums] = result["level_bytes"]["host"]
                self.assertLess(crossed[algorithm, sums], result["level_all_bytes"]["host"])
                # 0.001 GB/s is a byte per microsecond.
                self.assertAlmostEqual(result["level_limit_us"]["host"], crossed[algorithm, sums])
        self.assertLessEqual(crossed["hierarchical", "row"], crossed["fullmesh", "row"])
        # Each of a node's tokens goes to the other node, at least.
        every_token = 2 * self.TOKENS * self.ROW_BYTES
        self.assertGreaterEqual(crossed["allgather", "row"], every_token)

    def test_processes_and_auto(self):
        result = self.run_nodes("--mode", "processes")
        self.assertEqual(result["wrong"], 0)
        self.assertNotEqual(result["algorithm"], "auto")
        self.assertGreater(len(result["algorithm_reason"]), 10)

    def test_table_says_what_crossed(self):
        code, out, _ = bench("--ranks", "4", "--topology", "host:2@1GB/s,rank:2")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"(?s)between nodes: .*host: .*MB out of the busiest.*link limit")


class Launched(unittest.TestCase):
    def launch(self, *arguments):
        return subprocess.run([FERRY, "launch", "-n", "3", "--no-tag", "--", FERRY, "bench", *SMALL,
                               "--mode", "environment", *arguments], capture_output=True, text=True,
                              timeout=LIMIT_S)

    def test_first_rank_speaks_for_all(self):
        done = self.launch("--check", "--json", "--sweep", "tokens=3,9")
        self.assertEqual(done.returncode, 0, done.stderr)
        points = json.loads(done.stdout.splitlines()[-1])["points"]
        expected = bench_json("--seed", "1")
        self.assertEqual((points[1]["rows"], points[1]["wrong"]), (expected["rows"], 0))
        self.assertEqual(points[1]["dispatch_bytes"], expected["dispatch_bytes"])
        self.assertGreater(points[1]["compared"], 0)
        self.assertGreater(points[1]["pair_us"]["median"], 0)
        self.assertEqual(list(points[1]["level_bytes"]), ["rank"])
        self.assertEqual(done.stdout.count("# ferry bench on"), 1)

    def test_without_launcher_is_an_error(self):
        code, _, err = bench("--mode", "environment")
        self.assertEqual((code, "no launcher was found" in err), (1, True), err)


class Failure(unittest.TestCase):
    def test_options_that_do_not_fit_are_refused(self):
        for arguments, named in [(["--top-k", "11"], "--experts is 10"),
                                 (["--routing", "load:/nowhere"], "cannot open '/nowhere'"),
                                 (["--dtype", "int8"], "int8"),
                                 (["--hidden", "1048576", "--tokens", "16777216"], "available")]:
            code, out, err = bench(*arguments)
            self.assertEqual((code, named in err), (2, True), err)

    def test_a_trace_that_cannot_be_written_is_an_error(self):
        code, _, err = bench("--trace", "/nowhere/trace.json")
        self.assertEqual((code, "/nowhere/trace.json" in err), (1, True), err)

    def start_long(self):
        """A bench that runs until it is stopped, and its rank processes."""
        process = subprocess.Popen([FERRY, "bench", *SMALL, "--iterations", "1000000"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertTrue(wait_for(lambda: len(children(process.pid)) == 3))
        return process, children(process.pid)

    def test_a_killed_rank_is_named(self):
        process, ranks = self.start_long()
        os.kill(ranks[1], signal.SIGKILL)
        self.assertEqual(process.wait(LIMIT_S), 1)
        self.assertIn("rank 1: killed by signal 9", process.stderr.read())

    def test_ranks_end_with_the_bench(self):
        process, ranks = self.start_long()
        process.kill()
        process.wait()
        self.assertTrue(wait_for(lambda: not any(map(runs, ranks))))


if __name__ == "__main__":
    unittest.main(verbosity=2)
