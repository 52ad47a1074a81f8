"""DeepEP's public names on ferry, for CPU tensors: Buffer (V1), ElasticBuffer (V2) and what goes with them.

    from ferry.deep_ep import Buffer          # or: ferry.deep_ep.install(), then import deep_ep as ever
    buffer = Buffer(process_group)

Programs that say `import deep_ep` run unchanged after ferry.deep_ep.install(), or as `python -m ferry.deep_ep
program.py`. What is honoured, what has no meaning on a CPU and what is refused: docs/deep_ep.md.
"""

import torch

from ferry.deep_ep.buffer import Buffer
from ferry.deep_ep.config import Config
from ferry.deep_ep.elastic import ElasticBuffer, EPHandle, get_logical_domain_size, get_physical_domain_size
from ferry.deep_ep.events import EventHandle, EventOverlap
from ferry.deep_ep.install import install

topk_idx_t = torch.int64

__all__ = [
    "Buffer", "Config", "EPHandle", "ElasticBuffer", "EventHandle", "EventOverlap", "get_logical_domain_size",
    "get_physical_domain_size", "install", "topk_idx_t",
]
