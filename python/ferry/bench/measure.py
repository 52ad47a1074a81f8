"""Runs the programs of a measurement. They take turns in every round, so that ratios can be taken within a round. A
program is a command that prints a JSON object in its last line."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Dict, List

from .places import flags_now_ns

RUN_LIMIT_S = 900
FOLDER = "@folder@"  # in a command: a folder that exists during the run
DISTURBED = 0.06     # part of all processors that other programs may use during a run
SPEEDS_APART = 1.25  # as in `ferry bench`: times of the same traffic differ by this factor only if memory is slower
ATTEMPTS = 3         # how often a run is made if other programs disturb it


@dataclass
class Job:
    section: str  # the table: "shapes" or another one
    case: list    # the numbers that identify the case within the section
    program: str  # the program, one of those that are compared for the case
    command: List[str]
    environment: Dict[str, str] = field(default_factory=dict)  # added to the environment of this process


def processor_seconds():
    """Returns (busy, total) seconds of all processors since boot. Time stolen by other virtual machines counts as
    busy."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [int(word) / ticks for word in open("/proc/stat").readline().split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def add_idle_wait(parser):
    parser.add_argument("--idle-wait", type=float, default=30, metavar="S",
                        help="how long to wait for an idle machine before a run; 0: never")


def wait_until_idle(limit_s):
    """Waits until the machine is idle. Returns False if it was not idle within limit_s seconds."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        before = processor_seconds()
        time.sleep(0.3)
        after = processor_seconds()
        if after[0] - before[0] <= DISTURBED * (after[1] - before[1]):
            return True
    return False


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_once(job):
    """Runs a program once and returns the object that it printed. "others" is added, the part of the processors' time
    that other processes used, and "flags_ns", the times of a flag before, during and after the run. A run that fails
    returns {"error": why}."""
    flags_ns = flags_now_ns()
    before, mine = processor_seconds(), children_seconds()
    with tempfile.TemporaryDirectory(prefix="ferry-bench-") as folder:
        try:
            done = subprocess.run([word.replace(FOLDER, folder) for word in job.command], capture_output=True,
                                  env={**os.environ, **job.environment}, text=True, timeout=RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {RUN_LIMIT_S} s"}
    after = processor_seconds()
    last = done.stdout.rstrip().rpartition("\n")[2]
    if not last.startswith("{"):
        last_words = (done.stderr or done.stdout).strip() or "no word"
        return {"error": f"exit code {done.returncode}: {last_words[-2000:]}"}
    others = after[0] - before[0] - (children_seconds() - mine)
    result = json.loads(last)
    return {**result, "others": max(0.0, others / (after[1] - before[1])),
            "flags_ns": [*flags_ns, *result.get("flags_ns", []), *flags_now_ns()]}


def run_undisturbed(job, idle_wait_s):
    """Runs a program up to ATTEMPTS times and returns the result of the run that other processes disturbed least. It
    stops after an undisturbed run, and when the machine was not idle before a run."""
    best = None
    for _ in range(ATTEMPTS):
        idle = idle_wait_s > 0 and wait_until_idle(idle_wait_s)
        result = run_once(job)
        if "error" in result:
            return result
        if best is None or result["others"] < best["others"]:
            best = result
        if best["others"] <= DISTURBED or not idle:
            break
    return best


def say(text):
    """Replaces the last line on a terminal by the text. Does nothing if the standard error is not a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def time_left(began, done, runs):
    """Returns text such as ", about 3 min left", from the mean time of the runs so far; "" before the first run."""
    seconds = (time.monotonic() - began) / done * (runs - done) if done else 0
    if not seconds:
        return ""
    return f", about {seconds / 60:.0f} min left" if seconds >= 60 else f", about {seconds:.0f} s left"


def measure(jobs, rounds, idle_wait_s=0, show=None):
    """Runs all jobs in each round, and returns a list of {section, case, program, round, result}. A job that failed is
    not run again. show(runs so far) returns the text that a terminal shows between two rounds."""
    runs, failed, began = [], set(), time.monotonic()
    for number in range(rounds):
        for at, job in enumerate(jobs):
            if at in failed:
                continue
            name = f"{job.section} {', '.join(map(str, job.case))}: {job.program}"
            left = time_left(began, len(runs), rounds * len(jobs))
            say(f"  round {number + 1} of {rounds}, run {at + 1} of {len(jobs)}{left}: {name} ..")
            result = run_undisturbed(job, idle_wait_s)
            if "error" in result:
                failed.add(at)
                say("")
                print(f"{name}: {result['error']}", file=sys.stderr)
            runs.append({"section": job.section, "case": job.case, "program": job.program, "round": number,
                         "result": result})
        if show and number + 1 < rounds and len(failed) < len(jobs) and sys.stderr.isatty():
            say("")
            print(f"after round {number + 1} of {rounds}:\n{show(runs)}\n", file=sys.stderr)
    say("")
    return runs


def disturbed_text(runs):
    """Returns a paragraph about disturbed runs; "" if no run was disturbed."""
    parts = [run["result"].get("others", 0) for run in runs]
    disturbed = [part for part in parts if part > DISTURBED]
    if not disturbed:
        return ""
    return (f"\n\n**Other processes disturbed {len(disturbed)} of {len(parts)} runs**: they used up"
            f" to {max(disturbed):.0%} of the processors.")


def speeds_text(runs):
    """Returns a paragraph about differences in speed; "" if the same traffic took about as long in all runs of a shape.
    """
    taken = defaultdict(list)
    for run in runs:
        result = run["result"]
        if "limit_us" in result:
            taken[run["section"], str(run["case"]), run["program"]] += result.get("limit_rounds_us",
                                                                               [result["limit_us"]["pair"]])
    apart = max((max(times) / min(times) for times in taken.values()), default=1)
    if apart <= SPEEDS_APART:
        return ""
    return ("\n\n**The memory of this machine changed its speed**: the same traffic, places known, took up to"
            f" {apart:.1f} times as long in one run as in another.\nCompare times of runs in which it took the same.")
