#!/usr/bin/env python3
"""mypy and pyright accept the examples and right.py, and refuse each line of wrong.py that says so, and no other.
Called by scripts/test.sh, step types, with the Python that has ferry and both."""

import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RIGHT = [HERE / "right.py", *sorted(HERE.glob("../../examples/python/*.py"))]
WRONG = HERE / "wrong.py"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode > 1 or done.stderr:
        sys.exit(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def mypy(files):
    """{(file, line): message} of the errors."""
    told = run(sys.executable, "-m", "mypy", "--check-untyped-defs", "--disable-error-code", "import-not-found",
               "--cache-dir", HERE / "../../build/mypy", *files)
    return {(Path(file).name, int(line)): text for file, line, text in re.findall(r"(.+?):(\d+): error: (.*)", told)}


def pyright(files):
    told = run(Path(sys.executable).with_name("basedpyright"), "-p", HERE, "--pythonpath", sys.executable,
               "--level", "error", "--outputjson", *files)
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1): each["message"]
            for each in json.loads(told)["generalDiagnostics"]}


def main():
    wrong = {(WRONG.name, at) for at, line in enumerate(WRONG.read_text().split("\n"), 1) if "  # wrong: " in line}
    faults = []
    for checker in (mypy, pyright):
        found = checker([*RIGHT, WRONG])
        faults += [f"{checker.__name__} accepts {name}:{line}" for name, line in sorted(wrong - set(found))]
        faults += [f"{checker.__name__} refuses {name}:{line}: {found[name, line]}"
                   for name, line in sorted(set(found) - wrong)]
    print(*faults, f"{len(wrong)} wrong lines, {len(faults)} faults", sep="\n")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
