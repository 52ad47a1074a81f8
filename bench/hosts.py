#!/usr/bin/env python3
"""Measures ferry between hosts that this machine plays (tests/hosts), and prints a table for each part:

    link     links of 1 Gbit/s: each algorithm, its bytes, and the time these need
    limited  4 hosts: routing that is limited to 2 of them
    racks    2 racks of 2 hosts, joined by links of 1 Gbit/s: with mates for racks, and without
    peers    unshaped: ferry beside Gloo and Open MPI over TCP

Programs of one part run by turns in every round; only ratios of one run are claimed. Needs root, a build with
FERRY_BUILD_BENCH and, for Gloo, the Python package in .venv (scripts/bench.sh makes both). Exit code 77: no hosts
here."""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/hosts"), str(ROOT / "scripts")]

from bench import wait_until_idle  # noqa: E402
from hosts import Hosts, Unavailable, skip  # noqa: E402

TOP_K, HIDDEN, EXPERTS = 8, 7168, 256
RATE, RATE_GB_S = "1gbit", 0.125
RUN_LIMIT_S = 600
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass
class Program:
    name: str
    command: list  # prints a JSON object as its last line


def shape_options(tokens):
    shape = {"tokens": tokens, "hidden": HIDDEN, "experts": EXPERTS, "top-k": TOP_K}
    return [word for name, value in shape.items() for word in (f"--{name}", str(value))]


class Commands:
    """Of programs whose ranks are on the hosts of `bench`, `ranks` on each."""

    def __init__(self, options, bench, ranks):
        self.options, self.bench, self.ranks = options, bench, ranks
        self.hosts = ",".join(f"{name}:{ranks}" for name in bench.names)
        self.shape = [*shape_options(options.tokens), "--iterations", str(options.iterations)]

    def launch(self, *words):
        return [str(self.options.build / "tools/ferry"), "launch", "--hosts", self.hosts, "--no-tag", "--", *words]

    def ferry(self, name, *more, levels=""):
        levels = levels or f"host:{len(self.bench.names)}" + (f"@{RATE_GB_S}GB/s" if self.bench.rate else "")
        return Program(name, self.launch(
            str(self.options.build / "tools/ferry"), "bench", "--mode", "environment", "--topology",
            f"{levels},rank:{self.ranks}", *self.shape, "--check", "--json", *more))

    def gloo(self):
        """In the usual torch pipeline, with the malloc that suits it."""
        program = str(ROOT / "bench/hosts_gloo.py")
        shape = {"tokens": self.options.tokens, "hidden": HIDDEN, "experts": EXPERTS, "top_k": TOP_K,
                 "ranks": self.ranks * len(self.bench.names)}
        task = {"shape": shape, "iterations": self.options.iterations, "seed": 1}
        python = str(self.options.python)
        return Program("Gloo all_to_all", [python, program, json.dumps(task), *self.launch(python)])

    def open_mpi(self, algorithm):
        """mpirun works on the first host, as it would on a cluster. `btl tcp` between hosts."""
        settings = {"plm_rsh_agent": self.bench.environment["FERRY_SSH"], "pml": "ob1", "btl": "self,vader,tcp",
                    "btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0", "mpi_yield_when_idle": "1"}
        words = ["mpirun", "--host", self.hosts, "--bind-to", "none", "--wdir", os.getcwd(),
                 *(word for name, value in settings.items() for word in ("--mca", name, value)),
                 str(self.options.build / "bench/mpi_bench"), "--algorithm", algorithm, *self.shape]
        return Program(f"Open MPI {algorithm}", self.bench.command(self.bench.names[0], *words))


def run(program, bench):
    environment = {**bench.environment, **OPEN_MPI, "GLOO_SOCKET_IFNAME": "eth0"}
    try:
        done = subprocess.run(program.command, env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {RUN_LIMIT_S} s"}
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode == 0 and last.startswith("{"):
        return json.loads(last)
    return {"error": f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-1500:]}"}


def measure(programs, bench, options):
    """{name: results of all rounds}, of programs that did not fail."""
    results = {program.name: [] for program in programs}
    for number in range(options.rounds):
        for program in programs:
            if program.name not in results:
                continue
            wait_until_idle(options.idle_wait)
            result = run(program, bench)
            if "error" in result:
                print(f"hosts.py: {program.name}: {result['error']}\n  {shlex.join(program.command)}", file=sys.stderr)
                del results[program.name]
            else:
                results[program.name].append(result)
    return results


