"""Set-up of all Python tests: one torch thread (ranks are threads and processes of few cores)."""

import multiprocessing
import sys
from pathlib import Path

import ferry

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # oracles beside the tests, in spawned ranks too
sys.path.append(str(HERE.parents[1] / "bench/suite"))  # programs that are not in the wheel

try:
    import torch

    torch.set_num_threads(1)
except ImportError:
    pass

# A new process takes seconds of a core to import torch, so ranks are forked from a server that has imported it once.
# They have the environment that the server began with. A test that changes the environment for its ranks uses another
# method.
multiprocessing.set_forkserver_preload(["ferry.torch"])
ferry.spawn.__kwdefaults__["method"] = "forkserver"
