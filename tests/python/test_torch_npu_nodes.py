"""ferry.torch_npu between nodes: nodes that are simulated by threads, and two namespaces that are two hosts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ferry
from ports import free_port
from torch_npu_ranks import check_all

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "hosts"))

import hosts


@pytest.fixture
def two_hosts():
    try:
        with hosts.Hosts(2) as bench:
            yield bench
    except hosts.Unavailable as reason:
        pytest.skip(f"no hosts on this machine: {reason}")


@pytest.mark.parametrize("topology", ["host:2,rank:2", "host:2,rank:1+3", "host:4,rank:1"])
def test_operators(topology):
    ferry.run_threads(4, check_all, topology=topology, deadline=60)


def test_operators_on_two_hosts(two_hosts):
    words = [sys.executable, "-m", "ferry", "launch", "--hosts", "a:2,b:2", "--", sys.executable,
             str(HERE / "torch_npu_ranks.py")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240,
                          env={**two_hosts.environment, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"rank {rank} on host:2,rank:2: the oracle's bits" in done.stdout for rank in range(4)), done.stdout


def test_a_program_for_npus_on_two_hosts(two_hosts):
    """Started by torchrun on each host, its group found by the name of the HCCL communicator."""
    port, environment = free_port(), {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    started = []
    for node, name in enumerate(two_hosts.names):
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node),
                 "--nproc-per-node", "2", "--master-addr", hosts.address(0), "--master-port", port,
                 str(HERE / "programs" / "npu_layer.py")]
        started.append(subprocess.Popen(two_hosts.command(name, *words), env=environment, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True))
    said = "".join(program.communicate(timeout=240)[0] for program in started)
    assert [program.returncode for program in started] == [0, 0], said
    assert all(f"layer on rank {rank}\n" in said for rank in range(4)), said
