"""Experts in blocks on tensor parallel ranks of one engine, which all have all tokens of a layer.

So nothing is sent to the experts. Each rank computes the rows of its own experts, and the all-reduce with which vLLM
ends the layer adds the results. vLLM's experts on CPU compute every row they get, so a rank must give them no others.
"""

from vllm.model_executor.layers.fused_moe import all2all_utils
from vllm.model_executor.layers.fused_moe.prepare_finalize.no_dp_ep import MoEPrepareAndFinalizeNoDPEPModular
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP


class LocalExperts(MoEPrepareAndFinalizeNoDPEPModular):
    """Gives the experts a row for each (token, local expert). T tokens, H hidden, K top-k, N such rows."""

    def supports_deferred_moe_finalize(self):
        return False

    def prepare(self, a1, topk_weights, topk_ids, num_experts, expert_map, apply_router_weight_on_input, quant_config,
                defer_input_quant=False):  # fmt: skip
        """Selects from tokens a1 [T, H] with topk_weights and topk_ids [T, K]. Returns (rows [N, H], None, None, local
        experts [N, 1], weights [N, 1])."""
        tokens, scales, *_ = super().prepare(a1, topk_weights, topk_ids, num_experts, expert_map,
                                             apply_router_weight_on_input, quant_config, defer_input_quant)  # fmt: skip
        if scales is not None:
            raise NotImplementedError("ferry.vllm: quantised activations with expert parallelism")
        experts = expert_map.index_select(0, topk_ids.flatten())  # [T * K], -1: of another rank
        local = (experts >= 0).nonzero().squeeze(1)
        self._tokens = local // topk_ids.size(1)
        rows, experts = tokens.index_select(0, self._tokens), experts.index_select(0, local)
        weights = topk_weights.flatten().index_select(0, local)
        return rows, None, None, experts.unsqueeze(1), weights.unsqueeze(1)

    def finalize(self, output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input,
                 weight_and_reduce_impl):  # fmt: skip
        """Adds the weighted rows [N, H] of a token into its row of output [T, H]."""
        if not isinstance(weight_and_reduce_impl, TopKWeightAndReduceNoOP):
            raise NotImplementedError("ferry.vllm: experts that leave the weights to vLLM, with expert parallelism")
        rows = fused_expert_output
        if rows.data_ptr() == output.data_ptr():  # with N = T the experts have written to output
            rows = rows.clone()
        output.zero_().index_add_(0, self._tokens, rows)


def use_local_experts():
    """Replaces the function of vLLM that chooses what stands around the experts where no tokens are sent."""
    all2all_utils.make_moe_prepare_and_finalize_no_dp_ep = _make


def _make(use_monolithic):
    if use_monolithic:
        raise NotImplementedError("ferry.vllm: experts that route for themselves (monolithic kernels)")
    return LocalExperts()
