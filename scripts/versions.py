#!/usr/bin/env python3
"""versions.py: which versions of other projects a check of ferry ran with.

    versions.py record [--python PYTHON] WHAT PASSED FAILED [NAME...]
        notes in build/versions.jsonl that WHAT ran today with PYTHON, and with the versions that these distributions
        have there; a name that is not installed is left out
    versions.py print       prints the table of docs/versions.md with these notes
    versions.py write       puts them into docs/versions.md

A row is one project, version and check; a newer run replaces the row. PYTHON may be several words. Called by
scripts/test.sh, check_install.sh, check_with.sh and release.sh."""

import argparse
import datetime
import json
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTES, PAGE = ROOT / "build/versions.jsonl", ROOT / "docs/versions.md"
HEAD = "| project | version | what ran | passed | failed | date, machine |\n|---|---|---|---|---|---|\n"
TABLE = re.compile(r"(?<=<!-- versions:begin -->\n).*(?=<!-- versions:end -->)", flags=re.S)

ASK = """
import importlib.metadata as m, json, platform, sys
found = {"Python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def record(what, passed, failed, python, names):
    asked = subprocess.run([*shlex.split(python), "-c", ASK, *names], check=True, capture_output=True, text=True).stdout
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    NOTES.parent.mkdir(exist_ok=True)
    with NOTES.open("a") as notes:
        for project, version in json.loads(asked).items():
            row = {"project": project, "version": version, "what": what, "passed": passed, "failed": failed,
                   "where": f"{today}, {platform.machine()}"}
            notes.write(json.dumps(row) + "\n")


def rows_of(table):
    """{(project, version, what): row} of a table."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")[2:] if line]
    return {tuple(row[:3]): row for row in rows}


def order(key):
    numbers = tuple(int(number) for number in re.findall(r"\d+", key[1]))
    return key[0].lower(), tuple(-number for number in numbers), key[2]


def merged(table, notes):
    """The table with the notes, lines of JSON, in it."""
    rows = rows_of(table)
    for note in map(json.loads, notes):
        row = [note[name] for name in ("project", "version", "what", "passed", "failed", "where")]
        rows[tuple(row[:3])] = [str(cell) for cell in row]
    return HEAD + "".join(f"| {' | '.join(rows[key])} |\n" for key in sorted(rows, key=order))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("record")
    command.add_argument("what")
    command.add_argument("passed", type=int)
    command.add_argument("failed", type=int)
    command.add_argument("--python", default=sys.executable)
    command.add_argument("names", nargs="*")
    commands.add_parser("print")
    commands.add_parser("write")
    options = parser.parse_args()
    if options.command == "record":
        record(options.what, options.passed, options.failed, options.python, options.names)
        return
    page = PAGE.read_text()
    table = merged(TABLE.search(page)[0], NOTES.read_text().split("\n")[:-1] if NOTES.exists() else [])
    if options.command == "print":
        print(table, end="")
    else:
        PAGE.write_text(TABLE.sub(lambda _: table, page))


if __name__ == "__main__":
    main()
