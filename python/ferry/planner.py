"""ferry.plan returns the time that dispatch and combine take on a machine. It runs `ferry plan --json`."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterable, Optional, Union

from ferry import native_program
from ferry.errors import InvalidArgument


def plan(machine: Union[str, Dict[str, Any]], *, loads: Optional[Iterable[float]] = None,
         **options: Union[str, float, bool]) -> Dict[str, Any]:
    """Returns the JSON object of `ferry plan` (docs/plan_json.md); with sweep="tokens=128,4096" a list of them.

    machine is a preset ("ubbv2:2@port10"), levels ("host:2@12.5GB/s,rank:4"), a text of the lines in docs/plan.md, or a
    dict with the keys of its JSON form. loads says how often each expert is chosen, E numbers; with None the routing is
    uniform. options are those of the command, with _ for -, such as model="deepseek-v3", tokens=4096, ep=16 or
    routing="limited:4/8"; a flag has the value True.
    Raises ferry.InvalidArgument with the message of the command.
    """
    if not isinstance(machine, (str, dict)):
        raise TypeError(f"machine is {machine!r}, need a text or a dict")
    with tempfile.TemporaryDirectory() as folder:
        names = {f"{folder}/{file}": file.split(".")[0] for file in ("machine.json", "machine.txt", "loads.json")}
        if isinstance(machine, dict):
            machine = _write(folder, "machine.json", json.dumps(machine, indent=1))
        elif "\n" in machine:
            machine = _write(folder, "machine.txt", machine)
        if loads is not None:
            options["routing"] = _write(folder, "loads.json", json.dumps([float(load) for load in loads]))
        command = [native_program.path(), "plan", machine, "--json"]
        for name, value in options.items():
            option = "--" + name.replace("_", "-")
            command += [option] if value is True else [option, str(value)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        message = done.stderr.strip() or f"ferry plan ended with {done.returncode}"
        for file, name in names.items():  # the caller gave no file
            message = message.replace(file, name)
        raise InvalidArgument(message)
    return json.loads(done.stdout)


def _write(folder, name, text):
    path = Path(folder) / name
    path.write_text(text)
    return str(path)
