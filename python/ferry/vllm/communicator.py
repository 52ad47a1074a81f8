"""vLLM's CPU communicator with the collectives of ferry. vLLM makes one communicator for each of its groups.

The group of tensor parallel ranks adds by ferry.Collectives. In the group of expert parallel ranks the manager of
manager.py sends tokens to the experts. Without expert parallelism every data parallel rank has a slice of every expert,
and vLLM's own manager gathers all tokens and scatters the sums. For that manager the communicator has two collectives
of variable size.
"""

import torch
import torch.distributed as dist
from vllm.config import CompilationMode, get_current_vllm_config
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

import ferry
from ferry.vllm.local_experts import use_local_experts
from ferry.vllm.manager import DEADLINE, FerryAll2AllManager

logger = init_logger("vllm.ferry")  # under the name whose messages vLLM shows


class FerryCommunicator(CpuCommunicator):
    def __init__(self, cpu_group, device=None, device_group=None, unique_name="", use_all2all=False):
        config = get_current_vllm_config()
        expert_parallel = config.parallel_config.enable_expert_parallel
        super().__init__(cpu_group, device, device_group, unique_name, use_all2all and not expert_parallel)
        if self.is_ep_communicator and (use_all2all or expert_parallel):
            if use_all2all and config.compilation_config.mode != CompilationMode.NONE:
                MoERunner._select_forward = _opaque_forward
            if expert_parallel:
                self._share_experts(use_all2all)
        self._collectives = None
        if self._is_tensor_parallel():
            group = ferry.init(process_group=self.cpu_group, name=unique_name, deadline=DEADLINE)
            self._collectives = ferry.Collectives(group)
            logger.info("ferry adds the parts of %d tensor parallel ranks.", self.world_size)

    def _share_experts(self, use_all2all):
        if use_all2all:
            self.use_all2all, self.all2all_manager = True, FerryAll2AllManager(self.cpu_group)
            logger.info("ferry takes tokens to the experts of %d ranks.", self.world_size)
        else:
            use_local_experts()
            logger.info("ferry gives the experts of %d ranks their own tokens.", self.world_size)

    def _is_tensor_parallel(self):
        return self.unique_name.split(":")[0] == "tp"

    def _all_group_ranks_share_shm_group_name(self):
        """vLLM asks before it makes collectives over shared memory of its own. In those a rank waits for a lost one
        without end, so tensor parallel ranks have none and use torch.distributed, whose backend is ferry."""
        return not self._is_tensor_parallel() and super()._all_group_ranks_share_shm_group_name()

    def all_reduce(self, input_):
        """Returns the sums over all ranks, in float32 over ascending ranks, rounded once. Collective."""
        if self._collectives is None:
            return super().all_reduce(input_)
        out = torch.empty_like(input_, memory_format=torch.contiguous_format)
        self._collectives.all_reduce(out, input_.contiguous())
        return out

    def all_gatherv(self, input_, dim=0, sizes=None):
        """Gathers [sizes[rank], ...] of every rank and returns them concatenated, ranks ascending. For a list it
        returns a list with the result of each tensor. sizes None: all ranks have as many rows as this rank.
        Collective."""
        if dim != 0:
            raise NotImplementedError(f"ferry.vllm: all_gatherv along dim {dim}; only 0")
        if not isinstance(input_, torch.Tensor):
            return [self.all_gatherv(each, dim, sizes) for each in input_]
        sizes = sizes or [len(input_)] * self.world_size
        gathered = input_.new_empty(sum(sizes), *input_.shape[1:])
        dist.all_gather(list(gathered.split(sizes)), input_, group=self.device_group)
        return gathered

    def reduce_scatterv(self, input_, dim=-1, sizes=None):
        """Adds the tensors [sum(sizes), ...] of all ranks in float32, and returns to rank r the block of sizes[r] rows.
        sizes None: equal blocks. Collective."""
        if dim not in (0, -input_.dim()):
            raise NotImplementedError(f"ferry.vllm: reduce_scatterv along dim {dim}; only 0")
        sizes = sizes or [len(input_) // self.world_size] * self.world_size
        if sum(sizes) != len(input_):
            raise ValueError(f"ferry.vllm: reduce_scatterv of {len(input_)} rows into blocks of {sizes}")
        block = input_.new_empty(sizes[self.rank_in_group], *input_.shape[1:])
        dist.reduce_scatter(block, list(input_.split(sizes)), group=self.device_group)
        return block

    def reduce_scatterv_into_output(self, input_, output, dim=-1, sizes=None):
        return output.copy_(self.reduce_scatterv(input_, dim, sizes))


def _opaque_forward(runner):
    """Returns the operator of vLLM that torch.compile does not trace: a Mixture-of-Experts layer with its dispatch and
    combine. vLLM uses it on GPUs. On CPU it lets the compiler trace the layer, whose numbers of rows are not known."""
    operators = torch.ops.vllm
    return operators.moe_forward if runner.shared_experts is None else operators.moe_forward_shared
