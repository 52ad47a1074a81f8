"""An engine's part of vLLM's `--enable-fault-tolerance`. worker.py has that of its worker.

vLLM keeps an engine whose step raised, with its weights, until its server is asked for a "retry". All engines are one
group of ferry. A rank whose step raised ends the view of the group, so the others raise at once. With the retry the
ranks that remain begin the next view, and load the experts of lost ranks from the checkpoint.
"""

from vllm.distributed import stateless_destroy_torch_distributed_process_group as destroy_group
from vllm.distributed.utils import stateless_init_torch_distributed_process_group as init_group
from vllm.utils.network_utils import get_open_port
from vllm.v1.engine import core
from vllm.v1.fault_tolerance.engine_core_sentinel import EngineCoreSentinel


class EngineSentinel(EngineCoreSentinel):
    """Runs a retry in an engine."""

    def on_fault(self, exc):
        # The others may wait for this engine in its group of Gloo, whose end they see.
        destroy_group(self.engine.dp_group)
        self.engine.dp_group = None
        super().on_fault(exc)

    def retry(self, request):
        # vLLM notes that a block of keys is in its cache before the step that computes it.
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("ferry.vllm: requests of the step that raised still hold blocks of the cache")
        return super().retry(request)

    def _reinit_dp_group(self):
        """Makes the group by which the engines agree on waves of requests, of those that remain. Returns what vLLM
        passes to the worker: nothing. Collective among these engines."""
        engine, config = self.engine, self.parallel_config
        ((ranks, port),) = engine.model_executor.collective_rpc("begin_next_view", args=(get_open_port(),))
        if ranks[0] != 0:
            raise RuntimeError("ferry.vllm: the engine of rank 0 was lost, and with its server vLLM's coordinator, "
                               "by which an engine learns that others have requests")  # fmt: skip
        engine.dp_group, engine.dp_store = init_group(
            config.data_parallel_master_ip, port, ranks.index(config.data_parallel_rank), len(ranks), backend="gloo",
            return_store=True, timeout=config.cpu_distributed_timeout)  # fmt: skip
        return {}


def use():
    core.EngineCoreSentinel = EngineSentinel
