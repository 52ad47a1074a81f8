"""Megatron-Core's flex dispatcher on ferry.deep_ep (flex_dispatcher.py), the released package: make check-megatron.

Not among the quick tests: it needs scripts/requirements-megatron.txt.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("flex_dispatcher.py")


@pytest.mark.parametrize("ranks, tp, dtype", [(2, 1, "float32"), (4, 1, "bfloat16"), (2, 2, "bfloat16"),
                                              (4, 2, "float32"), (4, 2, "bfloat16")])
def test_outputs_and_gradients_are_those_of_the_all_gather_dispatcher(ranks, tp, dtype):
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone", "-m",
             "ferry.deep_ep", "--map-cuda", str(PROGRAM), str(tp), dtype]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank}: same bits" for rank in range(ranks)]
