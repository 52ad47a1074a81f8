"""Buffer: DeepEP's V1 class, its signatures and what they promise. The work is done by normal.py and low_latency.py, on
cuda tensors by device_normal.py and device_low_latency.py.

Every method is documented in docs/deep_ep.md: what it honours, what has no meaning on a CPU, what it refuses.
"""

import math
from typing import List, Optional, Tuple, Union

import torch

import ferry
from ferry import _core
from ferry.deep_ep import channels, device, device_normal, groups, handles, nodes, normal
from ferry.deep_ep.config import Config, combine_config, dispatch_config
from ferry.deep_ep.device_low_latency import DeviceLowLatency
from ferry.deep_ep.events import EventHandle, EventOverlap, overlap
from ferry.deep_ep.layout import CPU, dispatch_layout
from ferry.deep_ep.low_latency import LowLatency
from ferry.deep_ep.scalars import MOST_BYTES, check_flags, flag, integer
from ferry.exchanges import Exchanges
from ferry.on_cpu.streams import Stream

Rows = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]


class Buffer(LowLatency):
    """Sends tokens to the ranks of their experts and their results back, on CPU tensors, or on cuda tensors of ranks
    of one node: the first ones decide.

    group: torch ProcessGroup, or ferry.Group; comm: mpi4py communicator, when group is None.
    Sizes, queue pairs and NVLink options are accepted; memory is ferry's own and grows as needed. enable_shrink allows
    masking ranks in low-latency calls. Collective.

    Shapes use T tokens of this rank, H hidden, K top-k, E experts, R ranks, L = E / R local experts (when R does not
    divide E the first E % R ranks have one more), N rows received. Arguments that a rank gets wrong raise
    ferry.InvalidArgument on it and ferry.PeerRejected on the others, and the buffer goes on.
    """

    num_sms: int = 20

    def __init__(self, group, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, low_latency_mode: bool = False,
                 num_qps_per_rank: int = 24, allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
                 explicitly_destroy: bool = False, enable_shrink: bool = False, comm=None) -> None:
        members = groups.join(group, comm)
        self._owns_group = members is not group
        with groups.leaving(members if self._owns_group else None):
            self.num_nvl_bytes = integer("num_nvl_bytes", num_nvl_bytes, most=MOST_BYTES)
            self.num_rdma_bytes = integer("num_rdma_bytes", num_rdma_bytes, most=MOST_BYTES)
            integer("num_qps_per_rank", num_qps_per_rank)
            self.low_latency_mode = flag("low_latency_mode", low_latency_mode)
            self.explicitly_destroy = flag("explicitly_destroy", explicitly_destroy)
            self.enable_shrink = flag("enable_shrink", enable_shrink)
            check_flags(allow_nvlink_for_low_latency_mode=allow_nvlink_for_low_latency_mode, allow_mnnvl=allow_mnnvl)
        self.group = group if group is not None else comm
        self.rank, self.group_size = members.rank, members.size
        self._node_starts = nodes.starts(members.topology, members.size)
        self._owner = handles.Owner("Buffer")
        self._exchanges: Optional[Exchanges] = Exchanges(members)
        self.device: Optional[device.Device] = None  # where this rank's tensors are; None: on the CPU
        self.device_low_latency: Optional[DeviceLowLatency] = None  # there with it
        self._decided = False
        self._raw = {}

    @property
    def exchanges(self) -> Exchanges:
        """The exchanges behind this buffer; ferry.Closed after destroy()."""
        if self._exchanges is None:
            raise ferry.Closed("this Buffer was destroyed")
        return self._exchanges

    def device_for(self, x) -> Optional[device.Device]:
        """The device that this buffer works on, None for the CPU: the first tensors decide, x of a call."""
        exchanges, first = self.exchanges, x[0] if isinstance(x, (tuple, list)) and x else x
        if not self._decided and isinstance(first, torch.Tensor):
            self._decided = True
            if first.device.type == "cuda":
                self.device = device.Device(exchanges.group, first.device)
                self.device_low_latency = DeviceLowLatency(self.device, self._owner)
        return self.device

    def destroy(self) -> None:
        """Lets go of memory and group, here and now; the other ranks need not call it at the same time. What was
        received stays valid. Allowed with and without explicitly_destroy."""
        exchanges, self._exchanges = self.exchanges, None
        self.device = self.device_low_latency = None
        if self._owns_group:
            self._owner.left_group = True
            exchanges.group.destroy()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether this ferry has kernels for GPUs, which are built for sm_90 and run there."""
        return _core.cuda_built()

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Sets Buffer.num_sms, an even number: twice the channels of the configurations made from now on."""
        Buffer.num_sms = Config(new_num_sms).num_sms  # which checks it

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """DeepEP's recommendation for any number of ranks."""
        return dispatch_config(Buffer.num_sms, num_ranks)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """DeepEP's recommendation for any number of ranks."""
        return combine_config(Buffer.num_sms, num_ranks)

    @staticmethod
    def capture() -> EventOverlap:
        """The moment of torch's current CUDA stream; where this process has not used CUDA, an event that has happened.
        """
        return EventOverlap(EventHandle())

    def get_comm_stream(self) -> Union[Stream, torch.cuda.Stream]:
        """On the CPU a stream without work: calls are complete when they return. On a device a stream that is behind
        every call of this buffer."""
        return Stream() if self.device is None else self.device.comm_stream()

    def get_local_buffer_tensor(self, dtype: torch.dtype, size: Optional[torch.Size] = None, offset: int = 0,
                                use_rdma_buffer: bool = False) -> torch.Tensor:
        """num_nvl_bytes (or num_rdma_bytes) of this rank's memory, the same at every call, from element `offset` on, of
        shape `size` when given. Memory of its own: no call of this library reads or writes it."""
        if not isinstance(dtype, torch.dtype):
            raise ferry.InvalidArgument(f"dtype is {type(dtype).__name__}, need a torch.dtype")
        use_rdma_buffer = flag("use_rdma_buffer", use_rdma_buffer)
        num_bytes = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
        offset = integer("offset", offset, most=MOST_BYTES)
        key = use_rdma_buffer, CPU if self.device is None else self.device.device
        if key not in self._raw:
            self._raw[key] = torch.empty(num_bytes, dtype=torch.uint8, device=key[1])
        raw = self._raw[key]
        element_bytes = torch.empty(0, dtype=dtype).element_size()
        elements = raw[: num_bytes // element_bytes * element_bytes].view(dtype)[offset:]
        if size is None:
            return elements
        size = [integer("size", extent, most=MOST_BYTES) for extent in size]
        if math.prod(size) > elements.numel():
            raise ferry.InvalidArgument(f"the buffer of {num_bytes} bytes has {elements.numel()} elements of {dtype} "
                                        f"from {offset} on, size {size} needs more")
        return elements[: math.prod(size)].view(size)

    def get_dispatch_layout(self, topk_idx: torch.Tensor, num_experts: int,
                            previous_event: Optional[EventOverlap] = None, async_finish: bool = False,
                            allocate_on_comm_stream: bool = False) \
            -> Tuple[torch.Tensor, Optional[torch.Tensor], torch.Tensor, torch.Tensor, EventOverlap]:
        """Where the tokens go: topk_idx int64 or int32 [T, K], -1: not sent. Local.

        Returns (num_tokens_per_rank int32 [R], num_tokens_per_rdma_rank int32 [nodes] or None in one node,
        num_tokens_per_expert int32 [E], is_token_in_rank bool [T, R], event). A token counts once per rank and per
        node, and as often per expert as it lists it.
        """
        check_flags(async_finish=async_finish, allocate_on_comm_stream=allocate_on_comm_stream)
        if isinstance(topk_idx, torch.Tensor) and topk_idx.device.type == "cuda":
            device.wait(previous_event)
            layout = device_normal.dispatch_layout(topk_idx, num_experts, self.group_size)
            return (*layout, device.moment(topk_idx.device))
        return (*dispatch_layout(topk_idx, num_experts, self.group_size, self._node_starts), overlap())

    def dispatch(self, x: Rows, handle: Optional[Tuple] = None, num_tokens_per_rank: Optional[torch.Tensor] = None,
                 num_tokens_per_rdma_rank: Optional[torch.Tensor] = None,
                 is_token_in_rank: Optional[torch.Tensor] = None, num_tokens_per_expert: Optional[torch.Tensor] = None,
                 topk_idx: Optional[torch.Tensor] = None, topk_weights: Optional[torch.Tensor] = None,
                 expert_alignment: int = 1, num_worst_tokens: int = 0, config: Optional[Config] = None,
                 previous_event: Optional[EventOverlap] = None, async_finish: bool = False,
                 allocate_on_comm_stream: bool = False) \
            -> Tuple[Rows, Optional[torch.Tensor], Optional[torch.Tensor], Optional[List[int]], Optional[Tuple],
                     EventOverlap]:
        """Sends each token once to every rank that owns one of its experts.

        x: rows [T, H] of any type, or (rows, scales [T, n]) with scales of any type and strides. The layout is what
        get_dispatch_layout returned. topk_idx int64 or int32 [T, K] and topk_weights float32 [T, K], both or none.

        Returns (recv_x, recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list, handle, event): rows [N, H]
        by source rank, then token, as x was (a view of ferry's window; scales contiguous); local expert ids [N, K] in
        their columns, else -1; weights [N, K], 0 where the id is -1; rows per local expert, rounded up to
        expert_alignment.
        num_worst_tokens: outputs have that many rows, those behind the real ones have ids -1, weights 0 and undefined
        rows, the list is empty. With a handle: its layout anew, only recv_x and the event are not None.
        """
        make_handle = channels.internode if len(self._node_starts) > 1 else channels.intranode
        layout = normal.Layout(num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights)
        switches = dict(async_finish=async_finish, allocate_on_comm_stream=allocate_on_comm_stream)
        return self._dispatch(x, handle, layout, expert_alignment, num_worst_tokens, config, make_handle,
                              previous_event, switches)

    def internode_dispatch(self, x: Rows, handle: Optional[Tuple] = None,
                           num_tokens_per_rank: Optional[torch.Tensor] = None,
                           num_tokens_per_rdma_rank: Optional[torch.Tensor] = None,
                           is_token_in_rank: Optional[torch.Tensor] = None,
                           num_tokens_per_expert: Optional[torch.Tensor] = None,
                           topk_idx: Optional[torch.Tensor] = None, topk_weights: Optional[torch.Tensor] = None,
                           expert_alignment: int = 1, num_worst_tokens: int = 0, config: Optional[Config] = None,
                           previous_event: Optional[EventOverlap] = None, async_finish: bool = False,
                           allocate_on_comm_stream: bool = False) \
            -> Tuple[Rows, Optional[torch.Tensor], Optional[torch.Tensor], Optional[List[int]], Optional[Tuple],
                     EventOverlap]:
        """dispatch with the handle of several nodes, a tuple of 10; any number of ranks."""
        layout = normal.Layout(num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights)
        switches = dict(async_finish=async_finish, allocate_on_comm_stream=allocate_on_comm_stream)
        return self._dispatch(x, handle, layout, expert_alignment, num_worst_tokens, config, channels.internode,
                              previous_event, switches)

    def _dispatch(self, x, handle, layout, expert_alignment, num_worst_tokens, config, make_handle, previous_event,
                  switches):
        kernels, here, done = self._normal_kernels(x, previous_event)
        config = Config(Buffer.num_sms) if config is None else config
        form = normal.Form(expert_alignment, num_worst_tokens, config, self._node_starts, make_handle, self._owner,
                           switches)
        if handle is not None:
            return kernels.dispatch_cached(here, x, handle, layout, form), None, None, None, None, done()
        return (*kernels.dispatch(here, x, layout, form), done())

    def _normal_kernels(self, x, previous_event):
        """(module, what its functions take first, what makes the event of a call) for x."""
        here = self.device_for(x)
        if here is None:
            return normal, self.exchanges, overlap
        device.wait(previous_event)
        return device_normal, here, here.done

    def combine(self, x: torch.Tensor, handle: Tuple, topk_weights: Optional[torch.Tensor] = None,
                bias: Union[None, torch.Tensor, Tuple[Optional[torch.Tensor], Optional[torch.Tensor]]] = None,
                config: Optional[Config] = None, previous_event: Optional[EventOverlap] = None,
                async_finish: bool = False, allocate_on_comm_stream: bool = False) \
            -> Tuple[torch.Tensor, Optional[torch.Tensor], EventOverlap]:
        """Sends rows back to their sources: out[t] = biases + the rows of token t, ranks ascending, in float32,
        rounded once.

        x bfloat16, float16 or float32 [N, H'], as dispatch ordered its rows, already weighted and summed over the local
        experts; it may be written to as soon as this returns. topk_weights float32 [N, K] are summed the same way.
        bias: one or two [T, H'] of x's type. Returns (combined_x [T, H'], combined_topk_weights [T, K] or None, event).
        """
        kernels, here, done = self._normal_kernels(x, previous_event)
        switches = dict(async_finish=async_finish, allocate_on_comm_stream=allocate_on_comm_stream)
        return (*kernels.combine(here, x, handle, topk_weights, bias, config, switches), done())

    def internode_combine(self, x: torch.Tensor, handle: Union[tuple, list],
                          topk_weights: Optional[torch.Tensor] = None,
                          bias: Union[None, torch.Tensor, Tuple[Optional[torch.Tensor], Optional[torch.Tensor]]] = None,
                          config: Optional[Config] = None, previous_event: Optional[EventOverlap] = None,
                          async_finish: bool = False, allocate_on_comm_stream: bool = False) \
            -> Tuple[torch.Tensor, Optional[torch.Tensor], EventOverlap]:
        """combine; handles of both kinds are accepted by both."""
        return self.combine(x, handle, topk_weights, bias, config, previous_event, async_finish,
                            allocate_on_comm_stream)
