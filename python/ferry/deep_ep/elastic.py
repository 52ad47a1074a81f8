"""ElasticBuffer has the signatures and the behaviour of DeepEP's V2 class, on rank-major and expert-major exchanges.

Each shape of a dispatch has an exchange of its own. M, the most tokens of a rank, is an argument that is equal on all
ranks. So a dispatch of the same shape as the one before needs no further message.

elastic_handle.py has the handles, rows.py the rows and elastic_sessions.py the all-gather sessions. docs/deep_ep.md
lists the arguments that are honoured, those without a meaning, and those that are refused.
"""

from types import SimpleNamespace

import torch

import ferry
from ferry.deep_ep import groups, handles
from ferry.deep_ep.elastic_arguments import call_of, check_asked, check_stats, check_tokens, seconds
from ferry.deep_ep.elastic_handle import EPHandle, State, expanded, find_state, make_handle, summed_tokens
from ferry.deep_ep.elastic_sessions import NotBuilt, Sessions, num_ranks
from ferry.deep_ep.events import EventHandle, overlap
from ferry.deep_ep.layout import cpu_array, describe
from ferry.deep_ep.nodes import domain_size
from ferry.deep_ep.rows import FLOATS, Rows, detached, resized
from ferry.deep_ep.scalars import FEWEST_SMS, MOST_BYTES, MOST_TOPK, SIZE_UNIT, check_flags, flag, integer, rounded_up
from ferry.errors import InvalidArgument
from ferry.exchanges import Exchanges
from ferry.on_cpu.streams import Stream

__all__ = ["EPHandle", "ElasticBuffer", "NotBuilt", "get_logical_domain_size", "get_physical_domain_size"]

_DIRECT_QPS = 17  # queue pairs that DeepEP allocates inside a node


def get_physical_domain_size(group):
    """Returns (nodes, ranks of a node); (1, R) where nodes have different sizes or are not known yet. Local."""
    return domain_size(group)


def get_logical_domain_size(group, allow_hybrid_mode=True):
    """Returns (1, R): each row goes to its rank in one hop."""
    return 1, num_ranks(group)


