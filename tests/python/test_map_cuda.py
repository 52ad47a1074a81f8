"""Programs written for GPUs, unchanged, under `python -m ferry.deep_ep --map-cuda` and under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ports import free_port

pytestmark = pytest.mark.long

pytest.importorskip("torch")

PROGRAMS = Path(__file__).parent / "programs"
LAUNCH = [sys.executable, "-m", "ferry.deep_ep"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
SMALL = ["--num-experts", "8", "--num-tokens", "16", "--hidden", "512", "--num-topk", "3"]


def environment():
    base = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**base, "OMP_NUM_THREADS": "1", "MASTER_PORT": free_port(), "PYTHONPATH": ""}


def play(words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name, last", [("normal_kernels", "normal kernels passed on node 0"),
                                        ("low_latency", "low latency passed"), ("elastic", "elastic passed")])
def test_programs_that_spawn_their_ranks(name, last):
    alignment = ["--alignment", "4"] if name == "elastic" else []
    said = play([*LAUNCH, "--map-cuda", str(PROGRAMS / f"{name}.py"), "--num-processes", "2", *SMALL, *alignment])
    assert said.splitlines()[-1] == last


def test_a_program_of_torchrun():
    said = play([*TORCHRUN, "-m", "ferry.deep_ep", "--map-cuda", str(PROGRAMS / "train.py")])
    assert sorted(said.splitlines()) == ["trained on rank 0", "trained on rank 1"]


@pytest.mark.parametrize("num_ranks, topology", [(2, ""), (4, "host:2,rank:2")])
def test_a_harness_with_an_oracle_of_its_own(num_ranks, topology, monkeypatch):
    monkeypatch.setenv("FERRY_TOPOLOGY", topology)
    said = play([*TORCHRUN[:4], str(num_ranks), TORCHRUN[5], "-m", "ferry.deep_ep", "--map-cuda",
                 str(PROGRAMS / "keyed_oracle.py")])
    passed = [f"{mode} {precision} passed on rank {rank}" for mode in ("low-latency", "normal")
              for precision in ("bf16", "fp8") for rank in range(num_ranks)]
    assert sorted(said.splitlines()) == passed


def test_without_the_option_cuda_stays_what_it_is():
    done = subprocess.run([*LAUNCH, str(PROGRAMS / "low_latency.py"), "--num-processes", "1", *SMALL],
                          capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode != 0 and "CUDA" in done.stderr


def test_calls_of_torch():
    assert play([sys.executable, str(Path(__file__).parent / "mapped_calls.py")]) == "all calls answered\n"


@pytest.mark.parametrize("words, code, said", [
    (["--help"], 0, "usage: python -m ferry.deep_ep"), (["--map-cuda", "-h"], 0, "--map-cuda"),
    ([], 1, "no program is named"), (["--map-cuda"], 1, "no program is named"),
    (["--map-npu", "x.py"], 1, "unknown option --map-npu"), (["missing.py"], 1, "there is no program missing.py")])
def test_the_command_line(words, code, said):
    done = subprocess.run([*LAUNCH, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == code and said in (done.stderr if code else done.stdout)


def test_a_program_for_npus():
    said = play([*TORCHRUN, str(PROGRAMS / "npu_layer.py")])
    assert sorted(said.splitlines()) == ["layer on rank 0", "layer on rank 1"]
