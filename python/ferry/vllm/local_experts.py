"""Experts in blocks on tensor parallel ranks of one engine, which all have all tokens of a layer.

So nothing is sent to the experts. Each rank computes the rows of its own experts, and the all-reduce with which vLLM
ends the layer adds the results. vLLM's experts on CPU compute every row they get, so a rank must give them no others.
torch.compile traces the layer; only the operator below, whose number of rows it cannot know, is opaque to it.
"""

import torch
from vllm.model_executor.layers.fused_moe import all2all_utils
from vllm.model_executor.layers.fused_moe.experts import cpu_moe
from vllm.model_executor.layers.fused_moe.prepare_finalize.no_dp_ep import MoEPrepareAndFinalizeNoDPEPModular
from vllm.utils.torch_utils import direct_register_custom_op


class LocalExperts(MoEPrepareAndFinalizeNoDPEPModular):
    """Gives the experts the ids of this rank, -1 for an expert of another rank. T tokens, H hidden, K top-k."""

    def supports_deferred_moe_finalize(self):
        return False

    def prepare(self, a1, topk_weights, topk_ids, num_experts, expert_map, apply_router_weight_on_input, quant_config,
                defer_input_quant=False):  # fmt: skip
        """Returns (tokens a1 [T, H], None, None, local experts [T, K], topk_weights [T, K])."""
        tokens, scales, *_ = super().prepare(a1, topk_weights, topk_ids, num_experts, expert_map,
                                             apply_router_weight_on_input, quant_config, defer_input_quant)  # fmt: skip
        if scales is not None or quant_config.weight_quant_dtype is not None:
            raise NotImplementedError("ferry.vllm: quantised experts on tensor parallel ranks")
        return tokens, None, None, expert_map[topk_ids], topk_weights


def _fused_moe_of_local(
    out: torch.Tensor,
    tokens: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    w13_bias: torch.Tensor | None,
    w2_bias: torch.Tensor | None,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    act: str,
    isa: str,
    skip_weighted: bool = False,
) -> None:
    """vLLM's cpu_fused_moe with ids [T, K] of which -1 has no row: for tokens [T, H], out [T, H] is the sum of the
    weighted rows of their experts."""
    experts = topk_ids.flatten()
    local = (experts >= 0).nonzero().squeeze(1)
    out.zero_()
    if len(local) == 0:
        return
    of_token = local // topk_ids.size(1)
    rows = tokens.index_select(0, of_token)
    sums = torch.empty_like(rows)
    torch.ops._C.cpu_fused_moe(sums, rows, w13, w2, w13_bias, w2_bias,
                               topk_weights.flatten().index_select(0, local).unsqueeze(1),
                               experts.index_select(0, local).unsqueeze(1), skip_weighted, act, isa)  # fmt: skip
    out.index_add_(0, of_token, sums)


direct_register_custom_op("ferry_fused_moe_of_local", _fused_moe_of_local, mutates_args=["out"],
                          fake_impl=lambda *args: None)  # fmt: skip


def use_local_experts():
    """Replaces the functions of vLLM that choose what stands around the experts where no tokens are sent, and that
    compute their rows."""
    all2all_utils.make_moe_prepare_and_finalize_no_dp_ep = _make
    cpu_moe.is_zentorch_moe_supported = lambda layer: False  # its operator takes no id of -1
    cpu_moe.cpu_fused_moe = torch.ops.vllm.ferry_fused_moe_of_local


def _make(use_monolithic):
    if use_monolithic:
        raise NotImplementedError("ferry.vllm: experts that route for themselves (monolithic kernels)")
    return LocalExperts()
