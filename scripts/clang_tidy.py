#!/usr/bin/env python3
"""clang_tidy.py <build folder>: clang-tidy over the sources of src and tools, a folder at a time.

The build folder's database has the units of cmake/unity.cmake, which include the sources of a folder. Headers are most
of what clang-tidy reads, so a folder takes less than half of what its files take one by one. But the analyzer of
clang-tidy looks at functions of a main file only, so each unit becomes one text that has its sources one after the
other. Each finding is printed with the file and the line of the source."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT / "src", ROOT / "tools")


def is_ours(source):
    return any(folder in source.parents for folder in FOLDERS)


def sources_of(unit):
    """The sources that a unit includes; or the unit itself, if it is a source. Leaves out CUDA kernels and what a build
    makes of them: clang-tidy does not know the CUDA of today."""
    if unit.suffix == ".cu" or not unit.exists():
        return []
    if is_ours(unit):
        return [unit]
    included = [Path(file) for file in re.findall(r'^#include "(.*\.cc)"$', unit.read_text(), re.M)]
    if not included and "Unity" in unit.parts:
        sys.exit(f"clang_tidy.py: {unit} includes no source any more: configure the build folder again")
    return [file for file in included if is_ours(file)]


def write_unit(unit, sources):
    """Writes the texts of `sources` as `unit`; returns where each of its lines is from."""
    origins, text = [], []
    for source in sources:
        lines = source.read_text().splitlines()
        origins += [f"{source.relative_to(ROOT)}:{number}" for number in range(1, len(lines) + 1)]
        text += lines
    unit.write_text("\n".join(text) + "\n")
    return origins


def check(build, unit, sources):
    """(whether clang-tidy found nothing, what it said)"""
    origins = write_unit(unit, sources) if unit not in sources else []
    run = subprocess.run(["clang-tidy", "-quiet", f"-p={build}", unit], capture_output=True, text=True)
    said = re.sub(rf"^{re.escape(str(unit))}:(\d+)", lambda at: origins[int(at[1]) - 1] if origins else at[0],
                  run.stdout, flags=re.M)
    return run.returncode == 0, said


def main():
    build = Path(sys.argv[1])
    units = {Path(entry["file"]) for entry in json.loads((build / "compile_commands.json").read_text())}
    work = {unit: sources for unit in units if (sources := sources_of(unit))}
    longest_first = sorted(work, key=lambda unit: -sum(source.stat().st_size for source in work[unit]))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda unit: check(build, unit, work[unit]), longest_first))
    print("".join(said for _, said in results), end="")
    return 0 if all(fine for fine, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
