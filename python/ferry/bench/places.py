"""Detects whether the cores were moved between measurements. The hypervisor of a virtual machine may move the cores
from one last-level cache to two and back. The time that a flag takes from one core to another shows such a move."""

import json
import subprocess

from .. import native_program

FLAGS_APART = 2  # as in `ferry bench`: times of a flag differ by this factor only if the cores are placed differently
PROBE = ("bench", "--ranks", "1", "--tokens", "1", "--hidden", "64", "--experts", "1", "--top-k", "1", "--warmup", "0",
         "--iterations", "1", "--json")


def flags_now_ns():
    """Runs PROBE and returns the times of a flag that it measures, in nanoseconds; 0 on one core."""
    done = subprocess.run([native_program.path(), *PROBE], capture_output=True, check=True, text=True)
    return json.loads(done.stdout.rstrip().rpartition("\n")[2])["flags_ns"]


def cores_moved(flags_ns):
    """Whether the hypervisor moved the cores between the measurements of these times."""
    return bool(flags_ns) and max(flags_ns) > FLAGS_APART * min(flags_ns)


def in_place(run, flag_ns):
    """Whether a flag took about flag_ns throughout the run. True if either time is not known."""
    flags_ns = run["result"].get("flags_ns", [])
    return not flag_ns or not cores_moved([*flags_ns, flag_ns])


def main_place(runs):
    """Returns (the runs with the most frequent placement of the cores, all other runs)."""
    flags = sorted(run["result"]["flags_ns"][0] for run in runs if run["result"].get("flags_ns"))
    flag_ns = max(flags, key=lambda flag_ns: sum(in_place(run, flag_ns) for run in runs), default=0)
    return [run for run in runs if in_place(run, flag_ns)], [run for run in runs if not in_place(run, flag_ns)]
