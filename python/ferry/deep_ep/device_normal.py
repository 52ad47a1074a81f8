"""The normal kernels of normal.py for cuda tensors, on exchanges of ferry.cuda.

Every call begins with an all-gather on the host, in which the ranks compare their calls. The work is issued only if all
calls are equal, so when one rank refuses a call, all ranks refuse it before any kernel waits. A dispatch without a
handle also gathers its counts of rows. It waits for the device twice: before the all-gather, and for the counts of
received rows. Received rows are copied from the window, since callers keep them. Dispatches with a handle and combines
can be captured in a graph; while a graph is captured, they skip the all-gather and do not wait.

Shapes use T tokens of this rank, H hidden, K top-k, E experts, R ranks, N rows received."""

import numpy as np
import torch

from ferry.deep_ep import channels, device_layout, handles, rows
from ferry.deep_ep.layout import check_tensor, describe
from ferry.deep_ep.normal import (Layout, Routes, check_cached, check_config, check_layout, check_worst, checked,
                                  combined, expert_list)
from ferry.deep_ep.rows import FLOATS
from ferry.deep_ep.scalars import check_flags, integer
from ferry.errors import InvalidArgument, make_error

_IDS = (torch.int64, torch.int32)
_CALLED = ("device", "cuda")


class DeviceRows:
    """The argument x of a dispatch, on the device: rows [T, H], or (rows, scales) with scales [T, n].

    `tokens` are the rows that the exchange sends. Rows of bfloat16, float16 or float32 without scales are sent as they
    are, and all others as bytes, with the scales of a row at its end. `format` has the keyword arguments of the
    exchange, as a tuple of (name, value). The constructor raises ferry.InvalidArgument if x has another form.
    """

    def __init__(self, x, device):
        self.x, self.scales = rows.read(x, device)
        self.num_tokens, num_channels = self.x.shape
        dtype = FLOATS.get(self.x.dtype) if self.scales is None else None
        self.tokens = self.x if dtype else _as_bytes(self.x)
        if self.scales is not None:
            self.tokens = torch.cat([self.tokens, _as_bytes(self.scales.contiguous())], 1)
        output_bytes = num_channels * max(self.x.element_size(), 2)  # for rows of fp8, outputs of experts are bfloat16
        self.format = (("dtype", dtype or "uint8"), ("hidden", self.tokens.shape[1]),
                       ("max_output_row_bytes", output_bytes))

    def received(self, arrived, num_rows):
        """Returns num_rows rows in the types of x, which begin with copies of the received rows `arrived` [N, any];
        with scales, (rows, scales). Rows after those that were received are undefined."""
        if self.scales is None:
            return _copied(arrived, num_rows).view(self.x.dtype)
        row_bytes = self.x.shape[1] * self.x.element_size()
        return (_copied(arrived[:, :row_bytes], num_rows).view(self.x.dtype),
                _copied(arrived[:, row_bytes:], num_rows).view(self.scales.dtype))


def _as_bytes(tensor):
    return tensor.view(torch.uint8)


def _copied(arrived, num_rows, fill=None):
    """Returns new memory of num_rows rows that begins with a copy of `arrived` [N, ...]. The other rows have the value
    `fill`, or are undefined without one."""
    shape = (num_rows, *arrived.shape[1:])
    copy = arrived.new_empty(shape) if fill is None else arrived.new_full(shape, fill)
    copy[: len(arrived)] = arrived
    return copy


class DeviceState(Routes):
    """The state that ferry keeps for a handle."""

    made_by = "Buffer.dispatch of cuda tensors"


class DeviceRouting:
    """The routing of a dispatch. The constructor waits for the device, and raises InvalidArgument unless topk_idx,
    is_token_in_rank and the counts agree."""

    def __init__(self, layout, num_tokens, num_ranks, device):
        _check_types(layout, num_tokens, num_ranks, device)
        self.mask = layout.is_token_in_rank
        self.num_experts, per_expert = len(layout.num_tokens_per_expert), layout.num_tokens_per_expert
        right = (self.mask.sum(0) == layout.num_tokens_per_rank).all()
        if layout.topk_idx is None:
            self.ids, self.weights = device_layout.ids_of(self.mask), None
        else:
            self.ids, self.weights = layout.topk_idx, layout.topk_weights.detach()
            found, _, entries = device_layout.token_ranks(self.ids, self.num_experts, num_ranks)
            right = right & (found == self.mask).all() & (entries.sum() == (self.ids != -1).sum())
        known = torch.cat([right.view(1).int(), layout.num_tokens_per_rank, per_expert]).cpu()
        if not known[0]:
            _refuse_layout(layout, num_tokens, num_ranks)
        self.counts, self.per_expert = known[1 : num_ranks + 1].numpy(), known[num_ranks + 1 :].numpy()


