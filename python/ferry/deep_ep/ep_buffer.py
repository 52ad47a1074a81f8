"""EPBuffer is DeepEP 2.5's name for ElasticBuffer. It adds calls in two halves, and redundant experts.

A deferred call does its send half. The wait of its event does the receive half and returns the results.
redundant_experts.py moves the weights and gradients of redundant experts. The other buffers of DeepEP 2.5 are not
built: their constructors raise NotBuilt.
"""

from types import SimpleNamespace

from ferry.deep_ep import groups
from ferry.deep_ep.elastic import ElasticBuffer
from ferry.deep_ep.elastic_sessions import NotBuilt
from ferry.deep_ep.redundant_experts import BufferAllocator, RedundantExperts
from ferry.deep_ep.scalars import MOST_BYTES, SIZE_UNIT, flag, integer
from ferry.errors import InvalidArgument

__all__ = ["BucketBuffer", "BucketSession", "BufferAllocator", "EPBuffer", "EngramBuffer", "PPBuffer",
           "get_num_allocation_alignment", "get_num_rdma_alignment", "get_num_tma_alignment"]

_TMA_BYTES = 32


class EPBuffer(RedundantExperts, ElasticBuffer):
    """ElasticBuffer with the name and the signatures of DeepEP 2.5.

    lb_allocation_plan_or_num_bytes is a number of bytes, or a BufferAllocator, whose tensors get their memory here.
    """

    def __init__(self, group, num_bytes=None, num_max_tokens_per_rank=0, hidden=0, num_topk=0, use_fp8_dispatch=False,
                 lb_allocation_plan_or_num_bytes=0, deterministic=False, allow_hybrid_mode=True,
                 allow_multiple_reduction=True, prefer_overlap_with_compute=True, sl_idx=None, num_allocated_qps=0,
                 num_cpu_timeout_secs=300, num_gpu_timeout_secs=100, explicitly_destroy=False):
        super().__init__(group, num_bytes, 0, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch,
                         deterministic, allow_hybrid_mode, allow_multiple_reduction, prefer_overlap_with_compute,
                         sl_idx, num_allocated_qps, num_cpu_timeout_secs, num_gpu_timeout_secs, explicitly_destroy)
        plan = lb_allocation_plan_or_num_bytes
        with groups.leaving(self.exchanges.group if self._owns_group else None):
            self.num_lb_bytes = plan.num_bytes if isinstance(plan, BufferAllocator) else integer(
                "lb_allocation_plan_or_num_bytes", plan, most=MOST_BYTES)
        if isinstance(plan, BufferAllocator):
            plan.materialize()
        self.context = None

    def dispatch(self, x, topk_idx=None, topk_weights=None, cumulative_local_expert_recv_stats=None, num_experts=None,
                 num_max_tokens_per_rank=None, expert_alignment=None, num_sms=0, num_qps=0, previous_event=None,
                 async_with_compute_stream=False, allocate_on_comm_stream=False, handle=None, do_handle_copy=False,
                 do_cpu_sync=None, do_expand=False, do_zero_padding=False, use_tma_aligned_col_major_sf=False,
                 defer_epilogue=False):
        """Does what ElasticBuffer.dispatch does. do_handle_copy must be False: the handle keeps topk_idx itself, which
        the caller must not change afterwards.

        With defer_epilogue, which needs async_with_compute_stream, this does only the send half and returns an
        EventOverlap. The first wait() of the event does the receive half and returns (recv_x, recv_topk_idx,
        recv_topk_weights, handle). All ranks make these waits in the order of the calls.
        """
        asked = SimpleNamespace(**{name: value for name, value in locals().items() if name != "self"})
        try:
            deferred = _is_deferred(defer_epilogue, async_with_compute_stream)
            if flag("do_handle_copy", do_handle_copy):
                raise InvalidArgument("do_handle_copy is True: an EPBuffer's handle always has topk_idx itself")
        except InvalidArgument as error:
            self._refuse(error)
        return self._dispatch(asked, deferred)

    def combine(self, x, handle, topk_weights=None, bias=None, num_sms=0, num_qps=0, previous_event=None,
                async_with_compute_stream=False, allocate_on_comm_stream=False, defer_epilogue=False):
        """Does what ElasticBuffer.combine does. With defer_epilogue, which needs async_with_compute_stream, this does
        only the send half and returns an EventOverlap. The first wait() of the event returns (combined_x,
        combined_topk_weights); until then the caller must not change x and the biases."""
        try:
            deferred = _is_deferred(defer_epilogue, async_with_compute_stream)
        except InvalidArgument as error:
            self.exchanges.refuse_combine(error)
        return self._combine(x, handle, topk_weights, bias, dict(num_sms=num_sms, num_qps=num_qps),
                             dict(async_with_compute_stream=async_with_compute_stream,
                                  allocate_on_comm_stream=allocate_on_comm_stream), deferred)


def _is_deferred(defer_epilogue, async_with_compute_stream):
    deferred = flag("defer_epilogue", defer_epilogue)
    if deferred and not flag("async_with_compute_stream", async_with_compute_stream):
        raise InvalidArgument("defer_epilogue needs async_with_compute_stream=True: the event's wait is the epilogue")
    return deferred


def get_num_allocation_alignment():
    """Returns 2 MiB, the unit of buffer sizes."""
    return SIZE_UNIT


def get_num_rdma_alignment():
    """Returns 32 bytes."""
    return _TMA_BYTES


def get_num_tma_alignment():
    """Returns 32 bytes."""
    return _TMA_BYTES


def _not_built(name, instead):
    def __init__(self, *_, **__):
        raise NotBuilt(f"{name} is not built: {instead}")

    return type(name, (), {"__init__": __init__, "__doc__": f"Raises NotBuilt: {instead}.", "__module__": __name__})


BucketBuffer = _not_built("BucketBuffer", "torch.distributed has all-gather, reduce-scatter and all-reduce")
BucketSession = _not_built("BucketSession", "torch.distributed has all-gather, reduce-scatter and all-reduce")
EngramBuffer = _not_built("EngramBuffer", "there is no storage of embeddings in other ranks' memory")
PPBuffer = _not_built("PPBuffer", "torch.distributed has send and recv")
