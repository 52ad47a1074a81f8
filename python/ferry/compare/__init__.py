"""What a user would pick instead, measured here: `python -m ferry compare --with gloo,mpi`.

The same routing runs through ferry's Python API, ferry's own C++ bench, and the usual pipeline over an all-to-all of
torch.distributed's Gloo (as it is, and with glibc's malloc tuned in its favour) and of MPI (mpi4py, malloc tuned).
Ranks are processes, programs take turns in every round, ratios are taken within a round, and every result is verified.
Needs torch and numpy. `--json` writes what `python -m ferry plot` draws. The command line calls add_arguments(), run().
"""

import argparse
import importlib.util
import json
import sys

NEEDED = ("numpy", "torch")
# Iterations so that ferry takes about half a second, whatever the machine.
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
    parser.add_argument("--with", dest="baselines", default="gloo,mpi", metavar="gloo,mpi", help="what to compare with")
    parser.add_argument("--ranks", type=number_from(1), default=8)
    parser.add_argument("--tokens", type=numbers, default=[16], metavar="T,..",
                        help="of each rank; several: a table each")
    parser.add_argument("--hidden", type=number_from(1), default=7168)
    parser.add_argument("--top-k", type=number_from(1), default=8)
    parser.add_argument("--experts", type=number_from(1), default=256)
    parser.add_argument("--iterations", type=number_from(1), help="of each run (default: by the bytes that move)")
    parser.add_argument("--rounds", type=number_from(1), default=3, help="in which all programs take turns")
    parser.add_argument("--seed", type=number_from(0), default=1, help="of tokens and routing")
    parser.add_argument("--json", metavar="FILE", help="write all runs there, for python -m ferry plot")


def fault_of(options):
    """What cannot be run at all; None: nothing."""
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed (python -m pip install {module})"
    if options.experts % options.ranks:
        return f"--experts {options.experts}: must be a multiple of the {options.ranks} ranks"
    if options.top_k > options.experts:
        return f"--top-k {options.top_k}: there are only {options.experts} experts"
    return None


def choose_programs(text):
    """(programs, why some were left out). Raises ProgramError where nothing is left to compare with."""
    from .programs import ALWAYS, BASELINES, ProgramError, why_not
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
    moved = 4 * shape.ranks * shape.tokens * shape.top_k * shape.hidden  # bf16, there and back
    return min(MOST, max(FEWEST, BYTES_PER_RUN // moved))


def compare(programs, shapes, rounds, seed, iterations=None, progress=lambda text: None):
    """All runs, a list of {section, case, program, round, result}: what `make bench` writes, and plot reads."""
    from .programs import run as run_program
    runs = []
    for number in range(rounds):
        for shape in shapes:
            for program in programs:
                progress(f"round {number + 1} of {rounds}, {shape.tokens} tokens: {program.name} ..")
                result = run_program(program, shape, iterations or iterations_for(shape), seed)
                case = [shape.tokens, shape.hidden, shape.ranks, shape.experts]
                runs.append({"section": "shapes", "case": case, "program": program.name, "round": number,
                             "result": result})
    progress("")
    return runs


def say(text):
    """A line that overwrites itself, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def run(options):
    fault = fault_of(options)
    if fault:
        return f"ferry compare: {fault}"
    from . import table
    from .programs import ProgramError
    from .work import Shape
    shapes = [Shape(tokens, options.hidden, options.ranks, options.experts, options.top_k) for tokens in options.tokens]
    try:
        programs, left_out = choose_programs(options.baselines)
        for line in left_out:
            print(f"ferry compare: {line}", file=sys.stderr)
        runs = compare(programs, shapes, options.rounds, options.seed, options.iterations, say)
    except (ProgramError, FileNotFoundError) as error:
        return f"ferry compare: {error}"
    print(table.text(runs))
    if options.json:
        try:
            with open(options.json, "w") as file:
                json.dump({"runs": runs}, file)
        except OSError as error:
            return f"ferry compare: {options.json}: {error.strerror}"
    wrong = sum(run["result"]["wrong"] for run in runs)
    return f"ferry compare: {wrong} elements are wrong" if wrong else 0
