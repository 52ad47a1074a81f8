#!/usr/bin/env python3
"""journey.py <build folder of the preset traced>: whether ranks enter the functions of docs/token_journey.md, in the
file that the page names and inside one host in its order. Runs an exchange on a library that records each function that
a rank enters. Called by scripts/test.sh."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = {"inside one host": ["2"], "between hosts": ["4", "host:2,rank:2"]}
ROW = re.compile(r"^\| \d+ \|.*\| `([^`]+)` `(\w+)` \|$", re.M)


def journeys(page):
    """{(operation, place): [(file, function)]} of the tables."""
    sections = re.findall(r"^## (Dispatch|Combine), (.*)\n((?:(?!## ).*\n?)*)", page, re.M)
    return {(operation.lower(), place): ROW.findall(text) for operation, place, text in sections}


def functions_at(library, addresses):
    """[(file, function)] of addresses in a library."""
    lines = subprocess.run(["addr2line", "-Cfe", library, *addresses], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    for name, place in zip(lines[::2], lines[1::2]):
        file = Path(place.rsplit(":", 1)[0]).resolve()
        plain = re.sub(r"\(anonymous namespace\)|<[^<>]*>|\[abi:\w+\]", "", re.sub(r"<[^<>]*>", "", name))
        function = re.search(r"(\w+)\(", plain) or re.search(r"(\w+)$", plain)
        if function and file.is_relative_to(ROOT):
            yield str(file.relative_to(ROOT)), function[1]


def entered(program, arguments):
    """{operation: {rank: [(file, function)] in the order of the first entries}}."""
    said = subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=100).stdout
    addresses = {}
    for line in said.splitlines():
        operation, rank, library, address = line.split()
        if "libferry" in library:
            addresses.setdefault(operation, {}).setdefault(rank, (library, []))[1].append(address)
    return {operation: {rank: list(functions_at(*found)) for rank, found in ranks.items()}
            for operation, ranks in addresses.items()}


def complaints(steps, ranks, in_order):
    """What is wrong with the steps of one table, given what each rank entered."""
    if not steps:
        yield "no steps in the table"
    for file, function in steps:
        if not any((file, function) in calls for calls in ranks.values()):
            yield f"no rank enters {function} of {file}"
    for rank, calls in ranks.items() if in_order else ():
        met = [step for step in dict.fromkeys(calls) if step in steps]  # a lambda is of the same name and file
        wanted = [step for step in steps if step in met]
        if met != wanted:
            yield f"rank {rank} enters {[name for _, name in met]}, the page says {[name for _, name in wanted]}"


def main(build):
    program = str(Path(build) / "journey")
    subprocess.run(["c++", "-std=c++20", "-O1", f"-I{ROOT}/include", f"{ROOT}/tests/journey/journey.cc", "-o", program,
                    "-rdynamic", f"-L{build}/src", "-lferry", f"-Wl,-rpath,{Path(build).resolve()}/src"], check=True)
    tables = journeys((ROOT / "docs/token_journey.md").read_text())
    found = []
    for place, arguments in PLACES.items():
        for operation, ranks in entered(program, arguments).items():
            steps = tables.pop((operation, place), [])
            found += [f"{operation} {place}: {each}"
                      for each in complaints(steps, ranks, in_order=place == "inside one host")]
    found += [f"no run for the table {table}" for table in tables]
    print("\n".join([*found, f"journey: {len(found)} complaints"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
