"""The low-latency calls of low_latency.py for cuda tensors, on padded exchanges of ferry.cuda.

After the exchange of a shape has been made, calls only issue work: they do not wait on the host, the ranks do not
compare their calls, and graphs can capture the calls. So an error that a kernel finds (an id that names no expert; a
rank that refused its call or was lost) is raised by the next call of that shape, which is not made then.

R ranks, E experts, L of them on this rank, T tokens of this rank, M the most tokens of a rank, C = R * M rows of each
expert, H hidden, K top-k. device_low_latency_rows.py has the state of a handle."""

import torch

from ferry.deep_ep import handles
from ferry.deep_ep import low_latency_arguments as arguments
from ferry.deep_ep.device_low_latency_rows import DEPTH, Arrival, DeviceSent, Padded
from ferry.deep_ep.layout import check_tensor
from ferry.deep_ep.rows import FLOATS
from ferry.errors import InvalidArgument, as_refusal


class DeviceLowLatency:
    """The low-latency calls of one Buffer on a Device."""

    def __init__(self, here, owner):
        self._here, self._owner = here, owner
        self._by_call = {}
        self._last = None  # Padded of the last dispatch

    def dispatch(self, given, switches, masked):
        """Does Buffer.low_latency_dispatch. Returns the same values except the event: (recv_x or (recv_x, scales),
        counts, handle, hook)."""
        padded, x, topk_idx = None, given.x, given.topk_idx
        try:
            switches.check()
            max_tokens, num_experts = arguments.check_shapes(x, topk_idx, given.num_max_dispatch_tokens_per_rank,
                                                             given.num_experts)
            call = (max_tokens, x.shape[1], num_experts, topk_idx.shape[1], x.dtype, switches.wire)
            padded = self._by_call.get(call)
            self._check_dispatch(given, switches, masked, padded)
        except Exception as error:
            self._refuse(padded, error)
        padded = self._last = padded or self._make(call)
        exchange = padded.exchange
        exchange.check()
        send = exchange.dispatch_send if switches.return_recv_hook else exchange.dispatch
        sent = DeviceSent(padded, tuple(topk_idx.shape), max_tokens, num_experts, self._owner)
        arrival = Arrival(sent, given.cumulative_local_expert_recv_stats)
        take = arrival.later if switches.return_recv_hook else arrival.now
        rows, scales, hook = take(send(x.detach(), topk_idx, wait_for_counts=False))
        self._here.keep_if_captured(sent)
        handle = (arrival.source_tokens, arrival.layout, max_tokens, x.shape[1], num_experts)
        return rows if scales is None else (rows, scales), arrival.counts, handle, hook

    def _check_dispatch(self, given, switches, masked, padded):
        device, num_tokens = self._here.device, len(given.x)
        arguments.check_dispatch(given.x, given.num_max_dispatch_tokens_per_rank, switches)
        check_tensor(given.x, "x", tuple(FLOATS), (None, None), device)
        arguments.read_ids(given.topk_idx, (num_tokens, given.topk_idx.shape[1]), device)
        counts = given.cumulative_local_expert_recv_stats
        if counts is not None:
            even, larger = divmod(given.num_experts, self._here.exchanges.group.size)
            num_local = even + (self._here.exchanges.group.rank < larger)
            check_tensor(counts, "cumulative_local_expert_recv_stats", (torch.int32,), (num_local,), device)
        _check_waits(given, "dispatch_wait_recv_cost_stats")
        if masked:
            raise InvalidArgument(f"ranks {sorted(masked)} are masked: ranks with cuda tensors cannot be left out")
        if padded is not None:
            padded.check_room()
        elif self._here.capturing():
            raise InvalidArgument("the first dispatch of a shape makes an exchange, which a graph cannot capture")

    def _make(self, call):
        """Makes the exchange of a shape, after all ranks have agreed on the shape. Collective."""
        exchanges = self._here.exchanges
        self._here.meet(None, 0, (("device", "cuda"), *zip(arguments.CALL, call)))
        max_tokens, hidden, num_experts, top_k, dtype, wire = call
        capacity = exchanges.group.size * max_tokens
        exchange = exchanges.hold(max_tokens, (
            ("layout", "padded"), ("expert_capacity", capacity), ("hidden", hidden), ("num_experts", num_experts),
            ("top_k", top_k), ("dtype", dtype), ("wire", wire), ("depth", DEPTH)))
        padded = self._by_call[call] = Padded(exchange, capacity, dtype)
        return padded

    def _refuse(self, padded, error):
        """Refuses this dispatch on all ranks and raises `error`: in the exchange of `padded`, or without one in that of
        the last dispatch, in which the other ranks most likely are."""
        padded = padded or self._last
        if padded is None:
            self._here.exchanges.refuse(error)
        error = as_refusal(error)
        padded.exchange.refuse_dispatch(str(error))
        raise error

    def combine(self, given):
        """Does Buffer.low_latency_combine. Returns the same values except the event: (combined_x, hook)."""
        sent, padded = None, self._last
        try:
            sent = self._find(given.handle)
            padded = sent.padded
            rows, weights, out = self._check_combine(given, sent)
        except Exception as error:
            error = as_refusal(error)
            if padded is not None:
                padded.exchange.refuse_combine(str(error))
            raise error
        exchange = padded.exchange
        exchange.check()
        if not given.zero_copy and padded.has(rows):  # a copy, as the caller may write to x
            rows = padded.outputs(rows.dtype, rows.shape[2]).copy_(rows)
        weights = weights.masked_fill(given.topk_idx < 0, 0)
        self._here.keep_if_captured(sent)
        sent.outputs = None
        if not given.return_recv_hook:
            return exchange.combine(rows, sent.route, weights, out=out), None
        padded.combining = exchange.combine_send(rows, sent.route, weights, out=out)
        return out, padded.hook(padded.combining.recv)

    def _check_combine(self, given, sent):
        """Checks the arguments of a combine, and returns (rows, weights, out)."""
        device, padded = self._here.device, sent.padded
        if arguments.check_combine(given.use_logfmt, given.zero_copy, given.async_finish, given.return_recv_hook):
            raise InvalidArgument("use_logfmt is not for cuda tensors: their rows travel as they are")
        _check_waits(given, "combine_wait_recv_cost_stats")
        arguments.check_handle(given.handle, sent)
        arguments.read_ids(given.topk_idx, sent.shape, device)
        weights = check_tensor(given.topk_weights, "topk_weights", (torch.float32,), sent.shape, device)
        if given.zero_copy:
            rows = arguments.outputs(sent)
            if not padded.is_next(rows):
                raise InvalidArgument("zero_copy: another combine was made since get_next_low_latency_combine_buffer, "
                                      "and its rows are in that memory: ask for it after the combine before")
        else:
            rows = check_tensor(given.x, "x", tuple(FLOATS), (*padded.places, None), device)
        padded.check_room()
        shape = (sent.shape[0], rows.shape[2])
        if given.out is None:
            return rows, weights, rows.new_empty(shape)
        return rows, weights, check_tensor(given.out, "out", tuple(FLOATS), shape, device)

    def next_outputs(self, handle):
        """Does Buffer.get_next_low_latency_combine_buffer."""
        sent = self._find(handle)
        arguments.check_handle(handle, sent)
        sent.outputs = sent.padded.outputs(sent.padded.dtype, handle[3])
        return sent.outputs

    def _find(self, handle):
        sent = handles.find(handle, DeviceSent).state
        if sent.padded.exchange.device != self._here.device:
            raise InvalidArgument(f"the handle is of a dispatch on {sent.padded.exchange.device}, this buffer is on "
                                  f"{self._here.device}")
        return sent


def _check_waits(given, name):
    if getattr(given, name) is not None:
        raise InvalidArgument(f"{name} is given: kernels do not measure how long they wait for each rank")
