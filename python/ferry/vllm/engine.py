"""An engine's part of vLLM's `--enable-fault-tolerance`. worker.py has that of its worker.

vLLM keeps an engine whose step raised, with its weights, until its server is asked for a "retry". All engines are one
group of ferry. An engine whose step raised ends the view of the group, so the others raise at once. With the retry the
ranks that remain begin the next view, and load the experts of lost ranks from the checkpoint.
"""

from vllm.distributed import stateless_destroy_torch_distributed_process_group as destroy_group
from vllm.distributed.utils import stateless_init_torch_distributed_process_group as init_group
from vllm.logger import init_logger
from vllm.v1.engine import core
from vllm.v1.fault_tolerance.engine_core_sentinel import EngineCoreSentinel

END_SECONDS = 10  # for the worker to end the view, which takes it a fraction of a second

logger = init_logger("vllm.ferry")  # under the name whose messages vLLM shows


class EngineSentinel(EngineCoreSentinel):
    """Runs a retry in an engine."""

    def on_fault(self, exc):
        # The others may wait for this engine in calls of ferry, or in its group of Gloo, whose end they see.
        try:
            self.engine.model_executor.collective_rpc("end_view", timeout=END_SECONDS)
        except Exception:
            logger.exception("ferry: the worker of engine %d cannot end the view", self.engine_index)
        destroy_group(self.engine.dp_group)
        self.engine.dp_group = None
        super().on_fault(exc)

    def retry(self, request):
        # vLLM notes what its caches have before the step that computes it.
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("ferry.vllm: requests of the step that raised still hold blocks of the cache")
        self.engine.reset_encoder_cache()
        return super().retry(request)

    def _reinit_dp_group(self):
        """Makes the group by which the engines agree on waves of requests, of those that remain, and brings them to the
        same wave. Returns what vLLM passes to the worker: nothing. Collective among these engines."""
        engine, config = self.engine, self.parallel_config
        ((ranks, port, wave),) = engine.model_executor.collective_rpc("begin_next_view", args=(engine.current_wave,))
        if ranks[0] != 0:
            raise RuntimeError("ferry.vllm: the engine of rank 0 was lost, and with its server vLLM's coordinator, "
                               "by which an engine learns that others have requests")  # fmt: skip
        engine.dp_group, engine.dp_store = init_group(
            config.data_parallel_master_ip, port, ranks.index(config.data_parallel_rank), len(ranks), backend="gloo",
            return_store=True, timeout=config.cpu_distributed_timeout)  # fmt: skip
        # All make one step, with or without requests, after which vLLM ends the wave or goes on with it everywhere.
        engine.current_wave, engine.engines_running = wave, True
        return {}


def use():
    core.EngineCoreSentinel = EngineSentinel
