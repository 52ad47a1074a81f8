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
        parallel = vllm_config.parallel_config
        if parallel.enable_fault_tolerance:
            _refuse_in_faults(vllm_config)
            parallel.worker_cls = "ferry.vllm.worker.FaultTolerantWorker"
        super().check_and_update_config(vllm_config)
        parallel.disable_nccl_for_dp_synchronization = False  # by ferry, not by Gloo
        if _engine_can_be_a_rank(vllm_config):
            alone = vllm_config.parallel_config.world_size == 1
            executor = "uni" if alone else "ferry.vllm.executor.EngineExecutor"
            vllm_config.parallel_config.distributed_executor_backend = executor


def _refuse_in_faults(config):
    """Raises NotImplementedError for options with which engines cannot go on after a fault."""
    parallel = config.parallel_config
    refuse({"fault tolerance without expert parallelism": not parallel.enable_expert_parallel,
            "fault tolerance with tensor parallel ranks": parallel.world_size > 1,
            "fault tolerance with speculative decoding": config.speculative_config is not None})  # fmt: skip


def refuse(options):
    """Raises NotImplementedError with the name of the first option that is set. `options` maps the name of each option
    to whether it is set."""
    for name, is_set in options.items():
        if is_set:
            raise NotImplementedError(f"ferry.vllm: {name} is not implemented")


def _engine_can_be_a_rank(config):
    """Whether an engine can run the model of its first rank itself.

    vLLM starts a worker process for each rank on CPU, since only a new process gets other variables of OpenMP. The
    engine then polls for the worker's reply and takes time of the cores that the workers need, where there are as many
    ranks as cores. With threads that vLLM does not bind, the worker would have the same variables as the engine.
    """
    parallel = config.parallel_config
    bound = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto") != "nobind"
    tensor_parallel = parallel.world_size == parallel.tensor_parallel_size and parallel.nnodes == 1
    connected = config.kv_transfer_config is not None or config.ec_transfer_config is not None
    return parallel.distributed_executor_backend == "mp" and tensor_parallel and not bound and not connected
