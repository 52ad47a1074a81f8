"""The mega kernel of DeepGEMM in bf16: dispatch, both matrix products, SwiGLU and combine in one call, by ferry.moe.

    buffer = get_symm_buffer_for_mega_moe(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate)
    buffer.x[:T], buffer.topk_idx[:T], buffer.topk_weights[:T] = x, topk_idx, topk_weights
    bf16_mega_moe(y, l1_weights, l2_weights, buffer)        # y [T, hidden]

The names are DeepGEMM's, and the arguments are those of its bf16 kernel. Arguments that some of its versions add
(mma_type, activation of the buffer, num_shared_experts) are not accepted. l1_weights has the rows of the gates first.
transform_weights_for_mega_moe returns its arguments unchanged. There are no FP8 and FP4 kernels. The work is done by
ferry.torch_npu.mega_moe.
"""

import torch

import ferry
from ferry.torch.refusing import Refusing
from ferry.torch_npu import mega_moe as cann

__all__ = ["SymmBuffer", "bf16_mega_moe", "get_symm_buffer_for_mega_moe", "transform_weights_for_mega_moe"]


class SymmBuffer(cann.SymmBuffer):
    """A buffer with the inputs of a call: x bf16 [tokens, hidden], topk_idx int64 and topk_weights float32
    [tokens, top-k]."""

    def __init__(self, group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden):
        super().__init__(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden)
        self.x = torch.zeros(num_max_tokens_per_rank, hidden, dtype=torch.bfloat16)
        self.topk_idx = torch.zeros(num_max_tokens_per_rank, num_topk, dtype=torch.int64)
        self.topk_weights = torch.zeros(num_max_tokens_per_rank, num_topk)


def get_symm_buffer_for_mega_moe(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden):
    """Makes a SymmBuffer. `group` is a process group of torch or a ferry.Group. Collective."""
    return SymmBuffer(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden)


def transform_weights_for_mega_moe(l1_weights, l2_weights):
    return l1_weights, l2_weights


def bf16_mega_moe(y, l1_weights, l2_weights, sym_buffer, shared_l1_weights=None, shared_l2_weights=None,
                  cumulative_local_expert_recv_stats=None, activation="swiglu", activation_clamp=None, fast_math=True):
    """Computes y bf16 [T, hidden] from the first T tokens in the buffer, with l1_weights [L, 2 I, H] and l2_weights
    [L, H, I]. The number of rows of each local expert is added to cumulative_local_expert_recv_stats, int32 [L].
    fast_math has no effect. Raises InvalidArgument for shared experts, an activation_clamp and other activations.
    Collective."""
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
