"""vLLM's CPU platform with the communicator of ferry.

vLLM imports this module while vllm.config is being imported, so it must import no module of vllm except
vllm.platforms.cpu.
"""

import os

from vllm.platforms.cpu import CpuPlatform

import ferry.torch_backend  # noqa: F401  registers the backend


class FerryCpuPlatform(CpuPlatform):
    """CPU ranks whose expert-parallel group is ferry's. vLLM's groups for tensors have the backend of ferry: data
    parallel ranks agree on each step by an all-reduce of some bytes."""

    dist_backend = "ferry"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "ferry.vllm.communicator.FerryCommunicator"

    @classmethod
    def use_custom_op_collectives(cls) -> bool:
        return True  # torch.compile cannot trace the calls of ferry

    @classmethod
    def check_and_update_config(cls, vllm_config):
        super().check_and_update_config(vllm_config)
        parallel = vllm_config.parallel_config
        if _needs_no_worker_process(parallel):
            parallel.distributed_executor_backend = "uni"


def _needs_no_worker_process(parallel):
    """Whether the engine of a data parallel rank can run the model itself.

    vLLM starts a worker process for each engine on CPU, since only a new process gets other variables of OpenMP. The
    engine then polls for the worker's reply and takes half of the core that the worker needs, where there are as many
    ranks as cores. With threads that vLLM does not bind, the worker would have the same variables as the engine.
    """
    bound = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto") != "nobind"
    return parallel.distributed_executor_backend == "mp" and parallel.world_size == 1 and not bound
