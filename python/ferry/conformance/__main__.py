"""`python -m ferry.conformance --api deep_ep --module NAME` prints which clauses of an interface a module keeps.

The exit code is 0 if all clauses that were run hold, 1 if one does not, and 2 for wrong arguments.
"""

import argparse
import contextlib
import json
import sys

from .clauses import APIS, clauses_of, implementation
from .routing import read
from .session import Session, UnknownClause


def parse(words):
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}",
        description="Runs the contract of an interface against an implementation, clause by clause.")
    parser.add_argument("--api", required=True, choices=sorted(APIS), help="the interface")
    parser.add_argument("--module", metavar="NAME", help="module that has its names, or module:object")
    parser.add_argument("--device", choices=["cpu", "cuda", "npu"], default="cpu", help="where tensors are (cpu)")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="processes, 1 to 8 (2)")
    parser.add_argument("--seed", type=int, default=1, help="of the inputs (1)")
    parser.add_argument("--routing", metavar="FILE[:LAYER]", help="router trace, .npy, of the clauses trace.*")
    parser.add_argument("--deadline", type=float, default=60, metavar="S", help="seconds for a clause (60)")
    parser.add_argument("--clause", action="append", metavar="NAME", help="run this one; may come several times")
    parser.add_argument("--json", metavar="FILE", help="also write the verdicts there; -: only that, to the output")
    parser.add_argument("--list", action="store_true", help="print the clauses and end")
    given = parser.parse_args(words)
    if not 1 <= given.ranks <= 8:
        parser.error(f"--ranks {given.ranks}: 1 to 8 are possible")
    if given.module is None and not given.list:
        parser.error("--module is needed: the module to judge, such as deep_ep")
    if given.deadline <= 0:
        parser.error(f"--deadline {given.deadline}: need more than 0 seconds")
    return parser, given


def main(words):
    parser, given = parse(words)
    if given.list:
        for name, clause in clauses_of(given.api).items():
            print(f"{name}: {clause.text}")
        return 0
    try:
        implementation(given.module)
    except Exception as error:  # modules of devices raise anything at import where the device is not there
        parser.error(f"--module {given.module}: {type(error).__name__}: {error}")
    try:
        routing = read(given.routing) if given.routing else None
    except (OSError, ValueError) as error:
        parser.error(f"--routing {given.routing}: {error}")
    with Session(given.api, given.ranks, given.device, given.seed, given.deadline, routing) as session:
        try:
            verdicts = run(session, given)
        except UnknownClause as error:
            parser.error(str(error))
    return 0 if all(verdict.holds for verdict in verdicts) else 1


def run(session, given):
    verdicts, quiet = [], given.json == "-"
    for verdict in session.judge(given.module, given.clause):
        verdicts.append(verdict)
        if not quiet:
            print(described(verdict, given), flush=True)
    broken = sum(not verdict.holds for verdict in verdicts)
    if not quiet:
        print(f"{given.module}: {len(verdicts) - broken} clauses of {given.api} hold, {broken} do not")
    if given.json:
        write_json(verdicts, given)
    return verdicts


def reproducer(name, given):
    """Returns the command that runs one clause again."""
    words = f"python -m {__package__} --api {given.api} --module {given.module} --ranks {given.ranks}"
    device = "" if given.device == "cpu" else f" --device {given.device}"
    routing = f" --routing {given.routing}" if given.routing else ""
    return f"{words}{device} --seed {given.seed}{routing} --clause {name}"


def described(verdict, given):
    if verdict.holds:
        return f"holds   {verdict.name}"
    lines = [f"BROKEN  {verdict.name}: {verdict.text}", *(f"        {text}" for text in verdict.complaints),
             f"        again: {reproducer(verdict.name, given)}"]
    return "\n".join(lines)


def write_json(verdicts, given):
    """Writes a JSON object with the verdicts of all clauses to a file, or to the standard output."""
    record = {
        "api": given.api, "module": given.module, "ranks": given.ranks, "device": given.device, "seed": given.seed,
        "holds": all(verdict.holds for verdict in verdicts),
        "clauses": [{"name": v.name, "text": v.text, "holds": v.holds, "complaints": v.complaints,
                     "seconds": round(v.seconds, 3), **({} if v.holds else {"again": reproducer(v.name, given)})}
                    for v in verdicts]}
    to = contextlib.nullcontext(sys.stdout) if given.json == "-" else open(given.json, "w")
    with to as file:
        json.dump(record, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
