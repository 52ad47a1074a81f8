#!/usr/bin/env python3
"""The oracle against a second implementation: `check.py ORACLE_VECTORS [SEED...]` runs the program, which draws random
cases and writes inputs and the oracle's outputs, and recomputes every output from the inputs with NumPy, written from
docs/numerics.md alone. Bit for bit, but that a NaN that came out of a sum equals any other."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from combined import Combine, combined
from dispatched import expand_idx, received
from number_formats import F32, to_float32
from routing import Routing
from row_sums import constant_term, norm
from wire_formats import combine_wire, dispatch_wire


class Case:
    def __init__(self, entry, data):
        self.kind, self.settings, self.arrays, self.data = entry["kind"], entry["settings"], entry["arrays"], data

    def __getitem__(self, name):
        array = self.arrays[name]
        count = int(np.prod(array["shape"], dtype=np.int64))
        return np.frombuffer(self.data, "<" + array["type"], count, array["offset"]).reshape(array["shape"])

    def of_rank(self, name, rank):
        """None where the rank gave, or got, nothing."""
        name = f"{name}.{rank}"
        return self[name] if name in self.arrays else None

    def floats(self, name):
        return to_float32(self[name], self.settings["type"])


# ---- one case: yields (name of an output, NumPy's, the oracle's, type of its numbers if any NaN equals any other)


def check_dispatch_wire(case):
    elements, scales, decoded = dispatch_wire(case.settings["wire"], case.floats("x"), case["factors"])
    yield "elements", elements, case["elements"], None
    yield "scales", scales, case["scales"], None
    yield "decoded", decoded, case["decoded"], "fp32"


def check_combine_wire(case):
    wire, element_type = case.settings["wire"], case.settings["type"]
    encoded, encoded_bytes, travelled = combine_wire(wire, case["x"], element_type)
    yield "encoded_bytes", encoded_bytes, case["encoded_bytes"], None
    yield "encoded", encoded, case["encoded"], None
    yield "travelled", travelled, case["travelled"], element_type


def check_constant_term(case):
    term = constant_term(*(case.floats(name) for name in ("x", "alpha1", "alpha2", "v")))
    yield "terms", term, case["terms"], "fp32"


def check_norm(case):
    element_type = case.settings["type"]
    out, y, rstd = norm(case["z"], case.floats("gamma"), F32(case.settings["epsilon"]), element_type)
    yield "out", out, case["out"], element_type
    yield "y", y, case["y"], element_type
    yield "rstd", rstd, case["rstd"], "fp32"


def check_dispatch(case):
    routing = Routing(case)
    for rank in range(case.settings["num_ranks"]):
        for name, mine in received(routing, rank).items():
            yield f"{name} of rank {rank}", mine, case.of_rank(f"received.{name}", rank), None


def check_combine(case):
    combine = Combine(Routing(case))
    for rank, out_type in enumerate(case.settings["out_type"]):
        types = {"out": out_type, "y": out_type}
        for name, mine in combined(combine, rank).items():
            yield f"{name} of rank {rank}", mine, case.of_rank(name, rank), types.get(name, "fp32")


def check_cann_golden(case):
    """What a real CANN run printed, from the oracle's outputs and from the ids alone."""
    routing = Routing(case)
    send_counts, token_nums = case["cann.sendCounts"], case["cann.expertTokenNums"]
    told = received(routing, 0)
    yield "expandIdx", expand_idx(routing, 0), case["cann.expandIdx"], None
    yield "sendCounts", case.of_rank("received.running_counts", 0), send_counts, None
    yield "sendCounts by NumPy", told["running_counts"], send_counts, None
    yield "expertTokenNums", np.cumsum(case.of_rank("received.tokens_per_expert", 0)), token_nums, None
    yield "expertTokenNums by NumPy", np.cumsum(told["tokens_per_expert"]), token_nums, None
    ids = case.of_rank("topk_ids", 0).ravel()
    earlier = np.tril(ids[:, None] == ids, -1).sum(axis=1)
    yield "expandIdx by NumPy", earlier, case["cann.expandIdx"], None


CHECKS = {f"dispatch wire {w}": check_dispatch_wire for w in "int8 int8_static fp8 fp8_pow2 fp8_ue8m0".split()}
CHECKS |= {f"combine wire {w}": check_combine_wire for w in "int8_8 int8_128 logfmt10".split()}
CHECKS |= {"constant term": check_constant_term, "norm": check_norm, "CANN golden": check_cann_golden}
CHECKS |= {f"dispatch {layout}": check_dispatch for layout in "rank_major expert_major padded".split()}
CHECKS |= {f"combine {layout}": check_combine for layout in "rank_major expert_major padded".split()}


# ---- comparing


def as_bits(array, float_type):
    """The numbers as integers; with `float_type` all NaN are one."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "f":
        array = array.view(f"u{array.itemsize}")
    if float_type is None:
        return array
    return np.where(np.isnan(to_float32(array, float_type)), -1, array.astype(np.int64))


def difference(mine, theirs, float_type):
    """None when equal; else what differs first. None stands for an array of no numbers."""
    mine = np.zeros(0) if mine is None else mine
    theirs = np.zeros(0) if theirs is None else theirs
    if mine.size == theirs.size == 0:
        return None
    if mine.shape != theirs.shape:
        return f"NumPy's shape is {mine.shape}, the oracle's {theirs.shape}"
    found = np.argwhere(as_bits(mine, float_type) != as_bits(theirs, float_type))
    if not len(found):
        return None
    first = tuple(int(i) for i in found[0])
    told = f"NumPy says {mine[first]!r}, the oracle {theirs[first]!r}"
    return f"{len(found)} of {mine.size} differ, first {first}: {told}"


class Tally:
    def __init__(self):
        self.cases = self.numbers = 0
        self.failures = []


def check_case(case, tally):
    """None, or the first thing that is wrong."""
    tally.cases += 1
    try:
        for name, mine, theirs, float_type in CHECKS[case.kind](case):
            tally.numbers += 0 if theirs is None else theirs.size
            found = difference(mine, theirs, float_type)
            if found:
                return f"{name}: {found}"
    except Exception as error:  # the oracle's rows lie elsewhere: an index that is none here
        return f"{type(error).__name__}: {error}"
    return None


def check_seed(program, seed, tallies):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, folder, str(seed)], check=True)
        manifest = json.loads(Path(folder, "manifest.json").read_text())
        data = Path(folder, "arrays.bin").read_bytes()
    for number, entry in enumerate(manifest["cases"]):
        case, tally = Case(entry, data), tallies[entry["kind"]]
        wrong = check_case(case, tally)
        if wrong:
            tally.failures.append(f"seed {seed}, case {number}: {wrong}; {case.settings}")


def main():
    program, seeds = sys.argv[1], sys.argv[2:] or ["1"]
    tallies = {kind: Tally() for kind in CHECKS}
    with np.errstate(all="ignore"):
        for seed in seeds:
            check_seed(program, seed, tallies)
    passed = failed = 0
    for kind, tally in tallies.items():
        num_failed = len(tally.failures) if tally.cases else 1
        passed, failed = passed + tally.cases - len(tally.failures), failed + num_failed
        print(f"{'FAIL' if num_failed else 'ok  '} {kind}: {tally.cases} cases, {tally.numbers} numbers compared")
        for failure in tally.failures[:3]:
            print(f"     {failure}")
    print(f"NumPy {np.__version__}, seeds {' '.join(seeds)}: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
