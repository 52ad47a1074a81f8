"""ferry's all-to-all manager for vLLM. It sends tokens to the ranks of their experts and returns the weighted sums.

T tokens of this rank, H hidden, K top-k, L experts of this rank, N rows received. Calls ferry."""

from typing import NamedTuple

import torch
from vllm.config import get_current_vllm_config
from vllm.distributed.device_communicators.base_device_communicator import All2AllManagerBase
from vllm.forward_context import get_forward_context

import ferry
from ferry.exchanges import Exchanges

DEADLINE = 300.0  # seconds: vLLM waits as long for a step


class Dispatched(NamedTuple):
    """The results of a dispatch that the combine after it needs."""

    exchange: ferry.Exchange
    handle: ferry.Handle
    topk_weights: torch.Tensor  # float32 [T, K]: they are not sent


class FerryAll2AllManager(All2AllManagerBase):
    """Sends a row for each (token, expert), grouped by expert, so that each expert gets only its own rows.

    Ranks own contiguous blocks of experts, and the first E % R ranks own one more: this is vLLM's linear placement and
    ferry's default. Layers of one shape share an exchange.
    """

    def __init__(self, cpu_group, tcp_store_group=None):
        super().__init__(cpu_group, tcp_store_group)
        config = get_current_vllm_config()
        _refuse_unsupported(config.parallel_config)
        self._num_experts = config.model_config.get_num_experts()
        self._tp_size = config.parallel_config.tensor_parallel_size
        # Each tensor parallel rank has its part of the tokens (sequence parallel), rounded up.
        self._max_tokens = -(-config.scheduler_config.max_num_batched_tokens // self._tp_size)
        self._exchanges, self._dispatched = None, None

    def dispatch(self, hidden_states, topk_weights, topk_ids, is_sequence_parallel=False, extra_tensors=None):
        """Sends tokens [T, H] with topk_weights [T, K] and topk_ids [T, K]. Returns (rows [N, H], weights [N, 1] of
        ones, local experts [N, 1]): combine applies the weights. Collective."""
        if extra_tensors:
            raise NotImplementedError(
                f"ferry.vllm: dispatch of {len(extra_tensors)} extra tensors (LoRA, scales of quantised activations)"
            )
        if self._tp_size > 1 and not is_sequence_parallel:
            raise NotImplementedError("ferry.vllm: tensor parallel ranks that all have all tokens of their layer")
        if self._dispatched is not None:
            raise RuntimeError("ferry.vllm: dispatch before the combine of the dispatch before it")
        weights = topk_weights.float()
        if get_forward_context().attn_metadata is None:
            # A dummy batch of an idle rank: its attention reads memory that was not written. In any other batch ferry
            # refuses NaN on all ranks.
            weights = weights.nan_to_num(0, 0, 0)
        exchange, received = self._exchanges_of_group().dispatch(
            lambda exchange: exchange.dispatch(hidden_states, topk_ids),
            self._max_tokens,
            hidden=hidden_states.size(1),
            num_experts=self._num_experts,
            top_k=topk_ids.size(1),
            dtype=hidden_states.dtype,
        )
        self._dispatched = Dispatched(exchange, received.handle, weights)
        counts = received.handle.tokens_per_expert
        experts = torch.arange(len(counts), dtype=topk_ids.dtype).repeat_interleave(counts)
        return received.rows, topk_weights.new_ones(len(experts), 1), experts.unsqueeze(1)

    def combine(self, hidden_states, is_sequence_parallel=False):
        """Sends the rows [N, H] of the experts back, and returns the weighted sums [T, H]. Collective."""
        if self._dispatched is None:
            raise RuntimeError("ferry.vllm: combine without a dispatch")
        (exchange, handle, weights), self._dispatched = self._dispatched, None
        return exchange.combine(hidden_states, handle, weights)

    def _exchanges_of_group(self):
        """Returns the exchanges of the group. The first call, in the first dispatch, makes them and is collective."""
        if self._exchanges is None:
            self._exchanges = Exchanges(ferry.init(process_group=self.cpu_group, deadline=DEADLINE))
        return self._exchanges

    def dispatch_router_logits(self, hidden_states, router_logits, is_sequence_parallel=False, extra_tensors=None):
        raise NotImplementedError("ferry.vllm: experts that route for themselves (monolithic kernels)")

    def destroy(self):
        if self._exchanges is not None:
            self._exchanges.close()
        self._exchanges, self._dispatched = None, None


def _refuse_unsupported(parallel):
    """Raises NotImplementedError, with the name, for an option that ferry does not support."""
    options = {
        "EPLB and redundant experts": parallel.enable_eplb,
        "elastic expert parallelism": parallel.enable_elastic_ep,
        f"tensor parallel ranks above 1 with the backend {parallel.all2all_backend}": (
            parallel.tensor_parallel_size > 1 and not parallel.use_sequence_parallel_moe
        ),
        "prefill context parallel ranks above 1": parallel.prefill_context_parallel_size > 1,
        "experts placed round robin": parallel.expert_placement_strategy != "linear",
    }
    for what, is_set in options.items():
        if is_set:
            raise NotImplementedError(f"ferry.vllm: {what} with expert parallelism is not implemented")
