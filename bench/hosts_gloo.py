#!/usr/bin/env python3
"""The Gloo pipeline of `python -m ferry compare`, with ranks that a given command starts: hosts_gloo.py TASK COMMAND..,
where COMMAND ends with the Python that runs a rank. Prints one JSON object. Called by hosts.py, whose hosts have
their files and clock in common."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ferry.compare.programs import TUNED, summary


def main(task, command):
    task = json.loads(task)
    with tempfile.TemporaryDirectory(prefix="ferry-gloo-") as folder:
        rank = json.dumps({**task, "program": "gloo", "folder": folder})
        done = subprocess.run([*command, "-m", "ferry.compare.rank", rank], env={**os.environ, **TUNED},
                              stdout=sys.stderr)
        if done.returncode != 0:
            return done.returncode
        files = [Path(folder, f"{rank}.json") for rank in range(task["shape"]["ranks"])]
        print(json.dumps(summary([json.loads(file.read_text()) for file in files])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
