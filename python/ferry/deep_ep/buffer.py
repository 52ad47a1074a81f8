"""Buffer has the signatures and the behaviour of DeepEP's V1 class. normal.py and low_latency.py do the work on CPU
tensors, device_normal.py and device_low_latency.py on cuda tensors.

docs/deep_ep.md lists for every method the arguments that are honoured, those without a meaning on a CPU, and those that
are refused.
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
    """Sends tokens to the ranks of their experts and returns the results to the source ranks. The first tensor that a
    Buffer gets decides whether it works on CPU tensors, or on cuda tensors, whose ranks are on one node.

    group is a torch ProcessGroup or a ferry.Group; comm is an mpi4py communicator, used when group is None. Sizes,
    queue pairs and NVLink options are checked. Sizes have an effect on get_local_buffer_tensor only, as ferry makes its
    memory when it is needed; the others have no effect. enable_shrink allows masking ranks in low-latency calls.
    Collective.

    Shapes use T tokens of this rank, H hidden, K top-k, E experts, R ranks, L = E / R local experts (when R does not
    divide E the first E % R ranks have one more), N rows received. A wrong argument raises ferry.InvalidArgument on the
    rank that gave it and ferry.PeerRejected on the other ranks. The buffer can be used after that.
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
        self._owner = handles.Owner("Buffer", members)
        self._exchanges: Optional[Exchanges] = Exchanges(members)
        self.device: Optional[device.Device] = None  # the device of this rank's tensors; None: the CPU
        self.device_low_latency: Optional[DeviceLowLatency] = None  # None without a device
        self._decided = False
        self._raw = {}

    @property
    def exchanges(self) -> Exchanges:
        """The exchanges behind this buffer; ferry.Closed after destroy()."""
        if self._exchanges is None:
            raise ferry.Closed("this Buffer was destroyed")
        return self._exchanges

    def device_for(self, x) -> Optional[device.Device]:
        """Returns the device that this buffer works on, None for the CPU. The first x that is a tensor decides."""
        exchanges, first = self.exchanges, x[0] if isinstance(x, (tuple, list)) and x else x
        if not self._decided and isinstance(first, torch.Tensor):
            self._decided = True
            if first.device.type == "cuda":
                self.device = device.Device(exchanges.group, first.device)
                self.device_low_latency = DeviceLowLatency(self.device, self._owner)
        return self.device

    def destroy(self) -> None:
        """Frees this rank's memory and leaves the group at once; the other ranks may call destroy at another time.
        Received tensors stay valid. explicitly_destroy need not be set."""
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
        """Sets Buffer.num_sms, an even number. get_dispatch_config, get_combine_config and dispatches without a config
        then use num_sms / 2 channels."""
        Buffer.num_sms = Config(new_num_sms).num_sms  # Config checks num_sms

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """Returns the Config that DeepEP recommends for a dispatch of any number of ranks."""
        return dispatch_config(Buffer.num_sms, num_ranks)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """Returns the Config that DeepEP recommends for a combine of any number of ranks."""
        return combine_config(Buffer.num_sms, num_ranks)

    @staticmethod
    def capture() -> EventOverlap:
        """Records an event on torch's current CUDA stream. Where this process has not used CUDA, a wait for the event
        returns at once."""
        return EventOverlap(EventHandle())

    def get_comm_stream(self) -> Union[Stream, torch.cuda.Stream]:
        """On the CPU, a stream on which nothing runs, since every call is complete when it returns. On a device, a
        stream that waits for the work of every call of this buffer."""
        return Stream() if self.device is None else self.device.comm_stream()

    def get_local_buffer_tensor(self, dtype: torch.dtype, size: Optional[torch.Size] = None, offset: int = 0,
                                use_rdma_buffer: bool = False) -> torch.Tensor:
        """Returns a tensor in num_nvl_bytes (or num_rdma_bytes) of this rank's memory, which is the same memory at
        every call: the elements from `offset` on, in the shape `size` if given. No other call reads or writes it."""
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
        """Computes where the tokens go. topk_idx is int64 or int32 [T, K]; -1 means not sent. Local.

        Returns (num_tokens_per_rank int32 [R], num_tokens_per_rdma_rank int32 [nodes] or None in one node,
        num_tokens_per_expert int32 [E], is_token_in_rank bool [T, R], event). A token counts once for each rank and
        once for each node. For an expert it counts as often as the token lists the expert.
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

        x is rows [T, H] of any type, or (rows, scales [T, n]) with scales of any type and strides. get_dispatch_layout
        returns the three counts and is_token_in_rank. topk_idx is int64 or int32 [T, K] and topk_weights float32
        [T, K]; both are given or neither.

        Returns (recv_x, recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list, handle, event). recv_x is
        [N, H] by source rank, then token, in x's type and with contiguous scales where x has scales; CPU tensors are
        views of ferry's window. recv_topk_idx [N, K] has the ids of local experts in their columns and -1 elsewhere.
        recv_topk_weights [N, K] is 0 where the id is -1. The list has the rows of each local expert, rounded up to
        expert_alignment.
        num_worst_tokens: the outputs have this many rows; the unused rows at the end are undefined, with ids -1 and
        weights 0, and the list is empty. With a handle, the dispatch repeats the routes of the handle's dispatch, and
        only recv_x and the event are not None.
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
        """Does what dispatch does, and returns the handle for several nodes, a tuple of 10, whatever the number of
        ranks."""
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
        """Returns, for x, (the module with dispatch and combine, the first argument of its functions, the function that
        returns the event of a call)."""
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
        """Sends rows back to their source ranks. There out[t] is the sum of the biases and the rows of token t, ranks
        ascending, in float32 and rounded once.

        x is bfloat16, float16 or float32 [N, H'] in the order of the rows of the dispatch. The caller has multiplied
        its rows by their weights and summed them over the local experts, and may write to x as soon as this returns.
        topk_weights float32 [N, K] are summed like the rows. bias is one or two [T, H'] of x's type.
        Returns (combined_x [T, H'], combined_topk_weights [T, K] or None, event).
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
        """Does what combine does. Both methods take the handles of dispatch and of internode_dispatch."""
        return self.combine(x, handle, topk_weights, bias, config, previous_event, async_finish,
                            allocate_on_comm_stream)
