"""Set-up of all Python tests: one torch thread (ranks are threads and processes of few cores)."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # oracles beside the tests, in spawned ranks too
sys.path.append(str(HERE.parents[1] / "bench/suite"))  # programs that are not in the wheel

try:
    import torch

    torch.set_num_threads(1)
except ImportError:
    pass
