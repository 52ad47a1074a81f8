"""What all Python tests share: one torch thread (ranks are threads and processes of few cores)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # oracles beside the tests, in spawned ranks too

try:
    import torch

    torch.set_num_threads(1)
except ImportError:
    pass