def _check_types(layout, num_tokens, num_ranks, device):
    check_tensor(layout.is_token_in_rank, "is_token_in_rank", (torch.bool,), (num_tokens, num_ranks), device)
    check_tensor(layout.num_tokens_per_rank, "num_tokens_per_rank", (torch.int32,), (num_ranks,), device)
    check_tensor(layout.num_tokens_per_expert, "num_tokens_per_expert", (torch.int32,), (None,), device)
    integer("num_experts", len(layout.num_tokens_per_expert), 1)
    if (layout.topk_idx is None) != (layout.topk_weights is None):
        raise InvalidArgument("topk_idx and topk_weights are given together or not at all")
    if layout.topk_idx is not None:
        check_tensor(layout.topk_idx, "topk_idx", _IDS, (num_tokens, None), device)
        check_tensor(layout.topk_weights, "topk_weights", (torch.float32,), tuple(layout.topk_idx.shape), device)


def _refuse_layout(layout, num_tokens, num_ranks):
    """Checks copies of the layout on the CPU, and raises InvalidArgument with the difference."""
    check_layout(Layout(*(None if part is None else part.cpu() for part in layout)), num_tokens, num_ranks)
    raise InvalidArgument("the layout changed while it was looked at: other streams write to its tensors")


def dispatch_layout(topk_idx, num_experts, num_ranks):
    """Returns the values of Buffer.get_dispatch_layout in one node, except the event."""
    check_tensor(topk_idx, "topk_idx", _IDS, (None, None), topk_idx.device)
    num_experts = integer("num_experts", num_experts, 1)
    in_rank, per_rank, per_expert = device_layout.token_ranks(topk_idx, num_experts, num_ranks)
    return per_rank, None, per_expert, in_rank


def dispatch(here, x, layout, form):
    """Does Buffer.dispatch without a handle. Returns the same values, except the event. `here` is a Device."""
    exchanges, group = here.exchanges, here.exchanges.group
    try:
        _check_node(form)
        form = checked(form)
        given = DeviceRows(x, here.device)
        if here.capturing():
            raise InvalidArgument("a dispatch without a handle waits for the device: a graph cannot capture it")
        routing = DeviceRouting(layout, given.num_tokens, group.size, here.device)
        check_worst(form, routing.weights is not None)
    except Exception as error:
        exchanges.refuse(error)
    key = _key(given.format, routing.num_experts if routing.weights is not None else group.size, routing.ids.shape[1])
    call = (_CALLED, *key, ("num_tokens_per_expert", len(routing.per_expert)), ("topk", routing.weights is not None))
    known = np.append(routing.counts, np.int32(form.num_worst_tokens)).tobytes()
    said = here.meet(exchanges.known(key)[1], given.num_tokens, call, known)
    known = np.frombuffer(b"".join(theirs for _, theirs in said), np.int32).reshape(group.size, group.size + 1)
    matrix, worst = known[:, :-1], known[:, -1]  # [source, destination] tokens; num_worst_tokens of each rank
    _check_worst(worst, matrix.sum(axis=0), group.rank)
    exchange = exchanges.hold(max(max(tokens for tokens, _ in said), 1), key)
    received = exchange.dispatch(given.tokens, routing.ids, routing.weights)
    num_rows = form.num_worst_tokens or received.num_rows
    state = DeviceState(exchange, received.handle, given.format, routing.ids.shape[1], num_rows, form.owner)
    handle = _make_handle(here.device, state, routing.mask, received, matrix, [tokens for tokens, _ in said], form)
    recv_topk_idx = recv_topk_weights = counts = None
    if routing.weights is not None:
        recv_topk_idx = _copied(received.topk_ids, num_rows, -1).to(routing.ids.dtype)
        recv_topk_weights = _copied(received.weights, num_rows, 0)
        counts = received.handle.host_tokens_per_expert
    return (given.received(received.rows, num_rows), recv_topk_idx, recv_topk_weights,
            expert_list(group, counts, routing.per_expert, form), handle)


def _key(rows_format, num_experts, top_k):
    """Returns the settings for Exchanges.hold. Output rows are large enough for the top-k weights of a row."""
    settings = dict(rows_format)
    settings["max_output_row_bytes"] = max(settings["max_output_row_bytes"], 4 * top_k)
    return (*settings.items(), ("layout", "rank_major"), ("num_experts", num_experts), ("top_k", top_k))


def _check_node(form):
    if form.make_handle is not channels.intranode:
        raise InvalidArgument(f"this buffer's ranks are on {len(form.node_starts)} nodes and the call is dispatch or "
                              "internode_dispatch: cuda tensors are for dispatch among ranks of one node, of 8 at most")


def _check_worst(worst, num_rows, rank):
    """Raises on all ranks when one rank would receive more rows than its num_worst_tokens. All ranks have the counts,
    so no message is needed."""
    short = np.flatnonzero((worst > 0) & (worst < num_rows))
    if len(short) == 0:
        return
    first = int(short[0])
    text = f"num_worst_tokens is {worst[first]}, {num_rows[first]} tokens come to rank {first}"
    if rank in short:
        raise InvalidArgument(f"num_worst_tokens is {worst[rank]}, {num_rows[rank]} tokens come to this rank")
    raise make_error("peer_rejected", f"rank {first} refused its call: {text}", first, True)


