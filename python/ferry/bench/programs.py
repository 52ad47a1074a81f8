"""The programs that are compared: their names, whether each can run on this machine, and their commands."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Dict

from .. import native_program
from .measure import FOLDER, Job

FERRY, NATIVE = "ferry", "ferry, C++ bench"
# glibc returns no memory to the system and takes large blocks from its own heap, so that no page faults twice.
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**26)}
OPEN_MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class ProgramError(RuntimeError):
    """A program that cannot run here, or did not run to its end."""


@dataclass(frozen=True)
class Program:
    name: str     # the name in tables and pictures
    kind: str     # "native", or the name of the program in rank.py
    environment: Dict[str, str] = field(default_factory=dict)  # added to this process's, for its ranks only


ALWAYS = [Program(FERRY, "ferry"), Program(NATIVE, "native")]
BASELINES = {"gloo": [Program("Gloo", "gloo"), Program("Gloo, malloc tuned", "gloo", TUNED)],
             "mpi": [Program("MPI, malloc tuned", "mpi", {**OPEN_MPI_AS_ROOT, **TUNED})]}


def why_not(baseline):
    """Returns why a baseline cannot run on this machine, or None if it can."""
    if baseline == "mpi":
        if importlib.util.find_spec("mpi4py") is None:
            return "mpi4py is not installed (python -m pip install mpi4py)"
        return None if mpirun() else "mpi4py is installed, but neither mpirun nor mpiexec is found"
    import torch.distributed as dist

    return None if dist.is_available() and dist.is_gloo_available() else "this torch was built without Gloo"


def mpirun():
    return shutil.which("mpirun") or shutil.which("mpiexec")


def mpi_launch(ranks, pin=False):
    launcher = mpirun()
    version = subprocess.run([launcher, "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version:
        return [launcher, "-n", str(ranks)]
    # Ranks that share a core must yield it while they wait.
    crowded = ranks > len(os.sched_getaffinity(0))
    placing = ["--bind-to", "core"] if pin and not crowded else ["--oversubscribe", "--bind-to", "none"]
    return [launcher, *placing, *(["--mca", "mpi_yield_when_idle", "1"] if crowded else []), "-n", str(ranks)]


def options_of(**values):
    """Returns the words of the options on a command line: top_k=8 gives --top-k 8."""
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def rank_command(kind, shape, iterations, seed):
    """Returns the command of one rank of a Python program. Its last word is a task for rank.py."""
    task = {"shape": asdict(shape), "iterations": iterations, "seed": seed, "program": kind, "folder": FOLDER}
    return ["-m", "ferry.bench.rank", json.dumps(task)]


def job_of(program, shape, iterations, seed):
    case = [shape.tokens, shape.hidden, shape.ranks, shape.experts]
    rank = rank_command(program.kind, shape, iterations, seed)
    if program.kind == "native":
        options = options_of(**asdict(shape), iterations=iterations, seed=seed)
        command = [native_program.path(), "bench", *options, "--check", "--json"]
    elif program.kind == "mpi":
        command = [*mpi_launch(shape.ranks), sys.executable, "-m", "mpi4py", *rank]
    else:
        command = [native_program.path(), "launch", *options_of(ranks=shape.ranks), "--no-tag", "--", sys.executable,
                   *rank]
    return Job("shapes", case, program.name, command, program.environment)
