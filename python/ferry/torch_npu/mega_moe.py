"""CANN's MegaMoe: dispatch, grouped matmul, SwiGLU, grouped matmul and combine in one call, by ferry.moe.

    buffer = get_symm_buffer_for_mega_moe(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate)
    y, expert_token_nums = mega_moe(x, topk_ids, topk_weights, l1_weights, l2_weights, buffer)

Names and results are those of the public wrappers of aclnnMegaMoe. Each expert has two weights, [2 I, H] and [H, I];
weights for wrappers that take them transposed must be transposed first. Quantised weights and rows, biases, masks, an
activation_clamp and other activations raise InvalidArgument with the name of the argument. Calls ferry.moe.
"""

import torch

import ferry
from ferry.moe import moe, swiglu
from ferry.torch.refusing import Refusing
from ferry.views import keeping_owners


def refuse_unless(default, **given):
    """Raises InvalidArgument for an argument that is neither None nor its value in `default`. The fronts of mega
    kernels use it."""
    for name, value in given.items():
        if torch.is_tensor(value) or value is not None and value != default.get(name):
            raise ferry.InvalidArgument(f"mega_moe: {name}={_brief(value)} is not supported, only "
                                        f"{default.get(name)!r}")


def check_shape(name, tensor, shape, dtype):
    """Raises InvalidArgument unless `tensor` is a tensor of this shape and dtype. The fronts of mega kernels use it."""
    if not torch.is_tensor(tensor) or list(tensor.shape) != list(shape) or tensor.dtype != dtype:
        raise ferry.InvalidArgument(f"mega_moe: {name} is {_brief(tensor)}, not {dtype} {list(shape)}")


def _brief(value):
    return f"{value.dtype} {list(value.shape)}" if torch.is_tensor(value) else repr(value)[:80]


class SymmBuffer:
    """The exchange that calls of one shape share, made by get_symm_buffer_for_mega_moe."""

    def __init__(self, group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden, **how):
        self.group, self.num_experts, self.num_topk = group, num_experts, num_topk
        self.num_max_tokens_per_rank, self.hidden = num_max_tokens_per_rank, hidden
        self.intermediate_hidden = intermediate_hidden
        self.members = group if isinstance(group, ferry.Group) else ferry.init(process_group=group)
        with Refusing(self.members.refuse_exchange):
            refuse_unless({"dispatch_quant_mode": 0, "dispatch_quant_out_dtype": 28, "combine_quant_mode": 0,
                           "comm_alg": ""}, **how)
        settings = dict(max_tokens=num_max_tokens_per_rank, hidden=hidden, num_experts=num_experts, top_k=num_topk,
                        dtype=torch.bfloat16)
        self.exchange = self.members.exchange(**keeping_owners(self.members, settings))
        whole, more = divmod(num_experts, self.members.size)
        self.num_local = whole + (self.members.rank < more)

    def check_weights(self, l1_weights, l2_weights):
        """Raises InvalidArgument for weights of other experts than the buffer's."""
        for name, weights, shape in (("l1_weights", l1_weights, (2 * self.intermediate_hidden, self.hidden)),
                                     ("l2_weights", l2_weights, (self.hidden, self.intermediate_hidden))):
            if len(weights) != self.num_local:
                raise ferry.InvalidArgument(f"mega_moe: {name} of {len(weights)} experts, this rank has "
                                            f"{self.num_local}")
            for expert, weight in enumerate(weights):
                check_shape(f"{name}[{expert}]", weight, shape, torch.bfloat16)


def get_symm_buffer_for_mega_moe(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden,
                                 max_recv_token_num=0, dispatch_quant_mode=0, dispatch_quant_out_dtype=None,
                                 combine_quant_mode=0, comm_alg=""):
    """Makes a SymmBuffer. `group` is a process group of torch or a ferry.Group. max_recv_token_num has no effect, since
    there is room for all rows. Raises InvalidArgument for quantised rows, and the errors of Group.exchange.
    Collective."""
    return SymmBuffer(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden,
                      dispatch_quant_mode=dispatch_quant_mode, dispatch_quant_out_dtype=dispatch_quant_out_dtype,
                      combine_quant_mode=combine_quant_mode, comm_alg=comm_alg)


def mega_moe(x, topk_ids, topk_weights, l1_weights, l2_weights, sym_buffer, *, l1_weights_sf=None, l2_weights_sf=None,
             l1_bias=None, l2_bias=None, x_active_mask=None, activation="swiglu", activation_clamp=None,
             weight1_type=None, weight2_type=None):
    """Computes the layer for x bf16 [BS, H], topk_ids [BS, K] and topk_weights float32 [BS, K]. l1_weights[e] bf16
    [2 I, H], with the rows of the gate first, and l2_weights[e] bf16 [H, I] are the weights of local expert e. Returns
    (y [BS, H], expert_token_nums int32 [L]). Collective."""
    with Refusing(sym_buffer.exchange.refuse_dispatch):
        refuse_unless({"activation": "swiglu", "weight1_type": 28, "weight2_type": 28}, l1_weights_sf=l1_weights_sf,
                      l2_weights_sf=l2_weights_sf, l1_bias=l1_bias, l2_bias=l2_bias, x_active_mask=x_active_mask,
                      activation=activation, activation_clamp=activation_clamp, weight1_type=weight1_type,
                      weight2_type=weight2_type)
        sym_buffer.check_weights(l1_weights, l2_weights)
        numbers = torch.zeros(len(l1_weights), dtype=torch.int32)
    products = swiglu(l1_weights, l2_weights)

    def experts(rows, counts, out):
        numbers.add_(torch.tensor(counts, dtype=torch.int32))
        return products(rows, counts, out)

    with torch.no_grad():
        return moe(sym_buffer.exchange, x, topk_ids, topk_weights, experts), numbers
