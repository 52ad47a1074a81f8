"""A program that a new installation must run with Python alone: memoryviews in and out, two ranks, the command line.
Run by tests/python/test_wheel.py and scripts/check_install.sh."""

import subprocess
import sys
import sysconfig
from array import array

import ferry


def body(group):
    exchange = group.exchange(max_tokens=2, hidden=40, num_experts=4, top_k=2, dtype="float32")
    tokens = memoryview(array("f", range(80))).cast("B").cast("f", (2, 40))
    ids = memoryview(array("q", [0, 3, 2, 1])).cast("B").cast("q", (2, 2))
    rows = exchange.dispatch(tokens, ids)
    out = memoryview(exchange.combine(rows.rows, rows.handle))
    assert out.tolist() == [[2.0 * x for x in range(40)], [2.0 * x for x in range(40, 80)]], out.tolist()


ferry.run_threads(2, body)
assert "numpy" not in sys.modules and "torch" not in sys.modules
if sys.argv[1:] != ["without-command"]:
    ferry_command = sysconfig.get_path("scripts") + "/ferry"
    told = subprocess.run([ferry_command, "--version"], check=True, capture_output=True, text=True).stdout
    assert told == f"ferry {ferry.__version__}\n", told
    bench = ["bench", "--ranks", "2", "--tokens", "2", "--hidden", "64", "--check"]
    subprocess.run([ferry_command, *bench], check=True, capture_output=True)
print("ferry", ferry.__version__, "works")
