"""`python bench/suite/planned.py`: compares `ferry plan` with times on this machine. `ferry doctor --calibrate`
measures the constants of the machine. Every shape is then predicted, printed, and only then measured; no shape is one
of the calibration. The output is a table of errors, and the exit code is 1 when an error is over --within. Where the
hypervisor moves the cores between caches, each place of the cores has predictions, and a table of its runs."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import ferry
from ferry import native_program
from ferry.bench.compare import number_from
from ferry.bench.measure import Job, add_idle_wait, disturbed_text, measure, wait_until_idle
from ferry.bench.places import flags_now_ns, in_place
from ferry.bench.programs import options_of
from ferry.bench.results import by_case
from ferry.bench.words import markdown, time_text
from suite import LARGE_SHAPES, SHAPES, TOP_K

# tokens per rank, hidden, ranks, experts
OTHERS = [(32, 4096, 2, 64), (64, 7168, 4, 256), (48, 5120, 8, 160), (256, 7168, 8, 256), (256, 2048, 2, 128),
          (512, 4096, 4, 128), (512, 1024, 8, 64), (1024, 4096, 4, 256), (2048, 7168, 2, 256), (2048, 2048, 8, 128)]
SKEWED = [(128, 7168, 2, 256), (128, 7168, 8, 256), (1024, 7168, 2, 256), (1024, 7168, 8, 256)]
WHAT = ("dispatch", "combine", "pair")
MOST_ROUNDS = 5    # rounds that are tried, in any place of the cores, for each round that one place needs
MOST_WAIT_S = 600  # waits while the cores are in none of the places


def calibrated(rounds, idle_wait_s):
    """A machine for each place in which the cores were."""
    wait_until_idle(idle_wait_s)
    with tempfile.TemporaryDirectory() as folder:
        options = ["--calibrate", str(Path(folder) / "here.json"), "--rounds", str(rounds)]
        print(subprocess.run([native_program.path(), "doctor", *options], check=True, stdout=subprocess.PIPE,
                             text=True).stdout, end="", flush=True)
        files = sorted(Path(folder).iterdir(), key=lambda file: len(file.name))  # here.json first
        return [json.loads(file.read_text()) for file in files]


def shape_of(case):
    tokens, hidden, _, experts = case[:4]
    return {"tokens": tokens, "hidden": hidden, "experts": experts, "top_k": TOP_K, "routing": case[4]}


def predicted(machine, case):
    """{dispatch, combine, pair: us}"""
    found = ferry.plan(machine, ep=case[2], **shape_of(case))["predictions"][0]
    return {what: found[f"{what}_us"] for what in WHAT}


def job_of(case):
    command = [native_program.path(), "bench", *options_of(ranks=case[2], **shape_of(case)), "--pin", "--json"]
    return Job("planned", list(case), "ferry", command)


def name_of(case):
    routing = case[4].replace("load:", "")
    return ", ".join(map(str, case[:4])) + ("" if routing == "uniform" else f", {Path(routing).name}")


def measured_of(result):
    """{dispatch, combine, pair: us}. The pair is the fastest batch of a run; it is split into dispatch and combine by
    the medians of both when each is timed alone. tools/calibrate/runs.cc does the same."""
    alone = {what: result[f"{what}_us"]["median"] for what in ("dispatch", "combine")}
    pair = result["pair_us"]["min"]
    return {**{what: pair * us / sum(alone.values()) for what, us in alone.items()}, "pair": pair}


def percent(part):
    return f"{100 * part:+.1f} %"


def second_of(times):
    """How far the second fastest run is above the fastest, which shows how well the machine repeats itself. None for a
    single run."""
    ascending = sorted(times)
    return ascending[1] / ascending[0] - 1 if len(ascending) > 1 else None


def table_of(predictions, runs):
    """(table, errors of pairs, second_of() of each shape). The measured time is that of the fastest pair of all rounds,
    as in the calibration, since a plan does not include other users of the same cache."""
    lines, errors, seconds = [["tokens per rank, H, ranks, E", "pair predicted", "measured", "error", "of dispatch",
                               "of combine", "second run", "median run"]], [], []
    measured_cases = by_case(runs, "planned")
    for case in filter(measured_cases.get, predictions):
        rounds = [measured_of(result) for result in measured_cases[case]["ferry"].values()]
        measured = min(rounds, key=lambda times: times["pair"])
        error = {what: predictions[case][what] / measured[what] - 1 for what in WHAT}
        pairs = [times["pair"] for times in rounds]
        errors.append(abs(error["pair"]))
        second = second_of(pairs)
        if second is not None:
            seconds.append(second)
        lines.append([name_of(case), time_text(predictions[case]["pair"]), time_text(measured["pair"]),
                      *(percent(error[what]) for what in ("pair", "dispatch", "combine")),
                      "" if second is None else percent(second),
                      f"{percent(statistics.median(pairs) / measured['pair'] - 1)} of {len(rounds)}"])
    return markdown(lines), errors, seconds


def flag_ns_of(machine):
    return machine["host"].get("flag_ns", 0)


def place_text(machine):
    return f"flag {flag_ns_of(machine):.0f} ns: " if flag_ns_of(machine) else ""


def report(machines, predictions, runs):
    """(text, errors of pairs in each place)"""
    text, errors = "", []
    for machine, predicted_here in zip(machines, predictions):
        table, found, seconds = table_of(predicted_here, [run for run in runs if in_place(run, flag_ns_of(machine))])
        errors.append(found)
        text += (f"\n{table}\n{place_text(machine)}{len(found)} of {len(predicted_here)} shapes, median error"
                 f" {100 * statistics.median(found or [0]):.1f} %, worst {100 * max(found, default=0):.1f} %\n")
        if seconds:
            text += (f"the second fastest run of a shape is {100 * statistics.median(seconds):.1f} % above the fastest"
                     f" in the median, {100 * max(seconds):.1f} % at most\n")
    return text + disturbed_text(runs), errors


def missing(machine, cases, runs, rounds):
    """The cases that have fewer than `rounds` runs with the cores where the calibration of `machine` had them."""
    had = Counter(tuple(run["case"]) for run in runs if in_place(run, flag_ns_of(machine)))
    return [case for case in cases if had[case] < rounds]


def measure_cases(machines, cases, options, show):
    """Runs until one place has all cases `rounds` times. The next case to run is one that the present place lacks."""
    runs, rounds, end = [], 0, time.monotonic() + MOST_WAIT_S
    while rounds < MOST_ROUNDS * options.rounds and time.monotonic() < end:
        lacking = [missing(machine, cases, runs, options.rounds) for machine in machines]
        if not all(lacking):
            break
        now = {"result": {"flags_ns": flags_now_ns()}}
        wanted = next((few for machine, few in zip(machines, lacking) if in_place(now, flag_ns_of(machine))), None)
        if wanted is None:
            time.sleep(1)
            continue
        runs += [{**run, "round": rounds} for run in measure([job_of(case) for case in wanted], 1, options.idle_wait)]
        rounds, end = rounds + 1, time.monotonic() + MOST_WAIT_S
        print(show(runs), file=sys.stderr, flush=True)
    return runs


def shape(text):
    tokens, hidden, ranks, experts = map(int, text.split(","))
    return tokens, hidden, ranks, experts


def main():
    parser = argparse.ArgumentParser(prog="python bench/suite/planned.py", description=__doc__)
    parser.add_argument("--rounds", type=number_from(1), default=6,
                        help="of all shapes in one place, of the calibration and of what is predicted")
    add_idle_wait(parser)
    parser.add_argument("--within", type=float, default=10, metavar="PERCENT", help="error of a pair that is allowed")
    parser.add_argument("--machine", type=Path, nargs="+", metavar="FILE",
                        help="what `ferry doctor --calibrate` has just written (default: calibrates)")
    parser.add_argument("--shapes", nargs="+", type=shape, metavar="T,H,R,E",
                        help="tokens per rank, hidden, ranks, experts (default: those of docs/planning.md)")
    parser.add_argument("--loads", nargs="*", default=[], metavar="FILE",
                        help="instead of uniform routing: files of SGLang's expert-distribution recorder")
    options = parser.parse_args()
    routings = [f"load:{file}" for file in options.loads] or ["uniform"]
    shapes = options.shapes or (SKEWED if options.loads else SHAPES + LARGE_SHAPES + OTHERS)
    cases = [(*one, routing) for one in shapes for routing in routings]
    machines = ([json.loads(file.read_text()) for file in options.machine or []] or
                calibrated(options.rounds, options.idle_wait))
    predictions = [{case: predicted(machine, case) for case in cases} for machine in machines]
    for machine, predicted_here in zip(machines, predictions):
        for case, times in predicted_here.items():
            print(f"{place_text(machine)}{name_of(case)}: a pair is predicted to take {time_text(times['pair'])}",
                  flush=True)
    runs = measure_cases(machines, cases, options, lambda runs: report(machines, predictions, runs)[0])
    text, errors = report(machines, predictions, runs)
    print(text)
    complete = [found for found in errors if len(found) == len(cases)]
    return 0 if complete and max(map(max, complete)) <= options.within / 100 else 1


if __name__ == "__main__":
    sys.exit(main())
