"""vLLM's CPU communicator, extended for data parallel ranks of a Mixture-of-Experts model.

With expert parallelism it uses the manager of manager.py. Without it every rank has a slice of every expert, and vLLM's
own manager gathers all tokens and scatters the sums. For that manager the communicator has two collectives of variable
size, over gloo. vLLM makes one communicator for each of its groups.
"""

import math

import torch
import torch.distributed as dist
from vllm.config import get_current_vllm_config
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

from ferry.vllm.manager import FerryAll2AllManager

logger = init_logger("vllm.ferry")  # under the name whose messages vLLM shows


class FerryCommunicator(CpuCommunicator):
    def __init__(self, cpu_group, device=None, device_group=None, unique_name="", use_all2all=False):
        by_ferry = use_all2all and get_current_vllm_config().parallel_config.enable_expert_parallel
        super().__init__(cpu_group, device, device_group, unique_name, use_all2all=use_all2all and not by_ferry)
        if use_all2all:
            MoERunner._select_forward = _opaque_forward
        if by_ferry and self.is_ep_communicator:
            self.use_all2all, self.all2all_manager = True, FerryAll2AllManager(self.cpu_group)
            logger.info("ferry takes tokens to the experts of %d ranks.", self.world_size)

    def all_gatherv(self, input_, dim=0, sizes=None):
        """Gathers [sizes[rank], ...] of every rank and returns them concatenated, ranks ascending. For a list it
        returns a list with the result of each tensor. sizes None: all ranks have as many rows as this rank.
        Collective."""
        if dim != 0:
            raise NotImplementedError(f"ferry.vllm: all_gatherv along dim {dim}; only 0")
        if not isinstance(input_, torch.Tensor):
            return [self.all_gatherv(each, dim, sizes) for each in input_]
        sizes = sizes or [len(input_)] * self.world_size
        most = max(sizes)
        mine = input_.new_zeros(most, *input_.shape[1:])
        mine[: len(input_)] = input_
        parts = input_.new_empty(self.world_size * most, *input_.shape[1:])
        if mine.numel():  # as bytes: gloo does not know all types
            dist.all_gather_into_tensor(_as_bytes(parts), _as_bytes(mine), group=self.device_group)
        parts = parts.view(self.world_size, *mine.shape)
        return torch.cat([part[:size] for part, size in zip(parts, sizes)])

    def reduce_scatterv(self, input_, dim=-1, sizes=None):
        """Adds the tensors [sum(sizes), ...] of all ranks in float32, and returns to rank r the block of sizes[r] rows.
        sizes None: equal blocks. Collective."""
        if dim not in (0, -input_.dim()):
            raise NotImplementedError(f"ferry.vllm: reduce_scatterv along dim {dim}; only 0")
        sizes = sizes or [len(input_) // self.world_size] * self.world_size
        if sum(sizes) != len(input_):
            raise ValueError(f"ferry.vllm: reduce_scatterv of {len(input_)} rows into blocks of {sizes}")
        mine = sizes[self.rank_in_group]
        parts = input_.new_empty(self.world_size * mine, *input_.shape[1:])
        dist.all_to_all_single(_as_bytes(parts), _as_bytes(input_.contiguous()), [mine] * self.world_size, list(sizes),
                               group=self.device_group)
        return parts.view(self.world_size, mine, *input_.shape[1:]).sum(0, dtype=torch.float32).to(input_.dtype)

    def reduce_scatterv_into_output(self, input_, output, dim=-1, sizes=None):
        return output.copy_(self.reduce_scatterv(input_, dim, sizes))


def _opaque_forward(runner):
    """Returns the operator of vLLM that torch.compile does not trace: a Mixture-of-Experts layer with its dispatch and
    combine. vLLM uses it on GPUs. On CPU it lets the compiler trace the layer, whose numbers of rows are not known."""
    operators = torch.ops.vllm
    return operators.moe_forward if runner.shared_experts is None else operators.moe_forward_shared


def _as_bytes(tensor):
    """Returns a tensor [n, ...] as bytes, [n, bytes of a row]."""
    return tensor.view(len(tensor), math.prod(tensor.shape[1:])).view(torch.uint8)
