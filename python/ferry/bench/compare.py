"""Measures what a user could use in place of ferry: `ferry compare --with gloo,mpi`.

The same routing runs through ferry's Python API, ferry's own C++ bench, and the usual pipeline over an all-to-all of
torch.distributed's Gloo (as it is, and with glibc's malloc tuned in its favour) and of MPI (mpi4py, malloc tuned).
Ranks are processes, programs take turns in every round, ratios are taken within a round, and every result is verified.
Needs torch and numpy. `--json` writes what `ferry plot` draws. The command line calls add_arguments(), run().
"""

import argparse
import importlib.util
import json
import sys

from .measure import measure
from .page import when_and_where, write_page
from .programs import ALWAYS, BASELINES, FERRY, NATIVE, ProgramError, job_of, why_not
from .results import by_case, limits_of, median, median_ratio, times_of
from .words import aligned, plural, setting_of, time_text

NEEDED = ("numpy", "torch")
# Iterations with which ferry takes about half a second on any machine.
BYTES_PER_RUN, FEWEST, MOST = 2_000_000_000, 10, 500


def number_from(least):
    def read(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}' is no number from {least} on")
        return int(text)

    return read


def numbers(text):
    return [number_from(1)(part) for part in text.split(",")]


def add_arguments(parser):
    parser.add_argument("--with", dest="baselines", default="gloo,mpi", metavar="gloo,mpi",
                        help="what to compare with; none: ferry from Python and from C++ alone")
    parser.add_argument("--ranks", type=number_from(1), default=8)
    parser.add_argument("--tokens", type=numbers, default=[16], metavar="T,..",
                        help="of each rank; several: a table each")
    parser.add_argument("--hidden", type=number_from(1), default=7168)
    parser.add_argument("--top-k", type=number_from(1), default=8)
    parser.add_argument("--experts", type=number_from(1), default=256)
    parser.add_argument("--iterations", type=number_from(1), help="of each run (default: by the bytes that move)")
    parser.add_argument("--rounds", type=number_from(1), default=3, help="in which all programs take turns")
    parser.add_argument("--seed", type=number_from(0), default=1, help="of tokens and routing")
    parser.add_argument("--json", metavar="FILE", help="write all runs there, for ferry plot")
    parser.add_argument("--report", metavar="FILE", help="write one HTML page: the table, bars with their spread")


def fault_of(options):
    """Returns why the options cannot be run, or None if they can."""
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed (python -m pip install {module})"
    if options.experts % options.ranks:
        return f"--experts {options.experts}: must be a multiple of the {options.ranks} ranks"
    if options.top_k > options.experts:
        return f"--top-k {options.top_k}: there are only {options.experts} experts"
    return None


def choose_programs(text):
    """Returns (the programs to run, why others cannot run). Raises ProgramError if no program remains to compare with.
    """
    if text == "none":
        return ALWAYS, []
    chosen, reasons = [], []
    for name in filter(None, (name.strip() for name in text.split(","))):
        if name not in BASELINES:
            raise ProgramError(f"--with: '{name}' is none of {', '.join(BASELINES)}")
        reason = why_not(name)
        if reason:
            reasons.append(f"{name} is left out: {reason}")
        else:
            chosen += BASELINES[name]
    if not chosen:
        raise ProgramError("; ".join(["nothing to compare with", *reasons]))
    return ALWAYS + chosen, reasons


def iterations_for(shape):
    moved = 4 * shape.ranks * shape.tokens * shape.top_k * shape.hidden  # bytes of bf16 rows, there and back
    return min(MOST, max(FEWEST, BYTES_PER_RUN // moved))


def table_of(tokens, programs):
    """Returns the table of one shape: medians over rounds, ratios within a round, and below them the cost of Python."""
    limits, ferry = limits_of(programs), times_of(programs[FERRY])
    lines = [["", "dispatch", "combine", "pair", "pair / places known", "pair / ferry's"]]
    for program, rounds in programs.items():
        times = [time_text(median(times_of(rounds, what))) for what in ("dispatch", "combine", "pair")]
        pairs = times_of(rounds)
        lines.append([program, *times, f"{median_ratio(pairs, limits):.2f}", f"{median_ratio(pairs, ferry):.2f}"])
    setting = setting_of(next(iter(programs[FERRY].values()))["options"])
    heading = ", ".join([f"{plural(tokens, 'token')} per rank", *setting.values()])
    native = times_of(programs[NATIVE])
    more = median(ferry) - median(native)
    return "\n".join([f"{heading}; medians of {plural(len(ferry), 'round')}", *aligned(lines),
                      f"From Python a pair takes {median_ratio(ferry, native):.2f} of the C++ bench's time, "
                      f"{time_text(abs(more))} {'more' if more > 0 else 'less'}."])


def text_of(runs):
    """Returns a table for each shape, as text."""
    return "\n\n".join(table_of(tokens, programs) for (tokens, *_), programs in by_case(runs).items())


def run(options):
    fault = fault_of(options)
    if fault:
        return f"ferry compare: {fault}"
    from .work import Shape
    shapes = [Shape(tokens, options.hidden, options.ranks, options.experts, options.top_k) for tokens in options.tokens]
    try:
        programs, left_out = choose_programs(options.baselines)
        for line in left_out:
            print(f"ferry compare: {line}", file=sys.stderr)
        jobs = [job_of(program, shape, options.iterations or iterations_for(shape), options.seed)
                for shape in shapes for program in programs]
    except (ProgramError, FileNotFoundError) as error:
        return f"ferry compare: {error}"
    runs = measure(jobs, options.rounds, show=text_of)
    if any("error" in run["result"] for run in runs):
        return "ferry compare: a program failed"
    print(text_of(runs))
    try:
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"runs": runs}, file)
        if options.report:
            write_page(options.report, "ferry compare", [when_and_where()], runs=runs)
    except OSError as error:
        return f"ferry compare: {error.filename}: {error.strerror}"
    wrong = sum(run["result"]["wrong"] for run in runs)
    return f"ferry compare: {wrong} elements are wrong" if wrong else 0
