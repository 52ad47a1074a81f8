#!/usr/bin/env python3
"""Measures ferry beside what is used today, and writes what bench_report.py and `python -m ferry plot`
make of it. Programs of one case run one after the other, in every round, each on an idle machine:
only ratios of one round are claimed. Called by scripts/bench.sh."""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import bench_report

ROOT = Path(__file__).resolve().parent.parent
# tokens per rank, hidden, ranks, experts
SHAPES = [(16, 7168, 2, 256), (16, 7168, 8, 256), (128, 7168, 8, 256), (128, 2048, 4, 128)]
LARGE_SHAPES = [(1024, 7168, 8, 256), (4096, 7168, 2, 256), (4096, 2048, 4, 128)]
OVERHEAD_RANKS = [2, 4, 8, 16, 32, 64]
# What `none` is compared with: names, and the options that make the difference.
FEATURES = {**{f"wire {wire}": ["--wire", wire] for wire in ("int8", "fp8", "fp8_pow2", "fp8_ue8m0")},
            **{f"combine {wire}": ["--combine-wire", wire]
               for wire in ("int8_8", "int8_128", "logfmt10")},
            "half the entries masked": ["--mask-fraction", "0.5"],
            "one shared expert on one rank": ["--shared-experts", "1", "--shared-ranks", "1"]}
FEATURE_SHAPES = [(16, 7168, 8, 256), (4096, 7168, 2, 256)]
SKEW_CASES = [(2, 128), (8, 128), (2, 1024), (8, 1024)]  # ranks, tokens per rank
TOP_K = 8
RUN_LIMIT_S = 600
MOST_OTHER = bench_report.DISTURBED
ATTEMPTS = 3  # of a run that others disturbed


@dataclass
class Job:
    section: str  # shapes, overhead, skew
    case: list    # the numbers that name it within the section
    program: str  # what is compared within the case
    command: list


# ---- jobs


def ferry_command(build, ranks, tokens, hidden, experts, *more):
    shape = {"ranks": ranks, "tokens": tokens, "hidden": hidden, "experts": experts, "top-k": TOP_K}
    options = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    return [str(build / "tools/ferry"), "bench", *options, "--pin", "--json", *more]


def find_mpirun(build):
    """None where Open MPI, or the program that uses it, is not there."""
    path = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    return path if path and (build / "bench/mpi_bench").exists() else None


def mpi_command(build, mpirun, algorithm, shape):
    tokens, hidden, ranks, experts = shape
    crowded = ranks > len(os.sched_getaffinity(0))
    # Ranks that share a core must give it away while they wait.
    placing = "--oversubscribe --bind-to none --mca mpi_yield_when_idle 1" if crowded else (
        "--bind-to core")
    options = (f"--algorithm {algorithm} --tokens {tokens} --hidden {hidden} --experts {experts}"
               f" --top-k {TOP_K}")
    return [mpirun, *placing.split(), "-n", str(ranks), str(build / "bench/mpi_bench"),
            *options.split()]


def shape_jobs(build, shapes):
    mpirun = find_mpirun(build)
    for shape in shapes:
        tokens, hidden, ranks, experts = shape
        command = ferry_command(build, ranks, tokens, hidden, experts, "--check")
        yield Job("shapes", list(shape), "ferry", command)
        for algorithm in ("dedup", "a2av") if mpirun else ():
            command = mpi_command(build, mpirun, algorithm, shape)
            yield Job("shapes", list(shape), algorithm, command)


def overhead_jobs(build):
    """One token of 128 channels: nothing but the protocol."""
    for ranks in OVERHEAD_RANKS:
        for mode in ("processes", "threads"):
            command = ferry_command(build, ranks, 1, 128, 256, "--mode", mode)
            yield Job("overhead", [ranks], mode, command)


def skew_jobs(build, cases):
    for ranks, tokens in cases:
        for routing in ("uniform", "real"):
            command = ferry_command(build, ranks, tokens, 7168, 256, "--routing", routing)
            yield Job("skew", [ranks, tokens], routing, command)


def feature_jobs(build, shapes):
    for shape in shapes:
        tokens, hidden, ranks, experts = shape
        for program, options in ({"none": []} | FEATURES).items():
            command = ferry_command(build, ranks, tokens, hidden, experts, *options)
            yield Job("features", list(shape), program, command)


# ---- one run on a machine that is otherwise idle


