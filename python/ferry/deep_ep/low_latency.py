"""The low-latency methods of Buffer. Each expert has a row for every token that it could receive, and combine
multiplies the rows by their weights.

A dispatch uses a padded exchange with R * M rows for each expert, and returns views of the window.
low_latency_rows.py has the state of a handle and returns the rows; low_latency_arguments.py checks arguments.
docs/deep_ep.md, "Low latency", lists the differences from DeepEP on GPUs.
"""

from types import SimpleNamespace
from typing import Callable, Optional, Tuple, Union

import numpy as np
import torch

import ferry
from ferry.deep_ep import handles
from ferry.deep_ep import low_latency_arguments as arguments
from ferry.deep_ep.events import EventOverlap, overlap
from ferry.deep_ep.low_latency_rows import Arrival, Sent, add_waits
from ferry.deep_ep.rows import detached
from ferry.deep_ep.scalars import flag, integer
from ferry.errors import InvalidArgument


class LowLatency:
    """The methods of Buffer for decoding. They need self.exchanges, _owner, rank, group_size and enable_shrink; for
    cuda tensors also device_for, device and device_low_latency.

    R ranks, E experts, L of them on this rank, T tokens of this rank, M the most tokens of a rank, H hidden, K top-k.
    A refused call raises ferry.InvalidArgument on this rank and ferry.PeerRejected on the other ranks; the buffer can
    be used after that.
    """

    _masked = frozenset()  # the ranks that the caller has masked
    _logfmt_view = 0  # the view of the last combine, if it had use_logfmt; else 0

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int,
                                       num_experts: int) -> int:
        """Returns the bytes of shared address space that a rank reserves for these shapes, with fp8 or bf16 dispatches,
        whichever needs more. Memory is allocated when rows are written."""
        max_tokens = integer("num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank, 1)
        num_ranks = integer("num_ranks", num_ranks, 1)
        config = arguments.config(max_tokens, num_ranks, hidden=integer("hidden", hidden, 1),
                                  num_experts=integer("num_experts", num_experts, 1), top_k=1, dtype="bfloat16")
        return max(ferry.window_bytes(num_ranks, max_tokens=max_tokens, wire=wire, **config).worst
                   for wire in ("fp8", "none"))

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Checks its arguments and does nothing else: a call does not depend on data of earlier calls."""
        integer("num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank, 1)
        integer("hidden", hidden, 1)
        integer("num_experts", num_experts, 1)

    def low_latency_dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, num_max_dispatch_tokens_per_rank: int,
                             num_experts: int, cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None,
                             dispatch_wait_recv_cost_stats: Optional[torch.Tensor] = None, use_fp8: bool = True,
                             round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
                             return_recv_hook: bool = False) \
            -> Tuple[Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]], torch.Tensor, Tuple, EventOverlap,
                     Optional[Callable[[], None]]]:
        """Sends a copy of each token to each of its experts.

        x is [T, H] bfloat16, float16 or float32. topk_idx is int64 or int32 [T, K]; -1 means not sent. The maximum M is
        equal on all ranks. recv_count is added to cumulative_local_expert_recv_stats, int32 [L]. The nanoseconds that
        this rank waited for each source rank are added to dispatch_wait_recv_cost_stats, int64 [R], or to this rank's
        row of [R, R].

        Returns (recv_x, recv_count, handle, event, hook). recv_x is [L, R * M, H]. With use_fp8 it is a pair:
        float8_e4m3fn, and one scale for 128 channels, float32 [L, R * M, ceil(H / 128)]; with use_ue8m0 an int32 has
        the exponents of four scales. The last two dimensions of scales are column-major. recv_count int32 [L] is the
        number of valid rows of each expert, ordered by source rank, then token; the other rows are undefined. handle is
        (source tokens int32 [L, R * M], -1 where there is no row; layout int64 [L, R], first row << 32 | rows of each
        source; M; H; E). hook is None; with return_recv_hook the caller calls it before reading the received data.
        """
        switches = arguments.Switches(use_fp8, round_scale, use_ue8m0, async_finish, return_recv_hook)
        here = self.device_for(x)
        if here is not None:
            *returned, hook = self.device_low_latency.dispatch(SimpleNamespace(**locals()), switches, self._masked)
            return (*returned, here.done(), hook)
        statistics = cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
        active_ranks = self._active_ranks()
        exchange, max_tokens, num_experts = self._exchange_of(
            x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, switches, active_ranks)
        with arguments.Refusing(exchange.refuse_dispatch, active_ranks):
            arguments.check_dispatch(x, max_tokens, switches)
            ids = arguments.read_ids(topk_idx, (len(x), topk_idx.shape[1])).numpy()
            arguments.check_statistics(statistics, exchange.num_local_experts, self.group_size)
        send = exchange.dispatch_send if return_recv_hook else exchange.dispatch
        sent_or_received = send(detached(x), topk_idx, active_ranks=active_ranks)
        sent = Sent(exchange, ids, active_ranks, max_tokens, num_experts, self._owner)
        arrival = Arrival(sent, self.rank, self.group_size, statistics)
        take = arrival.later if return_recv_hook else arrival.now
        rows, scales, hook = take(sent_or_received, x, switches.wire)
        handle = (arrival.source_tokens, arrival.layout, max_tokens, x.shape[1], num_experts)
        return rows if scales is None else (rows, scales), arrival.counts, handle, overlap(), hook

    def low_latency_combine(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, handle: Tuple,
                            use_logfmt: bool = False, zero_copy: bool = False, async_finish: bool = False,
                            return_recv_hook: bool = False, out: Optional[torch.Tensor] = None,
                            combine_wait_recv_cost_stats: Optional[torch.Tensor] = None) \
            -> Tuple[torch.Tensor, EventOverlap, Optional[Callable[[], None]]]:
        """Sends the rows of the experts back. Each token gets the sum over k of weight * row, in float32, rounded once.

        x is [L, R * M, H'] bfloat16, float16 or float32, with each row in its place in recv_x. With zero_copy x is not
        read: the rows are in get_next_low_latency_combine_buffer(handle). topk_idx is that of the dispatch, with -1 for
        an entry that adds nothing. topk_weights is float32 [T, K]. With use_logfmt rows travel in ten bits per element.
        out [T, H'], if given, is written and returned. combine_wait_recv_cost_stats is like the statistics of the
        dispatch. Returns (combined_x [T, H'], event, hook). With return_recv_hook, combined_x is complete after hook()
        has been called, and the caller must not change topk_weights before that.
        """
        here = self.device_for(x)
        if here is not None:
            out, hook = self.device_low_latency.combine(SimpleNamespace(**locals()))
            return out, here.done(), hook
        last = self.exchanges.current
        with arguments.Refusing(last and last.refuse_combine, self._active_ranks()):
            sent = handles.find(handle, Sent).state
        with arguments.Refusing(sent.exchange.refuse_combine, sent.active_ranks):
            use_logfmt = arguments.check_combine(use_logfmt, zero_copy, async_finish, return_recv_hook)
            arguments.check_handle(handle, sent)
            rows = arguments.outputs(sent) if zero_copy else arguments.read_rows(x, self._places(sent))
            weights = arguments.read_weights(topk_idx, topk_weights, sent.ids)
            arguments.check_statistics((None, combine_wait_recv_cost_stats), None, self.group_size)
        if out is None:
            out = rows.new_empty((len(weights), rows.shape[2]))
        exchange, call = self._combine_of(sent, rows, weights, out, use_logfmt)
        operation = (exchange.combine_send if return_recv_hook else exchange.combine)(**call, in_place=zero_copy)
        if zero_copy:
            sent.outputs = None  # the next combine gets another buffer, as other ranks may still read this one

        def count_waits():
            if combine_wait_recv_cost_stats is not None and sent.takes_part(self.rank):
                add_waits(combine_wait_recv_cost_stats, exchange.stats().combine_wait_ns, self.rank)

        if not return_recv_hook:
            count_waits()
            return out, overlap(), None
        pending = [operation]

        def hook():
            while pending:
                sent.owner.check("hook")
                pending.pop().recv()
                count_waits()

        return out, overlap(), hook

    def get_next_low_latency_combine_buffer(self, handle: Tuple) -> torch.Tensor:
        """Returns [L, R * M, H] of the window, in the type of the tokens and with the H in the handle. The caller fills
        it for a combine with zero_copy, and must not write to it after that combine. Until then it is the same tensor
        at every call. Local."""
        if self.device is not None:
            return self.device_low_latency.next_outputs(handle)
        sent = handles.find(handle, Sent).state
        arguments.check_handle(handle, sent)
        places = self._places(sent)
        if sent.outputs is None or sent.outputs.shape[2] != handle[3]:
            sent.outputs = sent.exchange.empty(places[0] * places[1], handle[3]).view(*places, handle[3])
        return sent.outputs

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank in the following low-latency calls (mask=True), or unmasks it (False).

        The other ranks neither send to a masked rank nor wait for it, and its experts add nothing. All ranks that are
        not masked must mask the same ranks between the same calls. A masked rank that is to be unmasked later makes all
        calls too, and receives nothing. A rank that the view of the group lacks is masked, and cannot be unmasked.
        """
        self._need_shrink()
        rank_to_mask = integer("rank_to_mask", rank_to_mask, most=self.group_size - 1)
        masks, lost = flag("mask", mask), self._lost()
        if rank_to_mask in lost and not masks:
            raise InvalidArgument(f"rank {rank_to_mask} is lost: view {self.exchanges.group.view[0]} of the group "
                                  "lacks it, so it stays masked")
        masked = self._masked | {rank_to_mask} if masks else self._masked - {rank_to_mask}
        if len(masked | lost) == self.group_size:
            raise InvalidArgument(f"masking rank {rank_to_mask} leaves no rank: the other {self.group_size - 1} are "
                                  "masked")
        self._masked = masked

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes to mask_status int32 [R]: 1 for masked ranks and those that the view lacks, 0 for the others."""
        self._need_shrink()
        status = arguments.cpu_array(mask_status, "mask_status", (torch.int32,), (self.group_size,))
        status[:] = np.isin(np.arange(self.group_size), list(self._masked | self._lost()))

    def low_latency_clean_mask_buffer(self) -> None:
        """Unmasks all ranks of the view, by the rules of low_latency_update_mask_buffer."""
        self._need_shrink()
        self._masked = frozenset()

    def _need_shrink(self):
        if not self.enable_shrink:
            raise InvalidArgument("ranks can be masked in a Buffer made with enable_shrink=True")
        if self.device is not None:
            raise InvalidArgument(f"this Buffer is on {self.device.device}: ranks with cuda tensors cannot be left out")

    def _lost(self):
        """The ranks that the view of the group lacks."""
        return frozenset(range(self.group_size)).difference(self.exchanges.group.view[1])

    def _active_ranks(self):
        """Returns the ranks that take part in a call. None: all ranks of the view; then a token for an expert of a rank
        that the view lacks is refused."""
        left_out = self._masked | self._lost() if self.enable_shrink else frozenset()
        return [rank for rank in range(self.group_size) if rank not in left_out] if left_out else None

    def _places(self, sent):
        """Returns (L, R * M) of a dispatch."""
        return sent.exchange.num_local_experts, self.group_size * sent.max_tokens

    def _exchange_of(self, x, topk_idx, max_tokens, num_experts, switches, active_ranks):
        """Returns (exchange for a dispatch, max_tokens, num_experts). The arguments decide which exchange it is. Where
        they are invalid, the call is refused in the exchange of the last dispatch: the other ranks are most likely in
        it, since all ranks leave it before they use another one."""
        last = self.exchanges.current
        try:
            switches.check()
            max_tokens, num_experts = arguments.check_shapes(x, topk_idx, max_tokens, num_experts)
        except Exception as error:
            self.exchanges.refuse_change(last, error, active_ranks)
        call = (max_tokens, x.shape[1], num_experts, topk_idx.shape[1], x.dtype, switches.wire)
        exchange = self.exchanges.by_call.get(call)
        if exchange is None or exchange is not last:
            self.exchanges.change(tuple(zip(arguments.CALL, call)), active_ranks)
            exchange = self.exchanges.by_call.get(call)
        if exchange is None:
            key = arguments.key(max_tokens, self.group_size, hidden=x.shape[1], num_experts=num_experts,
                                top_k=topk_idx.shape[1], dtype=x.dtype, wire=switches.wire)
            exchange = self.exchanges.by_call[call] = self.exchanges.hold(max_tokens, key)
        self.exchanges.current = exchange
        return exchange, max_tokens, num_experts

    def _combine_of(self, sent, rows, weights, out, use_logfmt):
        """Returns (the exchange for a combine, the keyword arguments of its combine)."""
        exchange, takes_part = sent.exchange, sent.takes_part(self.rank)
        if not takes_part:
            out.zero_()
        view = self.exchanges.group.view[0]
        if use_logfmt != (self._logfmt_view == view):
            usual = exchange if use_logfmt else self.exchanges.known(self._logfmt_key(sent, rows))[1] or exchange
            self.exchanges.leave(usual, [("use_logfmt", use_logfmt)], sent.active_ranks)
            self._logfmt_view = view if use_logfmt else 0
        if use_logfmt:  # logfmt10 needs another exchange, which computes the route again from the ids
            dispatched = dict(tokens=rows.new_empty(out.shape), topk_ids=sent.ids, active_ranks=sent.active_ranks)
            return (self.exchanges.hold(sent.max_tokens, self._logfmt_key(sent, rows)),
                    dict(expert_rows=rows, topk_weights=weights, out=out, dispatched=dispatched))
        if not takes_part:  # a masked rank: its route has no tokens
            return exchange, dict(expert_rows=rows[:0], handle=sent.route)
        return exchange, dict(expert_rows=rows, handle=sent.route, topk_weights=weights, out=out)

    def _logfmt_key(self, sent, rows):
        return arguments.key(sent.max_tokens, self.group_size, hidden=rows.shape[2], top_k=sent.ids.shape[1],
                             num_experts=sent.num_experts, dtype=rows.dtype, combine_wire="logfmt10")
