"""The mega kernel of DeepGEMM in bf16, as ferry.moe makes it: dispatch, both products, SwiGLU and combine in one call.

    buffer = get_symm_buffer_for_mega_moe(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate)
    buffer.x[:T], buffer.topk_idx[:T], buffer.topk_weights[:T] = x, topk_idx, topk_weights
    bf16_mega_moe(y, l1_weights, l2_weights, buffer)        # y [T, hidden]

DeepGEMM's names, and the arguments of its bf16 kernel; arguments that versions of it add (mma_type, activation of the
buffer, num_shared_experts) are not taken. Weights are as they are, with the gates' rows first:
transform_weights_for_mega_moe returns what it gets. Its FP8 and FP4 kernels are not here. Calls
ferry.torch_npu.mega_moe.
"""

import torch

import ferry
from ferry.torch.refusing import Refusing
from ferry.torch_npu import mega_moe as cann

__all__ = ["SymmBuffer", "bf16_mega_moe", "get_symm_buffer_for_mega_moe", "transform_weights_for_mega_moe"]


class SymmBuffer(cann.SymmBuffer):
    """With the inputs of a call: x bf16 [tokens, hidden], topk_idx int64 and topk_weights float32 [tokens, top-k]."""

    def __init__(self, group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden):
        super().__init__(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden)
        self.x = torch.zeros(num_max_tokens_per_rank, hidden, dtype=torch.bfloat16)
        self.topk_idx = torch.zeros(num_max_tokens_per_rank, num_topk, dtype=torch.int64)
        self.topk_weights = torch.zeros(num_max_tokens_per_rank, num_topk)


def get_symm_buffer_for_mega_moe(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden):
    """Collective. `group`: a process group of torch, or a ferry.Group."""
    return SymmBuffer(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden)


def transform_weights_for_mega_moe(l1_weights, l2_weights):
    return l1_weights, l2_weights


def bf16_mega_moe(y, l1_weights, l2_weights, sym_buffer, shared_l1_weights=None, shared_l2_weights=None,
                  cumulative_local_expert_recv_stats=None, activation="swiglu", activation_clamp=None, fast_math=True):
    """Writes y bf16 [T, hidden] from the buffer's first T tokens; l1_weights [L, 2 I, H], l2_weights [L, H, I]. Adds
    the rows of each local expert to the statistics, int32 [L]. Collective. Raises InvalidArgument for shared experts
    and other activations; fast_math is without meaning."""
    with Refusing(sym_buffer.exchange.refuse_dispatch):
        cann.refuse_unless({}, shared_l1_weights=shared_l1_weights, shared_l2_weights=shared_l2_weights)
        most = sym_buffer.num_max_tokens_per_rank
        if not torch.is_tensor(y) or y.dim() != 2 or len(y) > most:
            raise ferry.InvalidArgument(f"mega_moe: y is no tensor [T, H] of at most {most} tokens")
        cann.check_shape("y", y, (len(y), sym_buffer.hidden), torch.bfloat16)
        if cumulative_local_expert_recv_stats is not None:
            cann.check_shape("cumulative_local_expert_recv_stats", cumulative_local_expert_recv_stats,
                             (sym_buffer.num_local,), torch.int32)
        given = [each[:len(y)] for each in (sym_buffer.x, sym_buffer.topk_idx, sym_buffer.topk_weights)]
    out, numbers = cann.mega_moe(*given, l1_weights, l2_weights, sym_buffer, activation=activation,
                                 activation_clamp=activation_clamp)
    y.copy_(out)
    if cumulative_local_expert_recv_stats is not None:
        cumulative_local_expert_recv_stats += numbers
