"""deep_ep._C: the names of DeepEP's extension module that programs use."""

import torch

from ferry.deep_ep.buffer import Buffer
from ferry.deep_ep.config import Config
from ferry.deep_ep.elastic import ElasticBuffer
from ferry.deep_ep.elastic_sessions import NotBuilt
from ferry.deep_ep.events import EventHandle

__all__ = ["Buffer", "Config", "ElasticBuffer", "EventHandle", "calculate_elastic_buffer_size",
           "get_elastic_buffer_alignment", "get_low_latency_rdma_size_hint", "is_sm90_compiled", "topk_idx_t"]

topk_idx_t = torch.int64
get_low_latency_rdma_size_hint = Buffer.get_low_latency_rdma_size_hint
is_sm90_compiled = Buffer.is_sm90_compiled


def get_elastic_buffer_alignment():
    """Returns 2 MiB, the unit of ElasticBuffer's sizes."""
    return 2 << 20


def calculate_elastic_buffer_size(*_, **__):
    """Raises NotBuilt."""
    raise NotBuilt("deep_ep._C.calculate_elastic_buffer_size is private; use ElasticBuffer.get_buffer_size_hint")