def median_us(results, name):
    return statistics.median(result[f"{name}_us"]["median"] for result in results)


def ratio(results, base, name="pair"):
    """Median over rounds of the ratio within a round."""
    return statistics.median(one[f"{name}_us"]["median"] / other[f"{name}_us"]["median"]
                             for one, other in zip(results, base))


def print_table(title, results, base):
    """`base`: the program that the others are divided by."""
    print(f"\n## {title}\n")
    print("| program | dispatch ms | combine ms | pair ms | MB across | bytes / rate ms | pair / that | "
          f"pair / {base} | wrong |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, rounds in results.items():
        times = [f"{median_us(rounds, what) / 1000:.2f}" for what in ("dispatch", "combine", "pair")]
        level = next((level for level, us in rounds[0].get("level_limit_us", {}).items() if us), "host")
        across = rounds[0].get("level_bytes", {}).get(level)
        limit_us = rounds[0].get("level_limit_us", {}).get(level)
        link = [f"{across / 1e6:.2f}" if across else "", f"{limit_us / 1000:.2f}" if limit_us else "",
                f"{median_us(rounds, 'pair') / limit_us:.2f}" if limit_us else ""]
        compared = f"{ratio(rounds, results[base]):.2f}" if base in results else ""
        wrong = sum(result.get("wrong", 0) for result in rounds)
        print("| " + " | ".join([name, *times, *link, compared, str(wrong)]) + " |", flush=True)
    for name, rounds in results.items():
        if "algorithm_reason" in rounds[0]:
            print(f"\n{name}: {rounds[0]['algorithm']}, {rounds[0]['algorithm_reason']}")


def link(options):
    with Hosts(2, rate=RATE) as bench:
        commands = Commands(options, bench, 4)
        programs = [commands.ferry(name, "--algorithm", name)
                    for name in ("hierarchical", "fullmesh", "allgather", "auto")]
        results = measure(programs, bench, options)
    print_table(f"2 hosts x 4 ranks, links of {RATE} each way, {options.tokens} tokens", results, "hierarchical")
    return results


def limited(options):
    with Hosts(4, rate=RATE) as bench:
        commands = Commands(options, bench, 2)
        programs = [commands.ferry("any host", "--routing", "groups:4", "--top-groups", "4"),
                    commands.ferry("2 of 4 hosts", "--routing", "groups:4", "--top-groups", "2")]
        results = measure(programs, bench, options)
    print_table(f"4 hosts x 2 ranks, links of {RATE} each way, {options.tokens} tokens", results, "any host")
    return results


def racks(options):
    with Hosts(4, racks=2, rack_rate=RATE) as bench:
        commands = Commands(options, bench, 2)
        walked = f"rack:2@{RATE_GB_S}GB/s,host:2"
        programs = [commands.ferry("hierarchical, mates for racks", "--algorithm", "hierarchical", levels=walked),
                    commands.ferry("hierarchical, hosts only", "--algorithm", "hierarchical", levels="host:4"),
                    commands.ferry("fullmesh", "--algorithm", "fullmesh", levels=walked),
                    commands.ferry("allgather, mates for racks", "--algorithm", "allgather", levels=walked)]
        results = measure(programs, bench, options)
    print_table(f"2 racks x 2 hosts x 2 ranks, links of {RATE} between racks each way, {options.tokens} tokens",
                results, "hierarchical, mates for racks")
    return results


def peers(options):
    with Hosts(2) as bench:
        commands = Commands(options, bench, 4)
        programs = [commands.ferry("ferry"), commands.gloo(), commands.open_mpi("a2av"), commands.open_mpi("dedup")]
        results = measure(programs, bench, options)
    print_table(f"2 hosts x 4 ranks, TCP without limit, {options.tokens} tokens", results, "ferry")
    return results


PARTS = {"link": link, "limited": limited, "racks": racks, "peers": peers}


def main():
    parser = argparse.ArgumentParser(description="Measure ferry between hosts that this machine plays")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python", help="has torch and ferry")
    parser.add_argument("--parts", default=",".join(PARTS), help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=128, help="of each rank (%(default)s)")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-wait", type=float, default=30, metavar="S",
                        help="how long to wait for an idle machine before a run; 0: never")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also all results")
    options = parser.parse_args()
    options.build = options.build.resolve()
    results = {}
    try:
        for part in options.parts.split(","):
            results[part] = PARTS[part](options)
    except Unavailable as reason:
        skip(reason)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
