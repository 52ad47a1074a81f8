"""Owns the programs that are compared: which there are, whether one can run here, and one run of one of them: its
command, its environment, and the result that its ranks leave. Called by compare's rounds."""

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Dict

from .. import native_program

FERRY, NATIVE = "ferry", "ferry, C++ bench"
RUN_LIMIT_S = 900
# glibc hands no block back to the system and takes the large ones from its own heap, so that no page faults twice.
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**26)}
OPEN_MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class ProgramError(RuntimeError):
    """A program that cannot run here, or did not run to its end."""


@dataclass(frozen=True)
class Program:
    name: str     # as tables and pictures show it
    kind: str     # "native", or what rank.py calls it
    environment: Dict[str, str] = field(default_factory=dict)  # on top of this process's, for its ranks only


ALWAYS = [Program(FERRY, "ferry"), Program(NATIVE, "native")]
BASELINES = {"gloo": [Program("Gloo", "gloo"), Program("Gloo, malloc tuned", "gloo", TUNED)],
             "mpi": [Program("MPI, malloc tuned", "mpi", {**OPEN_MPI_AS_ROOT, **TUNED})]}


def why_not(baseline):
    """Why a baseline cannot run here; None where it can."""
    if baseline == "mpi":
        if importlib.util.find_spec("mpi4py") is None:
            return "mpi4py is not installed (python -m pip install mpi4py)"
        return None if mpirun() else "mpi4py is installed, but neither mpirun nor mpiexec is found"
    import torch.distributed as dist

    return None if dist.is_available() and dist.is_gloo_available() else "this torch was built without Gloo"


def mpirun():
    return shutil.which("mpirun") or shutil.which("mpiexec")


def command(program, task):
    shape = task["shape"]
    if program.kind == "native":
        options = {**shape, "iterations": task["iterations"], "seed": task["seed"]}
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        return [native_program.path(), "bench", *words, "--check", "--json"]
    rank = ["-m", "ferry.compare.rank", json.dumps({**task, "program": program.kind})]
    if program.kind == "mpi":
        return [*mpi_launch(shape["ranks"]), sys.executable, "-m", "mpi4py", *rank]
    return [native_program.path(), "launch", "-n", str(shape["ranks"]), "--no-tag", "--", sys.executable, *rank]


def mpi_launch(ranks):
    launcher = mpirun()
    told = subprocess.run([launcher, "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in told:
        return [launcher, "-n", str(ranks)]
    # Ranks that share a core must give it away while they wait.
    crowded = ["--mca", "mpi_yield_when_idle", "1"] if ranks > len(os.sched_getaffinity(0)) else []
    return [launcher, "--oversubscribe", "--bind-to", "none", *crowded, "-n", str(ranks)]


def run(program, shape, iterations, seed):
    """The result of one run, with the keys of `ferry bench --json`. Raises ProgramError with its last words."""
    with tempfile.TemporaryDirectory(prefix="ferry-compare-") as folder:
        task = {"shape": asdict(shape), "iterations": iterations, "seed": seed, "folder": folder}
        try:
            done = subprocess.run(command(program, task), env={**os.environ, **program.environment},
                                  capture_output=True, text=True, timeout=RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise ProgramError(f"{program.name}: not done after {RUN_LIMIT_S} s") from None
        if program.kind == "native" and done.stdout.rstrip().endswith("}"):
            return json.loads(done.stdout.rstrip().rpartition("\n")[2])
        if done.returncode != 0:
            last_words = (done.stderr or done.stdout).strip() or "no word"
            raise ProgramError(f"{program.name}: exit code {done.returncode}: {last_words[-2000:]}")
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(shape.ranks)]
    return {"options": {**asdict(shape), "dtype": "bf16"}, **summary(ranks)}


def summary(ranks):
    """Of the ranks' times: an operation takes from the first rank's begin to the last one's end."""

    def spans_us(name, share=1):
        return [(max(end for _, end in times) - min(begin for begin, _ in times)) / 1000 / share
                for times in zip(*(rank[name] for rank in ranks))]

    return {"dispatch_us": quantiles(spans_us("dispatch")), "combine_us": quantiles(spans_us("combine")),
            "pair_us": quantiles(spans_us("batches", ranks[0]["pairs_per_batch"])),
            "compared": sum(rank["compared"] for rank in ranks), "wrong": sum(rank["wrong"] for rank in ranks)}


def quantiles(values):
    return {"min": min(values), "median": statistics.median(values),
            "p99": sorted(values)[int(0.99 * (len(values) - 1) + 0.5)]}