class ElasticBuffer(Sessions):
    """Sends tokens to the ranks of their experts and returns the results to the source ranks, on CPU tensors.

    group is a torch ProcessGroup or a ferry.Group. num_max_tokens_per_rank is the default for dispatch. A wait for
    another rank that lasts longer than num_gpu_timeout_secs breaks the group. allow_multiple_reduction decides how
    combine rounds (see combine). num_bytes, hidden and num_topk are checked; ferry makes its memory at the first
    dispatch of each shape. The other arguments have no effect: rows always arrive in the same order, with and without
    `deterministic`. Collective.

    Shapes use T tokens of this rank, M most tokens of a rank, H hidden, K top-k, E experts, R ranks, L experts of this
    rank (E / R; when R does not divide E the first E % R ranks have one more), N received tokens, P expanded rows.
    A wrong argument raises ferry.InvalidArgument on the rank that gave it and ferry.PeerRejected on the other ranks.
    The buffer can be used after that.
    """

    def __init__(self, group, num_bytes=None, num_cpu_bytes=0, num_max_tokens_per_rank=0, hidden=0, num_topk=0,
                 use_fp8_dispatch=False, deterministic=False, allow_hybrid_mode=True, allow_multiple_reduction=True,
                 prefer_overlap_with_compute=True, sl_idx=3, num_allocated_qps=0, num_cpu_timeout_secs=300,
                 num_gpu_timeout_secs=100, explicitly_destroy=False):
        members = groups.join(group)
        self.group = group
        self.rank_idx, self.num_ranks = members.rank, members.size
        self._owns_group = members is not group
        with groups.leaving(members if self._owns_group else None):
            self.deterministic = flag("deterministic", deterministic)
            self.allow_hybrid_mode = flag("allow_hybrid_mode", allow_hybrid_mode)
            self.allow_multiple_reduction = flag("allow_multiple_reduction", allow_multiple_reduction)
            self.prefer_overlap_with_compute = flag("prefer_overlap_with_compute", prefer_overlap_with_compute)
            self.explicitly_destroy = flag("explicitly_destroy", explicitly_destroy)
            self.num_allocated_qps = integer("num_allocated_qps", num_allocated_qps) or _DIRECT_QPS
            self.num_max_tokens_per_rank = integer("num_max_tokens_per_rank", num_max_tokens_per_rank)
            integer("num_cpu_bytes", num_cpu_bytes, most=MOST_BYTES)
            self.num_bytes = self.get_buffer_size_hint(
                members, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch) if num_bytes is None else integer(
                    "num_bytes", num_bytes, most=MOST_BYTES)
            self.deadline = seconds("num_gpu_timeout_secs", num_gpu_timeout_secs)
            seconds("num_cpu_timeout_secs", num_cpu_timeout_secs)
        self.num_scaleout_ranks, self.num_scaleup_ranks = 1, members.size
        self.num_rdma_ranks, self.num_nvlink_ranks = domain_size(members)
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, members.rank
        self._owner = handles.Owner("ElasticBuffer", members)
        self._exchanges = Exchanges(members)
        self._shape = None  # the shape of the last dispatch

    @property
    def exchanges(self):
        """The exchanges behind this buffer; ferry.Closed after destroy()."""
        if self._exchanges is None:
            raise ferry.Closed("this ElasticBuffer was destroyed")
        return self._exchanges

    def destroy(self):
        """Frees this rank's memory and leaves the group at once; the other ranks may call destroy at another time.
        Received tensors stay valid. explicitly_destroy need not be set."""
        exchanges, self._exchanges = self.exchanges, None
        if self._owns_group:
            self._owner.left_group = True
            exchanges.group.destroy()

    @staticmethod
    def get_buffer_size_hint(group, num_max_tokens_per_rank, hidden, num_topk=0, use_fp8_dispatch=False,
                             allow_hybrid_mode=True, allow_multiple_reduction=True):
        """Bytes of shared address space that a rank reserves for expanded dispatches of these shapes, rounded up to
        2 MiB; 0 without tokens. Memory is allocated when rows are written. num_topk=0 means 32."""
        max_tokens = integer("num_max_tokens_per_rank", num_max_tokens_per_rank)
        hidden, num_topk = integer("hidden", hidden), integer("num_topk", num_topk, most=MOST_TOPK)
        check_flags(allow_hybrid_mode=allow_hybrid_mode, allow_multiple_reduction=allow_multiple_reduction)
        use_fp8_dispatch = flag("use_fp8_dispatch", use_fp8_dispatch)
        if max_tokens == 0 or hidden == 0:
            return 0
        ranks = num_ranks(group)
        dtype, scale_bytes = ("uint8", -(-hidden // 128) * 4) if use_fp8_dispatch else ("bfloat16", 0)
        bytes_of_rank = ferry.window_bytes(ranks, max_tokens=max_tokens, hidden=hidden, num_experts=ranks,
                                           top_k=num_topk or MOST_TOPK, dtype=dtype, scale_bytes=scale_bytes).worst
        return rounded_up(bytes_of_rank, SIZE_UNIT)

    def barrier(self, use_comm_stream=True, with_cpu_sync=False, sequential=True):
        """Returns when all ranks have called it."""
        check_flags(use_comm_stream=use_comm_stream, with_cpu_sync=with_cpu_sync, sequential=sequential)
        self.exchanges.group.barrier()

    @staticmethod
    def capture():
        """Returns an EventHandle; on the CPU its wait returns at once."""
        return EventHandle()

    def get_comm_stream(self):
        """Returns a stream on which nothing runs, since every call is complete when it returns."""
        return Stream()

    def get_physical_domain_size(self):
        """Returns (nodes, ranks of a node); (1, R) where nodes have different sizes."""
        return self.num_rdma_ranks, self.num_nvlink_ranks

    def get_logical_domain_size(self):
        """Returns (1, R): each row goes to its rank in one hop."""
        return self.num_scaleout_ranks, self.num_scaleup_ranks

    def get_theoretical_num_sms(self, num_experts, num_topk, num_scaleout_topk=0, rdma_gbs=0, nvlink_gbs=0,
                                sm_read_gbs=200, sm_write_gbs=50):
        """Returns 4, the fewest that DeepEP recommends. No SM is used: the calling thread moves the rows."""
        return FEWEST_SMS

    def get_theoretical_num_qps(self, num_sms):
        """Returns the smaller of num_sms and num_allocated_qps. ferry uses no queue pairs."""
        return min(integer("num_sms", num_sms), self.num_allocated_qps)

    def dispatch(self, x, topk_idx=None, topk_weights=None, cumulative_local_expert_recv_stats=None, num_experts=None,
                 num_max_tokens_per_rank=None, expert_alignment=None, num_sms=0, num_qps=0, previous_event=None,
                 previous_event_before_epilogue=None, async_with_compute_stream=False, allocate_on_comm_stream=False,
                 handle=None, do_handle_copy=True, do_cpu_sync=None, do_expand=False, do_zero_padding=False,
                 use_tma_aligned_col_major_sf=False):
        """Sends each token once to every rank that owns one of its experts.

        x is rows [T, H] of any type, or (rows, scales [T, n]) with scales of any type and strides. topk_idx is int64 or
        int32 [T, K]; -1 means not sent, and a token may list an expert twice. topk_weights is float32 [T, K] or None.
        num_experts is E. num_max_tokens_per_rank is M, equal on all ranks; None takes the value of the constructor.
        expert_alignment None means 1. The number of received rows of each local expert is added to
        cumulative_local_expert_recv_stats, int32 [L]. With do_handle_copy=False the handle keeps topk_idx itself.
        With a handle the dispatch repeats the routes of an earlier one: topk_idx, the statistics and do_cpu_sync are
        not given then, and topk_weights may be new ones or None.

        Returns (recv_x, recv_topk_idx, recv_topk_weights, handle, event), the same handle if one was given.
        recv_x [N, H] is ordered by source rank, then token. recv_topk_idx [N, K] has the ids of local experts in their
        columns and -1 elsewhere. recv_topk_weights [N, K] is 0 where the id is -1, and None without topk_weights.
        do_expand: recv_x [P, H] is ordered by local expert, source rank, token, k; the first row of an expert is at a
        multiple of the alignment; recv_topk_idx is None; recv_topk_weights is [P]. Rows between experts are undefined
        and have weight 0; do_zero_padding fills them and their scales with zeros.
        do_cpu_sync=False (the default with a handle made so): the shapes are those of the worst case, M * R rows, or
        expanded M * R * min(K, L) + (alignment - 1) * L rounded up to the alignment (more only where tokens list an
        expert twice). Rows after the last received one are undefined, and their ids are -1.
        use_tma_aligned_col_major_sf: scales, of 4 bytes, have strides (1, rows rounded up to 4).
        """
        return self._dispatch(SimpleNamespace(**{name: value for name, value in locals().items() if name != "self"}))

    def _dispatch(self, asked, deferred=False):
        """Does a dispatch with the arguments in `asked`. If `deferred`, only its send half: returns an event whose wait
        does the receive half and returns the results of dispatch without the event."""
        if asked.handle is not None:
            return self._dispatch_again(asked, deferred)
        topk_idx, topk_weights = asked.topk_idx, asked.topk_weights
        try:
            check_asked(asked)
            rows = Rows(asked.x, asked.use_tma_aligned_col_major_sf)
            call = call_of(asked, self._or_default(asked.num_max_tokens_per_rank))
        except Exception as error:
            self._refuse(error)
        exchange = self.exchanges.last = self._find(rows, call)
        try:
            check_tokens(rows, call, topk_weights)
            stats = check_stats(asked.cumulative_local_expert_recv_stats, exchange)
        except Exception as error:
            self._refuse(error, exchange)
        call = call._replace(topk_idx=topk_idx.clone() if asked.do_handle_copy else topk_idx)

        def finish(received):
            if stats is not None:
                stats[...] += received.handle.tokens_per_expert.numpy()
            worst = 0 if call.do_cpu_sync else call.worst_rows(self.num_ranks, exchange.num_local_experts)
            state = State(exchange, rows.format, call, max(received.num_rows, worst), self._owner)
            state.routes[exchange] = received.handle
            if not call.do_expand:
                state.is_local = received.topk_ids >= 0
            handle = make_handle(state, received, exchange.group, int(asked.num_sms) or FEWEST_SMS)
            return self._results(received, rows, state, asked, handle)

        arguments = dict(tokens=rows.tokens, topk_ids=topk_idx, topk_weights=detached(topk_weights),
                         token_scales=rows.scales, deadline=self.deadline)
        return self._ended(exchange.dispatch, exchange.dispatch_send, arguments, finish, deferred)

    def _dispatch_again(self, asked, deferred):
        """Does a dispatch with a handle. The first rows of another type or width than those of the handle's dispatch
        are routed by the handle's topk_idx again, and arrive in the same order."""
        handle, topk_weights, state = asked.handle, asked.topk_weights, None
        forbidden = {"topk_idx": asked.topk_idx, "do_cpu_sync": asked.do_cpu_sync or None,
                     "cumulative_local_expert_recv_stats": asked.cumulative_local_expert_recv_stats}
        given = {"num_experts": asked.num_experts, "max_tokens": asked.num_max_tokens_per_rank,
                 "expert_alignment": asked.expert_alignment, "do_expand": asked.do_expand}
        try:
            state = find_state(handle)
            check_asked(asked)
            rows = Rows(asked.x, asked.use_tma_aligned_col_major_sf)
            for name, value in forbidden.items():
                if value is not None:
                    raise InvalidArgument(f"a dispatch with a handle takes no {name}: it repeats the handle's")
            for name, value in given.items():
                if value is not None and value != getattr(state.call, name):
                    raise InvalidArgument(f"{name} is {value}, the handle's dispatch had {getattr(state.call, name)}")
            if rows.num_tokens != state.route.num_tokens:
                raise InvalidArgument(f"x has {rows.num_tokens} tokens, the handle's dispatch had "
                                      f"{state.route.num_tokens}")
            check_tokens(rows, state.call, topk_weights)
        except Exception as error:
            self._refuse(error, state and state.exchange)
        exchange = state.exchange if rows.format == state.format else self._find(rows, state.call)
        route = state.routes.get(exchange)
        topk_idx = state.call.topk_idx if route is None else None

        def finish(received):
            state.routes[exchange] = received.handle
            return self._results(received, rows, state, asked, handle)

        arguments = dict(tokens=rows.tokens, topk_ids=topk_idx, topk_weights=detached(topk_weights), handle=route,
                         token_scales=rows.scales, deadline=self.deadline)
        return self._ended(exchange.dispatch, exchange.dispatch_send, arguments, finish, deferred)

    def combine(self, x, handle, topk_weights=None, bias=None, num_sms=0, num_qps=0, previous_event=None,
                previous_event_before_epilogue=None, async_with_compute_stream=False, allocate_on_comm_stream=False):
        """Sends rows back to their source ranks. There the rows of a token are added, without weights, in float32 from
        +0, and the sum is rounded once.

        x is bfloat16, float16 or float32 with as many rows as recv_x of the dispatch (N or P, or the worst case). The
        caller has multiplied the rows by their weights, and may write to x as soon as this returns. bias is one or two
        [T, H'] of x's type. out[t] is the biases plus the rows of token t:
        - not expanded: the row of each rank, ranks ascending; the caller has summed its local experts in each row.
        - expanded, with multiple reduction: the rows of a rank are added in k order and rounded to x's type; this sum
          is added at the highest k of the rank.
        - expanded, without multiple reduction: each row in k order.
        handle.do_expand = False after an expanded dispatch says that the caller has summed the rows of each token: x
        has one row for each row of recv_src_metadata, which is added at the highest k of the rank, with and without
        multiple reduction.
        topk_weights is float32 in the shape of recv_topk_weights, or [rows of x, K] for summed rows. Entries for
        experts of other ranks are ignored. As in DeepEP, expanded rows without multiple reduction take no topk_weights.
        Returns (combined_x [T, H'], combined_topk_weights [T, K], 0 where the id is -1, or None, event).
        """
        return self._combine(x, handle, topk_weights, bias, dict(num_sms=num_sms, num_qps=num_qps), dict(
            async_with_compute_stream=async_with_compute_stream, allocate_on_comm_stream=allocate_on_comm_stream))

    def _combine(self, x, handle, topk_weights, bias, numbers, switches, deferred=False):
        """Does a combine. `numbers` and `switches` are checked and have no other effect."""
        state = None
        try:
            state = find_state(handle)
            check_flags(**switches)
            for name, value in numbers.items():
                integer(name, value)
            summed = summed_tokens(handle, state)
            x, row_weights = self._combined_rows(x, topk_weights, state, summed)
        except Exception as error:
            self.exchanges.refuse_combine(error, state and state.exchange)
        returned = None if row_weights is None else torch.empty(state.call.topk_idx.shape, dtype=torch.float32)
        partials = "per_rank" if state.call.do_expand and self.allow_multiple_reduction else "none"
        arguments = dict(expert_rows=x, handle=state.route, bias=detached(bias), row_weights=row_weights,
                         out_topk_weights=returned, partials=partials, in_place=False, deadline=self.deadline)
        return self._ended(state.exchange.combine, state.exchange.combine_send, arguments,
                           lambda out: (out, returned), deferred)

    def _combined_rows(self, x, topk_weights, state, summed):
        """Returns x and topk_weights in the exchange's order of rows, without the unused rows of the worst case."""
        call, num_rows = state.call, state.num_rows if summed is None else len(summed)
        if not isinstance(x, torch.Tensor) or x.dim() != 2 or x.dtype not in FLOATS or len(x) != num_rows:
            raise InvalidArgument(f"x is {describe(x)}, need bfloat16, float16 or float32 [{num_rows}, hidden]")
        by_expert = call.do_expand and summed is None
        if topk_weights is not None:
            if by_expert and not self.allow_multiple_reduction:
                raise InvalidArgument("expanded rows return no topk_weights when multiple reduction is off")
            shape = (num_rows,) if by_expert else (num_rows, call.top_k)
            cpu_array(topk_weights, "topk_weights", (torch.float32,), shape)
            topk_weights = topk_weights.detach()
        num_rows = state.route.num_rows
        if summed is not None:
            return expanded(x.detach(), topk_weights, summed, num_rows)
        x = resized(x.detach(), num_rows)
        if topk_weights is None:
            return x, None
        weights = resized(topk_weights, num_rows)
        return x, weights if by_expert else torch.where(state.is_local, weights, torch.zeros(()))

    def _results(self, received, rows, state, asked, handle):
        call, num_rows = state.call, state.num_rows
        if asked.do_zero_padding and call.do_expand and call.expert_alignment > 1:
            _zero_gaps(received)
        idx = None if call.do_expand else resized(received.topk_ids.to(call.topk_idx.dtype), num_rows, -1)
        has_weights = asked.topk_weights is not None
        weights = resized(received.weights.clone(), num_rows) if has_weights else None  # a view would pin the buffer
        return rows.received(received, num_rows), idx, weights, handle

    def _or_default(self, num_max_tokens_per_rank):
        return self.num_max_tokens_per_rank if num_max_tokens_per_rank is None else num_max_tokens_per_rank

    def _find(self, rows, call):
        """Returns the exchange for the shape of this dispatch. When the shape differs from that of the last dispatch,
        all ranks compare their shapes first: a rank that refuses its call or has yet another shape is found there."""
        key = (*rows.format, ("num_experts", call.num_experts), ("top_k", call.top_k),
               ("layout", "expert_major" if call.do_expand else "rank_major"),
               ("expert_alignment", call.expert_alignment))
        shape = (*key, ("num_max_tokens_per_rank", call.max_tokens))
        if shape != self._shape or self.exchanges.current is None:
            self.exchanges.change(shape)
            self._shape = shape
        exchange = self.exchanges.current = self.exchanges.hold(call.max_tokens, key)
        return exchange

    def _refuse(self, error, exchange=None):
        """Refuses this dispatch on all ranks and raises `error`: in `exchange`, or without one in the exchange of the
        last dispatch, in which the other ranks most likely are."""
        self.exchanges.refuse_change(exchange or self.exchanges.current, error)


    def _ended(self, call, send, arguments, finish, deferred):
        """Makes the call and returns (*results, event); `finish` turns the value of the call into the results. If
        `deferred`, only `send` is called: returns an event whose first wait does the receive half and returns the
        results."""
        if not deferred:
            return *finish(call(**arguments)), overlap()
        operation, event, owner = send(**arguments), overlap(), self._owner

        def receive():
            owner.check("event")
            return finish(operation.recv())

        event.register_hook_after_wait(receive)
        return event


def _zero_gaps(received):
    """Fills with zeros the rows and scales between the last row of an expert and the first of the next expert."""
    handle = received.handle
    ends = handle.expert_offsets[:-1] + handle.tokens_per_expert
    arrays = [received.rows] + ([] if received.scales is None else [received.scales])
    for begin, end in zip(ends.tolist(), handle.expert_offsets[1:].tolist()):
        for array in arrays if begin < end else ():
            array[begin:end] = 0
