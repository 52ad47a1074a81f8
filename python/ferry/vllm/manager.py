"""ferry's all-to-all manager for vLLM. It sends tokens to the ranks of their experts and returns the weighted sums.

T tokens of this rank, H hidden, K top-k, L experts of this rank, N rows received. Calls ferry."""

import struct
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from vllm.config import get_current_vllm_config
from vllm.distributed.device_communicators.base_device_communicator import All2AllManagerBase
from vllm.distributed.parallel_state import get_dp_group, get_ep_group, get_world_group
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.utils.network_utils import get_open_port

import ferry
from ferry.exchanges import Exchanges
from ferry.views import begin_view, end_view
from ferry.vllm.lost_experts import layers_of, load, owners_among
from ferry.vllm.platform import refuse

DEADLINE = 300.0  # seconds: vLLM waits as long for a step
_RECORD = struct.Struct("<iq244s")  # of a rank when a view begins: a port, its wave, and why it cannot go on

logger = init_logger("vllm.ferry")  # under the name whose messages vLLM shows


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
        self._config = config
        self._num_experts = config.model_config.get_num_experts()
        self._tp_size = config.parallel_config.tensor_parallel_size
        # Each tensor parallel rank has its part of the tokens (sequence parallel), rounded up.
        self._max_tokens = -(-config.scheduler_config.max_num_batched_tokens // self._tp_size)
        self._exchanges = Exchanges(ferry.init(process_group=self.cpu_group, deadline=DEADLINE))
        self._dispatched = None
        self._owners = ()  # the rank of each expert, when ranks are lost

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
        exchange, received = self._exchanges.dispatch(
            lambda exchange: exchange.dispatch(hidden_states, topk_ids),
            self._max_tokens,
            hidden=hidden_states.size(1),
            num_experts=self._num_experts,
            top_k=topk_ids.size(1),
            dtype=hidden_states.dtype,
            expert_rank=self._owners,
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

    def dispatch_router_logits(self, hidden_states, router_logits, is_sequence_parallel=False, extra_tensors=None):
        raise NotImplementedError("ferry.vllm: experts that route for themselves (monolithic kernels)")

    def end_view(self):
        """Ends the calls of the other ranks, for a rank whose part of a step raised."""
        self._dispatched = None
        end_view(self._exchanges.group)
        for group in _torch_groups():
            group.end_view()

    def begin_next_view(self, model, wave):
        """Begins the next view of the groups of ferry, and takes over this rank's part of the experts of lost ranks.
        Returns the ranks that remain, a port that is free where the lowest of them is, and the highest of the waves
        that they give. Raises on all of them if one cannot load its experts; the call may be repeated. Collective among
        them."""
        begin_view(self._exchanges.group, DEADLINE)
        for group in _torch_groups():
            group.survive(timedelta(seconds=DEADLINE))
        number, ranks = self._exchanges.group.view
        owners = owners_among(ranks, self._num_experts, self.world_size)
        self._owners = owners if len(ranks) < self.world_size else ()
        experts = [expert for expert, owner in enumerate(owners) if owner == self.rank]
        layers = layers_of(model)
        try:
            port, wave = self._agree(wave, self._load(layers, model, experts))
        except BaseException:
            for layer in layers:
                layer.restore()
            raise
        for layer in layers:
            layer.keep(experts)
        logger.info("ferry goes on with ranks %s in view %d.", list(ranks), number)
        return ranks, port, wave

    def _load(self, layers, model, experts):
        """Loads the experts that the layers lack. Returns why it cannot, else ""."""
        try:
            load(layers, model, self._config, experts)
        except Exception as error:
            logger.exception("ferry: rank %d cannot load experts of lost ranks", self.rank)
            return f"ferry.vllm: rank {self.rank} cannot load experts of lost ranks: {error!r}"
        return ""

    def _agree(self, wave, failure):
        """Returns a free port of the lowest rank, and the highest wave. Raises the failure of a rank. Collective."""
        record = _RECORD.pack(get_open_port(), wave, failure.encode())
        said = [_RECORD.unpack(each) for each in self._exchanges.group.all_gather(record) if each]
        for _, _, text in said:
            if text[0]:
                raise RuntimeError(text.rstrip(bytes(1)).decode(errors="replace"))
        return said[0][0], max(wave for _, wave, _ in said)

    def destroy(self):
        self._exchanges.close()


def _torch_groups():
    """The groups of ferry's backend that all ranks are in, in one order on all of them: vLLM's ranks agree on steps by
    one of them."""
    groups = [each.device_group for each in (get_world_group(), get_dp_group(), get_ep_group())]
    return [each._get_backend(torch.device("cpu")) for each in (dist.group.WORLD, *groups)]


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
    refuse({f"{name} with expert parallelism": is_set for name, is_set in options.items()})
