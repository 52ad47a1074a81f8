#!/usr/bin/env python3
"""Measures ferry between hosts that this machine plays (tests/hosts), and prints a table for each part:

    link     links of 1 Gbit/s: each algorithm, its bytes, and the time these need
    limited  4 hosts: routing that is limited to 2 of them
    racks    2 racks of 2 hosts, joined by links of 1 Gbit/s, with mates for racks and without them
    peers    links without a limit: ferry beside Gloo and Open MPI over TCP
    collectives  2 hosts of one rank, links without a limit and of 1 Gbit/s: each collective beside Open MPI's

Needs root, a build with FERRY_BUILD_BENCH, and the Python that has ferry and torch: .venv/bin/python bench/hosts.py
(scripts/bench.sh makes all of it). Exit code 77: this machine cannot play hosts."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from ferry.bench.measure import add_idle_wait, measure
from ferry.bench.results import median, median_ratio, times_of
from host_jobs import RATE, RATE_GB_S, ROOT, Jobs

sys.path.insert(0, str(ROOT / "tests/hosts"))

from hosts import Hosts, Unavailable, skip  # noqa: E402


def print_table(title, results, base):
    """`results`: {name: {round: result}}; `base`: the program whose times divide those of the others."""
    print(f"\n## {title}\n")
    print("| program | dispatch ms | combine ms | pair ms | MB across | bytes / rate ms | pair / that | "
          f"pair / {base} | wrong |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, rounds in results.items():
        one, pair_us = next(iter(rounds.values())), median(times_of(rounds))
        times = [f"{median(times_of(rounds, what)) / 1000:.2f}" for what in ("dispatch", "combine", "pair")]
        level = next((level for level, us in one.get("level_limit_us", {}).items() if us), "host")
        across, limit_us = (one.get(key, {}).get(level) for key in ("level_bytes", "level_limit_us"))
        link = [f"{across / 1e6:.2f}" if across else "", f"{limit_us / 1000:.2f}" if limit_us else "",
                f"{pair_us / limit_us:.2f}" if limit_us else ""]
        compared = f"{median_ratio(times_of(rounds), times_of(results[base])):.2f}" if base in results else ""
        wrong = sum(result.get("wrong", 0) for result in rounds.values())
        print("| " + " | ".join([name, *times, *link, compared, str(wrong)]) + " |", flush=True)
    for name, rounds in results.items():
        one = next(iter(rounds.values()))
        if "algorithm_reason" in one:
            print(f"\n{name}: {one['algorithm']}, {one['algorithm_reason']}")


def link(jobs):
    return [jobs.ferry(name, "--algorithm", name) for name in ("hierarchical", "fullmesh", "allgather", "auto")]


def limited(jobs):
    return [jobs.ferry("any host", "--routing", "groups:4", "--top-groups", "4"),
            jobs.ferry("2 of 4 hosts", "--routing", "groups:4", "--top-groups", "2")]


def racks(jobs):
    walked = f"rack:2@{RATE_GB_S}GB/s,host:2"
    return [jobs.ferry("hierarchical, mates for racks", "--algorithm", "hierarchical", levels=walked),
            jobs.ferry("hierarchical, hosts only", "--algorithm", "hierarchical", levels="host:4"),
            jobs.ferry("fullmesh", "--algorithm", "fullmesh", levels=walked),
            jobs.ferry("allgather, mates for racks", "--algorithm", "allgather", levels=walked)]


def peers(jobs):
    return [jobs.ferry("ferry"), jobs.gloo(), jobs.open_mpi("a2av"), jobs.open_mpi("dedup")]


# Jobs, the hosts, ranks on each, and the title of the table; the first job is the base of ratios.
PARTS = {"link": (link, lambda: Hosts(2, rate=RATE), 4, f"2 hosts x 4 ranks, links of {RATE} each way"),
         "limited": (limited, lambda: Hosts(4, rate=RATE), 2, f"4 hosts x 2 ranks, links of {RATE} each way"),
         "racks": (racks, lambda: Hosts(4, racks=2, rack_rate=RATE), 2,
                   f"2 racks x 2 hosts x 2 ranks, links of {RATE} between racks each way"),
         "peers": (peers, lambda: Hosts(2), 4, "2 hosts x 4 ranks, TCP without limit")}


def run_part(name, options):
    """{program: {round: result}} of the programs that did not fail."""
    jobs_of, make_hosts, ranks, title = PARTS[name]
    with make_hosts() as bench:
        jobs = jobs_of(Jobs(options, bench, ranks))
        runs = measure(jobs, options.rounds, options.idle_wait)
    failed = {run["program"] for run in runs if "error" in run["result"]}
    results = {job.program: {run["round"]: run["result"] for run in runs if run["program"] == job.program}
               for job in jobs if job.program not in failed}
    print_table(f"{title}, {options.tokens} tokens", results, jobs[0].program)
    return results


def run_collectives(options):
    """True if both tables were printed."""
    done = []
    for rate, links in (("", "TCP without limit"), (RATE, f"links of {RATE} each way")):
        with Hosts(2, rate=rate) as bench:
            print(f"\n## Collectives, 2 hosts x 1 rank, {links}\n", flush=True)
            job = Jobs(options, bench, 1).collectives()
            done.append(subprocess.run(job.command, env=job.environment, check=False).returncode == 0)
    return all(done)


def main():
    parser = argparse.ArgumentParser(description="Measure ferry between hosts that this machine plays")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--parts", default=",".join([*PARTS, "collectives"]),
                        help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=128, help="of each rank (%(default)s)")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    add_idle_wait(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also all results")
    options = parser.parse_args()
    options.build = options.build.resolve()
    try:
        results = {part: run_collectives(options) if part == "collectives" else run_part(part, options)
                   for part in options.parts.split(",")}
    except Unavailable as reason:
        skip(reason)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
