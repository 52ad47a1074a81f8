"""`import deep_ep` after ferry.deep_ep.install() and under `python -m ferry.deep_ep`."""

import importlib.util
import os
import subprocess
import sys
import types

import pytest

pytest.importorskip("torch")

import ferry
import ferry.deep_ep
from ferry.deep_ep import program


@pytest.fixture(autouse=True)
def modules():
    """Undoes the installation of a test."""
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        if name.partition(".")[0] == "deep_ep":
            del sys.modules[name]


def test_names_and_submodules():
    environment = dict(os.environ)
    assert importlib.util.find_spec("deep_ep") is None
    assert ferry.deep_ep.install() is ferry.deep_ep.install()
    for name in ("deep_ep", "deep_ep.utils", "deep_ep.buffers.legacy", "deep_ep.buffers.elastic"):
        assert importlib.util.find_spec(name).name == name
    import deep_ep
    from deep_ep import Buffer, ElasticBuffer, EPHandle, EventHandle, EventOverlap, topk_idx_t  # noqa: F401
    from deep_ep import get_logical_domain_size, get_physical_domain_size  # noqa: F401
    from deep_ep.buffer import Buffer as buffer_of_1, Config, EventOverlap as overlap_of_1
    from deep_ep.buffers import ElasticBuffer as elastic_of_all
    from deep_ep.buffers.elastic import ElasticBuffer as elastic_of_2
    from deep_ep.buffers.legacy import Buffer as buffer_of_2
    from deep_ep.utils import EventHandle as handle_of_1, EventOverlap as overlap_of_utils
    from deep_ep.utils.event import EventOverlap as overlap_of_2

    assert buffer_of_1 is buffer_of_2 is Buffer is ferry.deep_ep.Buffer and Config is deep_ep.Config
    assert elastic_of_all is elastic_of_2 is ElasticBuffer is ferry.deep_ep.ElasticBuffer
    assert handle_of_1 is EventHandle and overlap_of_1 is overlap_of_2 is overlap_of_utils is EventOverlap
    assert deep_ep.utils.event is sys.modules["deep_ep.utils.event"] and deep_ep.__version__.startswith("2.")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("deep_ep.nothing")
    assert dict(os.environ) == environment


def test_another_deep_ep_is_not_replaced():
    another = sys.modules["deep_ep"] = types.ModuleType("deep_ep")
    another.__file__ = "elsewhere/deep_ep.py"
    with pytest.raises(ferry.InvalidArgument, match="elsewhere/deep_ep.py"):
        ferry.deep_ep.install()
    assert sys.modules["deep_ep"] is another and "deep_ep.utils" not in sys.modules


@pytest.mark.parametrize("arguments", [[], ["-c", "pass"], ["--map-cuda"]])
def test_no_program(arguments):
    with pytest.raises(SystemExit, match="usage"):
        program.start(arguments, {})


PROGRAM = '''
"""A program as people write them for DeepEP: its ranks are processes that multiprocessing spawns."""
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing
import beside
import deep_ep


def rank_main(rank, size, file):
    dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=size)
    buffer = deep_ep.Buffer(dist.group.WORLD, int(1e6))
    x = torch.full((4, 8), float(rank), dtype=torch.bfloat16)
    topk_idx = torch.arange(4, dtype=deep_ep.topk_idx_t).reshape(4, 1) % size
    per_rank, per_node, per_expert, mask, _ = buffer.get_dispatch_layout(topk_idx, size)
    recv_x, _, weights, counts, handle, _ = buffer.dispatch(
        x, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=mask,
        num_tokens_per_expert=per_expert, topk_idx=topk_idx, topk_weights=torch.ones(4, 1))
    combined, _, _ = buffer.combine(recv_x, handle)
    assert counts == [4] and torch.equal(combined, x), (counts, combined)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    assert beside.found and __file__ == sys.argv[0]
    torch.multiprocessing.spawn(rank_main, args=(2, sys.argv[1]), nprocs=2)
    print("done", sys.argv[2:])
    raise KeyError("the end")
'''


def test_a_program_that_spawns_its_ranks(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("found = True\n")
    done = subprocess.run([sys.executable, "-m", "ferry.deep_ep", str(tmp_path / "program.py"),
                           str(tmp_path / "store"), "--more", "-x"], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines()[-1:] == ["done ['--more', '-x']"], done.stderr
    last_line = PROGRAM.rstrip().count("\n") + 1
    assert done.returncode == 1 and f'program.py", line {last_line}' in done.stderr and "the end" in done.stderr
