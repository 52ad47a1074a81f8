"""Dispatch and combine that autograd can differentiate, and the layer that makes both calls.

    received = ferry.torch.dispatch(exchange, tokens, topk_ids)
    out = ferry.torch.combine(exchange, outputs, received.handle, topk_weights)

    layer = ferry.torch.MoE(group, hidden=2048, intermediate=768, num_experts=128, top_k=8, max_tokens=1024)

ferry.moe has the layer as a function, and functions that make experts for it. docs/python.md and docs/moe.md are the
guides; docs/moe_training.md is the guide to ddp and clip_grad_norm_.
"""

from ferry.torch.data_parallel import clip_grad_norm_, ddp
from ferry.torch.linear import Dispatched, combine, dispatch
from ferry.torch.module import MoE

__all__ = ["Dispatched", "MoE", "clip_grad_norm_", "combine", "ddp", "dispatch"]
