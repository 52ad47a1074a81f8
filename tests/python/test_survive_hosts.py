"""Fronts of a group of three hosts that loses a rank by SIGKILL, also rank 0 with its whole host: what the others do
next with the same objects, and with those that they make, equals an oracle."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist

import ferry
import ferry.torch_backend
import test_moe_survive
import test_torch_backend_admit
import test_torch_backend_survive
from ferry.conformance.deep_ep_oracle import Inputs, same_bits
from ferry.deep_ep import Buffer
from test_deep_ep_buffer import outputs_of, send
from test_deep_ep_nodes import summed_by_node
from test_survive_fronts import VICTIM, left, lose

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "hosts"))

import hosts

pytestmark = pytest.mark.long

SIZE = 4
HOST_OF = "abcc"
STARTS = (0, 1, 2)  # the first rank of each host


def buffer_round(buffer, inputs):
    rank = buffer.rank
    recv_x, ids, weights, counts, handle, _ = send(buffer, inputs, rank)
    assert same_bits(recv_x, inputs.received(rank, inputs.x)) and counts == inputs.expert_list(rank)
    outputs = outputs_of(inputs)
    combined = buffer.combine(outputs[rank], handle)[0]
    assert same_bits(combined, summed_by_node(inputs, rank, outputs, [], STARTS))


def buffer(rank, _):
    """Rank 2, which is on the host of rank 3, is lost."""
    with ferry.init() as group:
        made, every = Buffer(group), Inputs(81, [6, 9, 5, 7])
        buffer_round(made, every)
        lose(group, lambda: buffer_round(made, every))
        assert rank != VICTIM
        for inputs in (left(82), left(83, hidden=32), left(84, top_k=3, num_experts=9), left(82)):
            buffer_round(made, inputs)  # of the exchange of view 1, and of new ones


def layer(rank, _):
    """Rank 0 and its host are lost."""
    with ferry.init() as group:
        test_moe_survive.switches(group, 0, test_moe_survive.in_dispatch)


def layer_of_rank_3(rank, _):
    with ferry.init() as group:
        test_moe_survive.switches(group, 3, test_moe_survive.in_combine)


def backend(rank, path):
    """Rank 0 and its host are lost, and then rank 3. The ranks met by an all-gather."""
    dist.init_process_group("cpu:ferry", init_method=f"file://{path}", rank=rank, world_size=SIZE,
                            timeout=timedelta(seconds=30))
    test_torch_backend_survive.all_calls(rank, (0, 1, 2, 3))
    test_torch_backend_survive.lose(rank, 0, 2, (1, 2, 3))
    test_torch_backend_survive.lose(rank, 3, 3, (1, 2))
    dist.destroy_process_group()


FRONTS = {buffer: [2], layer: [0], layer_of_rank_3: [3], backend: [0, 3]}  # and the ranks that it loses


def comes_back(rank, path):
    """The ranks met by an all-gather. Rank 2 is killed, and another process of its host takes its place."""
    test_torch_backend_admit.meet(rank, path)
    test_torch_backend_survive.all_calls(rank, (0, 1, 2, 3))
    test_torch_backend_survive.lose(rank, 2, 2, (0, 1, 3))
    assert ferry.torch_backend.admit() == (3, (0, 1, 2, 3))
    test_torch_backend_admit.go_on_with_all(rank)
    dist.destroy_process_group()


def takes_a_place(rank, path):
    test_torch_backend_admit.meet(rank, path)
    test_torch_backend_admit.go_on_with_all(rank)
    dist.destroy_process_group()


def start(bench, front, rank, path):
    settings = {"FERRY_ADDR": "tcp://a:4711", "FERRY_RANK": str(rank), "FERRY_SIZE": str(SIZE),
                "FERRY_SECRET": "a secret of this test", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, __file__, front.__name__, str(rank), str(path / "meet")]
    return subprocess.Popen(bench.command(HOST_OF[rank], *words), env={**os.environ, **settings},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def expect_well(said, lost):
    for rank, text in enumerate(said):
        if rank not in lost:
            assert text.endswith("well\n"), f"rank {rank}: {text}"


@pytest.mark.parametrize("front", FRONTS)
def test_a_rank_is_killed(front, tmp_path):
    try:
        with hosts.Hosts(3) as bench:
            ranks = [start(bench, front, rank, tmp_path) for rank in range(SIZE)]
            said = [rank.communicate(timeout=240)[0] for rank in ranks]
    except hosts.Unavailable as reason:
        pytest.skip(f"no hosts on this machine: {reason}")
    expect_well(said, FRONTS[front])


def test_a_killed_rank_comes_back(tmp_path):
    try:
        with hosts.Hosts(3) as bench:
            ranks = [start(bench, comes_back, rank, tmp_path) for rank in range(SIZE)]
            ranks[VICTIM].wait(timeout=240)
            ranks.append(start(bench, takes_a_place, VICTIM, tmp_path))
            said = [rank.communicate(timeout=240)[0] for rank in ranks]
    except hosts.Unavailable as reason:
        pytest.skip(f"no hosts on this machine: {reason}")
    expect_well(said, [VICTIM])


if __name__ == "__main__":
    torch.set_num_threads(1)
    programs = {program.__name__: program for program in (*FRONTS, comes_back, takes_a_place)}
    programs[sys.argv[1]](int(sys.argv[2]), sys.argv[3])
    print("well")
