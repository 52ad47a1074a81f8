"""DeepEP's public names on ferry, for CPU tensors: Buffer (V1, which takes cuda tensors as well), ElasticBuffer (V2),
EPBuffer (2.5) and what goes with them.

    from ferry.deep_ep import Buffer          # or: ferry.deep_ep.install(), then import deep_ep as before
    buffer = Buffer(process_group)

Programs that say `import deep_ep` run unchanged after ferry.deep_ep.install(), or as `python -m ferry.deep_ep
program.py`. What is honoured, what has no meaning on a CPU and what is refused: docs/deep_ep.md.
"""

import torch

from ferry.deep_ep.buffer import Buffer
from ferry.deep_ep.config import Config
from ferry.deep_ep.elastic import ElasticBuffer, EPHandle, get_logical_domain_size, get_physical_domain_size
from ferry.deep_ep.ep_buffer import (BucketBuffer, BucketSession, BufferAllocator, EngramBuffer, EPBuffer, PPBuffer,
                                     get_num_allocation_alignment, get_num_rdma_alignment, get_num_tma_alignment)
from ferry.deep_ep.events import EventHandle, EventOverlap
from ferry.deep_ep.install import install

topk_idx_t = torch.int64

__all__ = [
    "BucketBuffer", "BucketSession", "Buffer", "BufferAllocator", "Config", "EPBuffer", "EPHandle", "ElasticBuffer",
    "EngramBuffer", "EventHandle", "EventOverlap", "PPBuffer", "get_logical_domain_size",
    "get_num_allocation_alignment", "get_num_rdma_alignment", "get_num_tma_alignment", "get_physical_domain_size",
    "install", "topk_idx_t",
]