def processor_seconds():
    """(busy, total) of all processors since boot; time stolen by other machines is busy."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [int(word) / ticks for word in open("/proc/stat").readline().split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def wait_until_idle(limit_s):
    """False: it never was."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        before = processor_seconds()
        time.sleep(0.3)
        after = processor_seconds()
        if after[0] - before[0] <= MOST_OTHER * (after[1] - before[1]):
            return True
    return False


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_once(job):
    """The last line of its output as an object, with the part of the processors others used."""
    before, mine = processor_seconds(), children_seconds()
    environment = dict(os.environ)
    if os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    try:
        done = subprocess.run(job.command, env=environment, capture_output=True, text=True,
                              timeout=RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {RUN_LIMIT_S} s"}
    after = processor_seconds()
    if done.returncode != 0:
        last_words = (done.stderr or done.stdout).strip().split("\n")[-1]
        return {"error": f"exit code {done.returncode}: {last_words}"}
    result = json.loads(done.stdout.strip().split("\n")[-1])
    others = after[0] - before[0] - (children_seconds() - mine)
    result["others"] = max(0.0, others / (after[1] - before[1]))
    return result


def run_undisturbed(job, idle_wait_s):
    """The least disturbed of a few attempts. One is enough when nothing disturbed it, and when the
    machine has no idle moment anyway; the report tells what others used."""
    best = None
    for _ in range(ATTEMPTS):
        idle = wait_until_idle(idle_wait_s)
        result = run_once(job)
        if "error" in result:
            return result
        if best is None or result["others"] < best["others"]:
            best = result
        if best["others"] <= MOST_OTHER or not idle:
            break
    return best


# ---- all runs


def say(text):
    """A line that overwrites itself, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def measure(jobs, rounds, idle_wait_s):
    runs, failed = [], set()
    for number in range(rounds):
        for at, job in enumerate(jobs):
            if id(job) in failed:
                continue
            name = f"{job.section} {', '.join(map(str, job.case))}: {job.program}"
            say(f"  round {number + 1} of {rounds}, run {at + 1} of {len(jobs)}: {name} ..")
            result = run_undisturbed(job, idle_wait_s)
            if "error" in result:
                failed.add(id(job))
                say("")
                print(f"bench: {name}: {result['error']}", file=sys.stderr)
            runs.append({"section": job.section, "case": job.case, "program": job.program,
                         "round": number, "result": result})
    say("")
    return runs


def describe_machine(build):
    done = subprocess.run([str(build / "tools/ferry"), "doctor", "--json"], check=False,
                          capture_output=True, text=True, timeout=RUN_LIMIT_S)
    found = json.loads(done.stdout)
    return {"machine": found["machine"], "simd": found["simd"]}


def replace_block(path, block):
    """Between the markers of a document that has them."""
    begin, end = "<!-- bench:begin -->\n", "<!-- bench:end -->"
    text = path.read_text() if path.exists() else ""
    if begin in text and end in text:
        head, rest = text.split(begin, 1)
        path.write_text(head + begin + block + end + rest.split(end, 1)[1])


def write_reports(results, source, folder, readme):
    """`source`: the file of the results, which the picture is drawn from."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    text = bench_report.document(results)
    (folder / "benchmarks.md").write_text(text)
    if bench_report.shapes(results):
        subprocess.run([sys.executable, "-m", "ferry", "plot", str(source), "--kind", "ratios",
                        "-o", str(folder / "pictures/pair.svg")], check=True)
    if readme:
        replace_block(readme, bench_report.readme_block(results))
    return text


def parse_arguments():
    parser = argparse.ArgumentParser(description="Measure ferry beside what is used today")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, help="of all runs (default: 5, quick: 2)")
    parser.add_argument("--quick", action="store_true",
                        help="small cases only; reports go to the build folder, not to docs")
    parser.add_argument("--sections", default="shapes,overhead,skew,features", help="which to measure")
    parser.add_argument("--idle-wait", type=float, default=30, metavar="S",
                        help="how long to wait for an idle machine before a run; 0: never")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE",
                        help="write the reports again from the results of an earlier run")
    return parser.parse_args()


def collect(options):
    if options.source:
        return json.loads(options.source.read_text())
    build = options.build.resolve()
    if find_mpirun(build) is None:
        print("bench: Open MPI was not found, its columns are left out (libopenmpi-dev)",
              file=sys.stderr)
    sections = {
        "shapes": shape_jobs(build, SHAPES if options.quick else SHAPES + LARGE_SHAPES),
        "overhead": overhead_jobs(build),
        "skew": skew_jobs(build, SKEW_CASES[:2] if options.quick else SKEW_CASES),
        "features": feature_jobs(build, FEATURE_SHAPES[:1] if options.quick else FEATURE_SHAPES)}
    jobs = [job for name in options.sections.split(",") for job in sections[name]]
    rounds = options.rounds or (2 if options.quick else 5)
    results = describe_machine(build) | {"runs": measure(jobs, rounds, options.idle_wait)}
    (build / "bench.json").write_text(json.dumps(results))
    return results


def main():
    options = parse_arguments()
    results = collect(options)
    folder = options.build / "report" if options.quick else ROOT / "docs"
    source = options.source or options.build / "bench.json"
    print(write_reports(results, source, folder, None if options.quick else ROOT / "README.md"))
    return 1 if any("error" in run["result"] for run in results["runs"]) else 0


if __name__ == "__main__":
    sys.exit(main())
