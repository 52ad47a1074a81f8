#!/usr/bin/env python3
"""Compares `ferry plan` with times between hosts that this machine plays. It calibrates every network below with
`ferry doctor --calibrate --hosts`, which uses other shapes. Then it predicts every algorithm and prints the
predictions, and only then it measures. The constants of a host are those of `ferry doctor --calibrate` (--machine).

It has the needs of bench/hosts.py. Exit code 77: this machine cannot play hosts."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import ferry
from ferry.bench.measure import measure
from ferry.bench.results import median, times_of
from ferry.bench.words import markdown, time_text
from host_jobs import EXPERTS, HIDDEN, ROOT, TOP_K, Jobs

sys.path.insert(0, str(ROOT / "tests/hosts"))

from hosts import Hosts, Unavailable, skip  # noqa: E402

WHAT = ("pair", "dispatch", "combine")
ALGORITHMS = ("hierarchical", "fullmesh", "allgather")
# Hosts, racks, ranks on each host. The rate is that of the cable of each host, or of each rack. `linked`: two partly
# linked machines of eight ranks, in which each virtual node is a host. A host has a cable to the host beside it and one
# to the same host of the other machine; it has none to the fourth host. `two-ways`: machines of two hosts. Each host
# has a cable of twice the rate to the host beside it, and cables of a quarter of the rate to both hosts of the other
# machine.
NETWORKS = {"2x4": (2, 1, 4), "4x2": (4, 1, 2), "2x2x2": (4, 2, 2), "linked": (4, 2, 4), "two-ways": (4, 2, 2)}
LINKED = ("ab", "cd", "ac", "bd")
BESIDE, ACROSS = ("ab", "cd"), ("ac", "bd", "ad", "bc")
MTU = 9000
PAYLOAD = (MTU - 52) / (MTU + 14)  # tbf counts the headers of TCP, IP and Ethernet too


def gb_s(gbit):
    return round(gbit / 8 * PAYLOAD, 5)


def levels(network, gbit):
    """The topology that the ranks get, at the rate of payload; 0: no limit."""
    hosts, racks, ranks = NETWORKS[network]
    if network == "two-ways":
        return f"machine:2@2links@{gb_s(gbit / 4)}GB/s@also2xor,host:2@{gb_s(2 * gbit)}GB/s", ranks
    rate = f"@{gb_s(gbit)}GB/s" if gbit else ""
    if network == "linked":
        return f"machine:2@2links{rate},host:2@1xor{rate}", ranks
    outer = f"rack:{racks}{rate},host:{hosts // racks}" if racks > 1 else f"host:{hosts}{rate}"
    return outer, ranks


def make_hosts(network, gbit):
    hosts, racks, _ = NETWORKS[network]
    rate = f"{gbit}gbit" if gbit else ""
    if network == "linked":
        return Hosts(hosts, cables=dict.fromkeys(LINKED, rate), mtu=MTU)
    if network == "two-ways":
        cables = {**dict.fromkeys(BESIDE, f"{2 * gbit}gbit"), **dict.fromkeys(ACROSS, f"{gbit / 4}gbit")}
        return Hosts(hosts, cables=cables, mtu=MTU)
    return Hosts(hosts, racks=racks, rack_rate=rate, mtu=MTU) if racks > 1 else Hosts(hosts, rate=rate, mtu=MTU)


def calibrated(here, network, gbit, options):
    """The machine with what `ferry doctor --calibrate` finds between its hosts."""
    tree, ranks = levels(network, gbit)
    with tempfile.TemporaryDirectory() as folder, make_hosts(network, gbit) as bench:
        before, after = Path(folder) / "here.json", Path(folder) / "between.json"
        before.write_text(json.dumps({**here, "host": {**here["host"], "together": True}}))
        words = ["--calibrate", after, "--machine", before, "--topology", f"{tree},rank:{ranks}",
                 "--hosts", ",".join(f"{name}:{ranks}" for name in bench.names), "--rounds", str(options.rounds)]
        done = subprocess.run([options.build / "tools/ferry", "doctor", *words], env=bench.environment, check=True,
                              capture_output=True, text=True)
        print(f"{network} at {gbit:g} Gbit/s:{done.stdout.rpartition('json:')[2].rstrip()}", flush=True)
        return json.loads(after.read_text())


def predicted(machine, tokens, routing="uniform"):
    """{algorithm: {dispatch, combine, pair: us}}"""
    planned = ferry.plan(machine, tokens=tokens, hidden=HIDDEN, experts=EXPERTS,
                         top_k=TOP_K, routing=routing)
    return {one["strategy"]: {what: one[f"{what}_us"] for what in WHAT}
            for one in planned["predictions"]}


def run(network, gbit, options, algorithms):
    """{algorithm: {one of WHAT: us}} of the algorithms that did not fail."""
    outer, ranks = levels(network, gbit)
    with make_hosts(network, gbit) as bench:
        jobs = Jobs(options, bench, ranks)
        runs = measure([jobs.ferry(name, "--algorithm", name, "--warmup", "4", "--routing", options.routing,
                                   levels=outer) for name in algorithms], options.rounds)
    rounds = {}
    for one in runs:
        if "error" not in one["result"]:
            rounds.setdefault(one["program"], {})[one["round"]] = one["result"]
    return {name: {what: median(times_of(of, what)) for what in WHAT}
            for name, of in rounds.items()}


def report(plans, options):
    """(table, whether the best of each network is the best that was measured, or within 5 % of it)"""
    lines = [["hosts, Gbit/s, algorithm", "pair predicted", "measured", "error", "of dispatch", "of combine"]]
    good = True
    for (network, gbit), plan in plans.items():
        measured = run(network, gbit, options, ALGORITHMS)
        for name, times in measured.items():
            errors = (plan[name][what] / times[what] - 1 for what in WHAT)
            lines.append([f"{network}, {gbit:g}, {name}", time_text(plan[name]["pair"]), time_text(times["pair"]),
                          *(f"{100 * error:+.1f} %" for error in errors)])
        order = sorted(measured, key=lambda name: measured[name]["pair"])
        best = next(name for name in plan if name in measured)  # predictions come with the best first
        good = good and len(order) == len(ALGORITHMS) and measured[best]["pair"] <= 1.05 * measured[order[0]]["pair"]
        print(f"{network} at {gbit:g} Gbit/s: predicted {', '.join(plan)}; measured {', '.join(order)}", flush=True)
    return markdown(lines), good


def main():
    parser = argparse.ArgumentParser(description="Predict and measure exchanges between hosts that this machine plays")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--machine", type=Path, required=True, help="what `ferry doctor --calibrate` has just written")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="default: %(default)s")
    parser.add_argument("--gbit", default="1,2", help="rates (%(default)s)")
    parser.add_argument("--routing", default="uniform", help="as of `ferry bench`")
    parser.add_argument("--tokens", type=int, default=128, help="of each rank (%(default)s)")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3,
                        help="of each calibration and of what is predicted (%(default)s)")
    options = parser.parse_args()
    options.build = options.build.resolve()
    here = json.loads(options.machine.read_text())
    try:
        cases = [(network, float(gbit)) for network in options.networks.split(",") for gbit in options.gbit.split(",")]
        plans = {case: predicted(calibrated(here, *case, options), options.tokens, options.routing) for case in cases}
        for (network, gbit), plan in plans.items():
            told = ", ".join(f"{name} {time_text(times['pair'])}" for name, times in plan.items())
            print(f"{network} at {gbit:g} Gbit/s is predicted: {told}", flush=True)
        table, good = report(plans, options)
    except Unavailable as reason:
        skip(reason)
    print(f"\n{table}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
