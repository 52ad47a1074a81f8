"""A worker whose rank goes on after an error of a step, for vLLM's `--enable-fault-tolerance` (engine.py)."""

from vllm.model_executor.layers.fused_moe.all2all_utils import get_ep_all2all_manager
from vllm.model_executor.layers.fused_moe.runner.shared_experts import SharedExperts
from vllm.v1.worker import gpu_worker
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.sentinel import gpu_worker_sentinel


class WorkerSentinel(gpu_worker_sentinel.WorkerSentinel):
    """Runs the worker's part of a retry, after begin_next_view()."""

    def __init__(self, worker):
        # vLLM's class takes only backends that go on after a fault. ferry stands in place of the one that is named.
        gpu_worker_sentinel.FT_BACKEND_SET |= {worker.parallel_config.all2all_backend}
        super().__init__(worker)

    def retry(self, _request):
        self._clean_worker_state()
        for module in self.worker.model_runner.model.modules():
            if isinstance(module, SharedExperts):  # holds its results until the step that raised would have used them
                module._output[:] = [None] * len(module._output)


class FaultTolerantWorker(CPUWorker):
    def __init__(self, *args, **kwargs):
        gpu_worker.WorkerSentinel = WorkerSentinel
        super().__init__(*args, **kwargs)

    def end_view(self):
        """Ends the calls of the other ranks, for a rank whose engine has raised."""
        get_ep_all2all_manager().end_view()

    def begin_next_view(self, wave):
        """Begins the next view with the experts of lost ranks. Returns the ranks that remain, a port that is free where
        the lowest of them is, and the highest wave of their engines. Collective among them."""
        return get_ep_all2all_manager().begin_next_view(self.model_runner.model, wave)