def _make_handle(device, state, mask, received, matrix, tokens, form):
    """Makes the handle, a tuple of 6 like that of channels.intranode."""
    ranks, num_channels = mask.shape[1], form.config.num_channels
    tensors = handles.allocate_on(device, state, (np.bool_, tuple(mask.shape)), (np.int32, (ranks, ranks)),
                                  (np.int32, (ranks, num_channels)), (np.int32, (ranks, num_channels)),
                                  (np.int32, (state.num_rows,)), (np.int32, tuple(mask.shape)))
    kept_mask, rank_prefix, sent_prefix, received_prefix, row_tokens, head = tensors
    kept_mask.copy_(mask)
    device_layout.fill_sent(mask, sent_prefix, head)
    rank_prefix.copy_(torch.from_numpy(matrix.cumsum(axis=0, dtype=np.int32)))
    each = torch.tensor([device_layout.tokens_per_channel(count, num_channels) for count in tokens], device=device)
    device_layout.fill_received(received.sources, each, received_prefix, row_tokens)
    return rank_prefix, sent_prefix, received_prefix, row_tokens, kept_mask, head


def _find(handle, device):
    """Returns the handles.DeviceMemory of a handle. Raises InvalidArgument for a handle of another device."""
    memory = handles.find(handle, DeviceState)
    made_on = memory.state.exchange.device
    if made_on != device:
        raise InvalidArgument(f"the handle is of a dispatch on {made_on}, this buffer is on {device}")
    return memory


def dispatch_cached(here, x, handle, layout, form):
    """Does Buffer.dispatch with a handle: sends rows along the routes of the handle's dispatch, and returns the rows.

    Rows may have another type or width than in the handle's dispatch. The first time, such rows are routed by the mask
    in the handle.
    """
    exchanges, num_ranks = here.exchanges, here.exchanges.group.size
    try:
        memory = _find(handle, here.device)
        checked(form)
        given, state = DeviceRows(x, here.device), memory.state
        check_cached(layout, given, state)
        num_tokens = given.num_tokens
        key = _key(given.format, num_ranks, num_ranks)
        room, exchange = (num_tokens, state.exchange) if given.format == state.format else exchanges.known(key)
        if here.capturing() and exchange not in state.routes:
            raise InvalidArgument("rows of another type than the handle's dispatch had go along new routes the first "
                                  "time, which a graph cannot capture")
    except Exception as error:
        exchanges.refuse(error)
    if not here.capturing():
        said = here.meet(exchange, num_tokens, (_CALLED, *given.format, ("handle", state.format)))
        if given.format != state.format:
            most = max(max(tokens for tokens, _ in said), 1)
            exchange = exchanges.hold(most, key)
    if exchange in state.routes:
        received = exchange.dispatch(given.tokens, handle=state.routes[exchange])
    else:
        mask = memory.first(torch.bool, (num_tokens, num_ranks))
        received = exchange.dispatch(given.tokens, device_layout.ids_of(mask))
        state.routes[exchange] = received.handle
    here.keep_if_captured(state)
    return given.received(received.rows[: state.route.num_rows], state.num_rows)


def combine(here, x, handle, topk_weights, bias, config, switches):
    """Does Buffer.combine. Returns (combined_x, combined_topk_weights or None)."""
    exchanges = here.exchanges
    try:
        state = _find(handle, here.device).state
        check_config(config)
        check_flags(**switches)
        x = _combined_rows(x, state, here.device)
        weights = _combined_weights(topk_weights, state, here.device)
        bias = _biases(bias, (state.route.num_tokens, x.shape[1]), x.dtype, here.device)
    except Exception as error:
        exchanges.refuse(error)
    if not here.capturing():
        width = None if weights is None else weights.shape[1]
        here.meet(state.exchange, 0, (_CALLED, ("combine of", state.format), ("dtype", x.dtype), ("hidden", x.shape[1]),
                                ("topk_weights", width)))
    here.keep_if_captured(state)
    return combined(state, x, weights, bias)


def _combined_rows(x, state, device):
    """Checks x, and returns it without the unused rows of num_worst_tokens."""
    x = check_tensor(x, "x", tuple(FLOATS), (state.num_rows, None), device)
    most = state.exchange.config["max_output_row_bytes"]
    if x.shape[1] * x.element_size() > most:
        raise InvalidArgument(f"x is {describe(x)}: rows of more than {most} bytes, of which there is room for where "
                              f"tokens were {dict(state.format)}")
    return x[: state.route.num_rows]


def _combined_weights(topk_weights, state, device):
    if topk_weights is None:
        return None
    weights = check_tensor(topk_weights, "topk_weights", (torch.float32,), (state.num_rows, None), device)
    most = state.exchange.config["max_output_row_bytes"]
    if weights.shape[1] * 4 > most:
        raise InvalidArgument(f"topk_weights is {describe(weights)}: rows of more than {most} bytes")
    return weights[: state.route.num_rows]


def _biases(bias, shape, dtype, device):
    given = bias if isinstance(bias, (tuple, list)) else (bias,)
    if len(given) > 2:
        raise InvalidArgument(f"bias has {len(given)} tensors, need at most 2")
    return [check_tensor(each, "bias", (dtype,), shape, device) for each in given if each is not None] or None
