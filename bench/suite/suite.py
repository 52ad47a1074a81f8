"""`make bench`: measures ferry beside the programs that are used today, and writes docs/benchmarks.md, its picture and
the table of README.md. scripts/bench.sh runs it in the root of the repository."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import report
from ferry.bench.measure import Job, add_idle_wait, measure
from ferry.bench.page import when_and_where
from ferry.bench.places import main_place
from ferry.bench.plot import draw
from ferry.bench.programs import OPEN_MPI_AS_ROOT, mpi_launch, mpirun, options_of

# tokens per rank, hidden, ranks, experts
SHAPES = [(16, 7168, 2, 256), (16, 7168, 8, 256), (128, 7168, 8, 256), (128, 2048, 4, 128)]
LARGE_SHAPES = [(1024, 7168, 8, 256), (4096, 7168, 2, 256), (4096, 2048, 4, 128)]
OVERHEAD_RANKS = [2, 4, 8, 16, 32, 64]
# The features that are compared with `none`: their names and options.
FEATURES = {**{f"wire {wire}": ["--wire", wire] for wire in ("int8", "fp8", "fp8_pow2", "fp8_ue8m0")},
            **{f"combine {wire}": ["--combine-wire", wire] for wire in ("int8_8", "int8_128", "logfmt10")},
            "half the entries masked": ["--mask-fraction", "0.5"],
            "one shared expert on one rank": ["--shared-experts", "1", "--shared-ranks", "1"]}
FEATURE_SHAPES = [(16, 7168, 8, 256), (4096, 7168, 2, 256)]
SKEW_CASES = [(2, 128), (8, 128), (2, 1024), (8, 1024)]  # ranks, tokens per rank
COLLECTIVES_RANKS, LARGEST_COLLECTIVE = 2, 16 << 20
TOP_K = 8


def ferry(build, shape, *more):
    tokens, hidden, ranks, experts = shape
    options = options_of(ranks=ranks, tokens=tokens, hidden=hidden, experts=experts, top_k=TOP_K)
    return [str(build / "tools/ferry"), "bench", *options, "--pin", "--json", *more]


def shape_jobs(build, shapes):
    mpi_bench = build / "bench/mpi_bench"
    for shape in shapes:
        tokens, hidden, ranks, experts = shape
        yield Job("shapes", list(shape), "ferry", ferry(build, shape, "--check"))
        for algorithm in report.MPI if mpirun() and mpi_bench.exists() else ():
            options = options_of(algorithm=algorithm, tokens=tokens, hidden=hidden, experts=experts, top_k=TOP_K)
            yield Job("shapes", list(shape), algorithm, [*mpi_launch(ranks, pin=True), str(mpi_bench), *options],
                      OPEN_MPI_AS_ROOT if os.geteuid() == 0 else {})


def overhead_jobs(build):
    """One token of 128 channels: nothing but the protocol."""
    for ranks in OVERHEAD_RANKS:
        for mode in ("processes", "threads"):
            yield Job("overhead", [ranks], mode, ferry(build, (1, 128, ranks, 256), "--mode", mode))


def skew_jobs(build, cases):
    for ranks, tokens in cases:
        for routing in ("uniform", "real"):
            command = ferry(build, (tokens, 7168, ranks, 256), "--routing", routing)
            yield Job("skew", [ranks, tokens], routing, command)


def feature_jobs(build, shapes):
    for shape in shapes:
        for program, options in ({"none": []} | FEATURES).items():
            yield Job("features", list(shape), program, ferry(build, shape, *options))


def collective_jobs(build):
    """Each program has the other one that ferry is compared with in the same processes."""
    case, options = [COLLECTIVES_RANKS], ["--largest", str(LARGEST_COLLECTIVE), "--rounds", "3", "--json"]
    torch_backend = [sys.executable, "bench/torch_backend.py", "--ranks", str(COLLECTIVES_RANKS), "--seconds", "0.02"]
    yield Job("collectives", case, "Gloo", [*torch_backend, *options])
    if mpirun() and (build / "bench/mpi_collectives").exists():
        yield Job("collectives", case, "Open MPI",
                  [*mpi_launch(COLLECTIVES_RANKS, pin=True), str(build / "bench/mpi_collectives"), *options],
                  OPEN_MPI_AS_ROOT if os.geteuid() == 0 else {})


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
    text = report.document(results)
    (folder / "benchmarks.md").write_text(text)
    if report.shapes(results):
        draw([source], folder / "pictures/pair.svg", kind="ratios", note=results.get("made"))
    if readme:
        replace_block(readme, report.readme_block(results))
    return text


def steady(runs):
    """Separates the runs of the place where the hypervisor had the cores most of the time, which reports show, from all
    others."""
    runs, elsewhere = main_place(runs)
    return {"runs": runs, "elsewhere": elsewhere}


def collect(options):
    build, quick = options.build.resolve(), options.quick
    if not mpirun() or not (build / "bench/mpi_bench").exists():
        print("bench: Open MPI was not found, its columns are left out (libopenmpi-dev)", file=sys.stderr)
    sections = {"shapes": shape_jobs(build, SHAPES if quick else SHAPES + LARGE_SHAPES),
                "overhead": overhead_jobs(build), "skew": skew_jobs(build, SKEW_CASES[:2] if quick else SKEW_CASES),
                "features": feature_jobs(build, FEATURE_SHAPES[:1] if quick else FEATURE_SHAPES),
                "collectives": collective_jobs(build)}
    jobs = [job for name in options.sections.split(",") for job in sections[name]]
    made = when_and_where()  # with the load before its own
    doctor = subprocess.run([str(build / "tools/ferry"), "doctor", "--json"], capture_output=True, text=True)
    found = json.loads(doctor.stdout)
    facts = {"machine": found["machine"], "simd": found["simd"], "made": made}
    runs = measure(jobs, options.rounds or (2 if quick else 5), options.idle_wait,
                   show=lambda runs: report.document({**facts, **steady(runs)}))
    return {**facts, **steady(runs)}


def add_arguments(parser):
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--rounds", type=int, help="of all runs (default: 5, quick: 2)")
    parser.add_argument("--quick", action="store_true",
                        help="small cases only; reports go to the build folder, not to docs")
    parser.add_argument("--sections", default="shapes,overhead,skew,features,collectives",
                        help="which to measure")
    add_idle_wait(parser)


def main():
    parser = argparse.ArgumentParser(description="Measure ferry beside what is used today")
    add_arguments(parser)
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE",
                        help="write the reports again from the results of an earlier run")
    options = parser.parse_args()
    source = options.source or options.build / "bench.json"
    if not options.source:
        source.write_text(json.dumps(collect(options)))
    results = json.loads(source.read_text())
    folder = options.build / "report" if options.quick else Path("docs")
    print(write_reports(results, source, folder, None if options.quick else Path("README.md")))
    runs = results["runs"] + results.get("elsewhere", [])
    return 1 if any(run["result"].get("error") or run["result"].get("wrong") for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
