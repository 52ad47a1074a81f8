"""A Mixture-of-Experts layer in one call: dispatch, experts, combine, with gradients, in one or two batches.

    layer = ferry.torch.MoE(group, hidden=2048, intermediate=768, num_experts=128, top_k=8, max_tokens=1024)
    out = layer(tokens, topk_ids, topk_weights)                        # [T, H]; the gate is the caller's

    out = ferry.moe.moe(exchange, tokens, topk_ids, topk_weights, experts)   # experts of the caller

The public names of the layer; the code is in ferry.torch. docs/moe.md is the guide.
"""

from ferry.torch.experts import SwiGLU, each, swiglu
from ferry.torch.module import MoE
from ferry.torch.moe import moe
from ferry.torch.turns import pair

__all__ = ["MoE", "SwiGLU", "each", "moe", "pair", "swiglu"]
