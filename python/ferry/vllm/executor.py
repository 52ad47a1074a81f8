"""An executor of vLLM for tensor parallel ranks, of which the first runs in the engine's process.

vLLM's own executor has a process for each rank, and an engine that sends each call to all of them and polls for the
reply of the first. Where there are as many cores as ranks, the engine takes time from the ranks. vLLM imports this
module by the name that platform.py sets.
"""

import time
from concurrent.futures import Future

import cloudpickle
from vllm import envs
from vllm.distributed import destroy_distributed_environment, destroy_model_parallel
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.platforms import current_platform
from vllm.utils.network_utils import get_file_store_init_method
from vllm.utils.system_utils import get_mp_context
from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc, set_multiprocessing_worker_envs
from vllm.v1.serial_utils import run_method
from vllm.v1.worker.worker_base import WorkerWrapperBase


class EngineExecutor(MultiprocExecutor):
    """Rank 0 is `_first`, a worker in this process. The others are worker processes, which get each call from
    `rpc_broadcast_mq` while rank 0 makes it here."""

    supports_pp = False

    def _init_executor(self):
        self.is_failed, self.failure_callback, self.response_mqs = False, None, []
        self._get_parallel_sizes()
        set_multiprocessing_worker_envs(self.world_size)
        ranks = list(range(1, self.world_size))
        self.rpc_broadcast_mq = MessageQueue(len(ranks), len(ranks), ranks,
                                             max_chunk_bytes=envs.VLLM_MQ_MAX_CHUNK_BYTES_MB << 20)  # fmt: skip
        settings = dict(vllm_config=self.vllm_config, distributed_init_method=get_file_store_init_method(),
                        shared_worker_lock=get_mp_context().Lock())  # fmt: skip
        handle = self.rpc_broadcast_mq.export_handle()
        starting = [WorkerProc.make_worker_process(local_rank=rank, rank=rank, input_shm_handle=handle,
                                                   is_driver_worker=False, **settings) for rank in ranks]  # fmt: skip
        try:
            self._first = self._start_first(settings)
            self.workers = sorted(WorkerProc.wait_for_ready(starting), key=lambda worker: worker.rank)
        except BaseException:
            for worker in starting:
                worker.death_writer.close()
            self._ensure_worker_termination([worker.proc for worker in starting])
            raise
        self.start_worker_monitor()
        self.rpc_broadcast_mq.wait_until_ready()
        self.response_mqs = [worker.worker_response_mq for worker in self.workers]
        for queue in self.response_mqs:
            queue.wait_until_ready()
        self.output_rank = 0

    def _start_first(self, settings):
        worker = WorkerWrapperBase(rpc_rank=0)
        worker.init_worker([dict(local_rank=0, rank=0, is_driver_worker=True, **settings)])
        worker.init_device()
        worker.load_model()
        current_platform.update_block_size_for_backend(self.vllm_config)
        return worker

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False, unique_reply_rank=None,
                       kv_output_aggregator=None, ec_output_aggregator=None):  # fmt: skip
        """Calls a method on all ranks. Returns the result of rank 0 if unique_reply_rank is 0, or else the results of
        all ranks; with non_block in a future, which has ended."""
        if self.is_failed:
            raise RuntimeError("Executor failed.")
        until = None if timeout is None else time.monotonic() + timeout
        sent = method if isinstance(method, str) else cloudpickle.dumps(method)
        self.rpc_broadcast_mq.enqueue((sent, args, kwargs or {}, unique_reply_rank))
        result = run_method(self._first, method, args, kwargs or {})
        if unique_reply_rank is None:
            result = [result, *(_reply(queue, until) for queue in self.response_mqs)]
        if not non_block:
            return result
        ended = Future()
        ended.set_result(result)
        return ended

    def shutdown(self):
        first, self._first = getattr(self, "_first", None), None
        super().shutdown()
        if first is not None:
            first.shutdown()
            destroy_model_parallel()
            destroy_distributed_environment()


def _reply(queue, until):
    """Returns the result of another rank's call, or raises its error."""
    status, result = queue.dequeue(timeout=None if until is None else max(0.0, until - time.monotonic()))
    if status != WorkerProc.ResponseStatus.SUCCESS:
        raise RuntimeError(f"Worker failed with error '{result}'; its log has the stack trace")
    return result
