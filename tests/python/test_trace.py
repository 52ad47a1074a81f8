"""`ferry trace record` and `diff` on ranks that are processes: of one host, of two, and of torch process groups."""

import os
import subprocess
import sys

import pytest

import ferry
from ferry import native_program

# Each of the ranks plays two layers. The variable CHANGED names what rank 1 changes in the second one.
PROGRAM = """
import os
import ferry
import numpy as np

group = ferry.init(topology=os.environ.get("SHAPE", ""))
changed = os.environ.get("CHANGED") if group.rank == 1 else None
for layer in range(2):
    exchange = group.exchange(max_tokens=6, hidden=40, num_experts=6, top_k=3, dtype="float32")
    rows = (np.arange(6 * 40, dtype=np.float32).reshape(6, 40) % 37 + group.rank) / 7
    ids = (np.arange(6)[:, None] + np.array([[0, 2, 5]]) + group.rank) % 6
    weights = (np.array([[0.1, 0.7, 0.3]], np.float32) * np.ones((6, 1), np.float32)).copy()
    if layer == 1 and changed == "weight":
        weights[4, 2] = 0.25
    if layer == 1 and changed == "row":
        rows[3, 39] = 100
    received = exchange.dispatch(rows, ids, weights)
    exchange.combine(received.rows * 3, received.handle, weights)
"""


def ferry_program(*words, **variables):
    command = [str(native_program.path()), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, **variables})


@pytest.fixture
def record(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def record(name, ranks=4, **variables):
        done = ferry_program("trace", "record", "--out", tmp_path / name, "--", native_program.path(), "launch",
                             "-n", ranks, "--", sys.executable, program, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return tmp_path / name

    return record


def test_a_weight_is_named_among_processes(record):
    done = ferry_program("trace", "diff", record("a"), record("b", CHANGED="weight"))
    assert done.returncode == 1
    assert done.stdout.startswith("first difference: dispatch 1 of exchange 1, rank 1: weights of token 4, k 2: "
                                  "0.3 in A, 0.25 in B (1 of 18 differ)\n")


def test_a_row_is_named_between_hosts(record):
    shape = {"SHAPE": "host:2,rank:2", "UCX_TLS": "tcp"}
    a = record("a", **shape)
    done = ferry_program("trace", "diff", a, record("b", CHANGED="row", **shape))
    assert "first difference: dispatch 1 of exchange 1, rank 1: rows sent of token 3 (1 of 6 differ)" in done.stdout
    done = ferry_program("trace", "diff", a, record("c", **shape))
    assert (done.returncode, done.stdout) == (0, "equal: 40 records of 4 ranks\n")


def test_files_of_an_earlier_run_are_removed(record):
    record("a", ranks=3)
    done = ferry_program("trace", "diff", record("a", ranks=2), record("b", ranks=2))
    assert done.stdout == "equal: 20 records of 2 ranks\n"


def meet_in_pairs(rank, store, folder):
    import torch.distributed as dist

    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), "4"
    os.environ["FERRY_TRACE"] = f"{folder}/rank_%r.trace"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = ferry.init(process_group=pairs[rank // 2])
    group.exchange(max_tokens=2, hidden=8, num_experts=2, top_k=1)
    dist.destroy_process_group()


def test_groups_that_are_parts_of_a_job_have_files_of_their_own(tmp_path):
    torch = pytest.importorskip("torch")
    torch.multiprocessing.spawn(meet_in_pairs, (tmp_path / "store", tmp_path), nprocs=4)
    assert sorted(file.name for file in tmp_path.glob("*.trace")) == [f"rank_{rank}.trace" for rank in range(4)]


def test_words_that_cannot_be_compared(record, tmp_path):
    done = ferry_program("trace", "diff", tmp_path / "absent", tmp_path / "absent")
    assert done.returncode == 2 and "absent.0', and no file of another rank" in done.stderr
    done = ferry_program("trace", "record", "--out", tmp_path / "a")
    assert done.returncode == 2 and "there is no program behind --" in done.stderr
