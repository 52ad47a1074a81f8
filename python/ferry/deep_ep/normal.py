"""The normal kernels: Buffer.dispatch and Buffer.combine on rank-major exchanges.

A row is sent once to each rank that needs it; received rows are ordered by source rank, then token. Rows of bfloat16,
float16 and float32 keep their type, and rows of any other type (such as fp8 with scales) travel as bytes. When one rank
refuses a call, all ranks leave the operation together: the other ranks raise ferry.PeerRejected.

Shapes use T tokens of this rank, H hidden, K top-k, E experts, R ranks, N rows received."""

from typing import Any, Callable, NamedTuple

import numpy as np
import torch

from ferry import _core
from ferry.deep_ep import channels, handles
from ferry.deep_ep.config import Config
from ferry.deep_ep.layout import cpu_array, describe, read_topk_idx, token_ranks
from ferry.deep_ep.rows import FLOATS, Rows, detached, resized
from ferry.deep_ep.scalars import MOST_TOPK, check_flags, integer, rounded_up
from ferry.errors import InvalidArgument

_INTS = (torch.int32,)
_LAYOUT = ("layout", "rank_major")


class Layout(NamedTuple):
    """The arguments of a dispatch that say where tokens go."""

    num_tokens_per_rank: Any  # int32 [R]
    is_token_in_rank: Any  # bool [T, R]
    num_tokens_per_expert: Any  # int32 [E]
    topk_idx: Any = None  # [T, K], -1: unused
    topk_weights: Any = None  # float32 [T, K]


class Form(NamedTuple):
    """The arguments of a dispatch that decide the form of its results."""

    expert_alignment: int
    num_worst_tokens: int
    config: Any  # Config
    node_starts: tuple  # first rank of each node
    make_handle: Callable  # channels.intranode or internode
    owner: Any  # handles.Owner
    switches: dict  # have no effect, but are checked


class Routes:
    """The routes of one dispatch, one for each exchange that has repeated it."""

    def __init__(self, exchange, route, rows_format, top_k, num_rows, owner):
        self.exchange = exchange
        self.routes = {exchange: route}  # exchange -> ferry.Handle
        self.format = rows_format
        self.top_k = top_k
        self.num_rows = num_rows  # returned rows, with the unused ones of num_worst_tokens
        self.owner = owner

    @property
    def route(self):
        return self.routes[self.exchange]


class State(Routes):
    """The state that ferry keeps for a handle."""

    made_by = "Buffer.dispatch"


class _Routing:
    """The routing of a dispatch. The constructor raises InvalidArgument unless topk_idx, is_token_in_rank and the
    counts agree."""

    def __init__(self, layout, num_tokens, num_ranks):
        self.mask, self.counts = layout.is_token_in_rank, layout.num_tokens_per_rank
        self.per_expert = layout.num_tokens_per_expert
        if layout.topk_weights is None or not _core.is_layout(layout.topk_idx, self.mask, self.counts, self.per_expert,
                                                              num_tokens, num_ranks):
            check_layout(layout, num_tokens, num_ranks)  # raises, with the reason
        if layout.topk_idx is None:
            self.ids, self.weights = ids_of(self.mask.numpy()), None
            self.num_experts = num_ranks
            self.terms = (("num_tokens_per_expert", len(self.per_expert)),)
            return
        self.ids, self.weights = layout.topk_idx, layout.topk_weights.detach()  # the exchange checks both
        self.num_experts = self.per_expert.shape[0]
        self.terms = ()


def check_layout(layout, num_tokens, num_ranks):
    mask = cpu_array(layout.is_token_in_rank, "is_token_in_rank", (torch.bool,), (num_tokens, num_ranks))
    counts = mask.sum(axis=0, dtype=np.int32)
    given = cpu_array(layout.num_tokens_per_rank, "num_tokens_per_rank", _INTS, (num_ranks,))
    if given.tobytes() != counts.tobytes():
        raise InvalidArgument(f"num_tokens_per_rank is {given.tolist()}, is_token_in_rank has {counts.tolist()}")
    per_expert = cpu_array(layout.num_tokens_per_expert, "num_tokens_per_expert", _INTS, (None,))
    if (layout.topk_idx is None) != (layout.topk_weights is None):
        raise InvalidArgument("topk_idx and topk_weights are given together or not at all")
    if layout.topk_idx is None:
        return
    if len(read_topk_idx(layout.topk_idx)) != num_tokens:
        raise InvalidArgument(f"topk_idx is {describe(layout.topk_idx)}, x has {num_tokens} tokens")
    in_rank, _, _, known = token_ranks(layout.topk_idx, len(per_expert), num_ranks)
    if not known:
        read_topk_idx(layout.topk_idx, len(per_expert))  # says which
    if in_rank.numpy().tobytes() != mask.tobytes():
        raise InvalidArgument("is_token_in_rank is not what topk_idx says: get_dispatch_layout makes it")


def ids_of(mask):
    """Returns int32 top-k ids [T, K] in which expert r is rank r: the ranks that the mask, bool [T, R], names for each
    token. K is R, or 32 where R is larger."""
    num_ranks = mask.shape[1]
    ids = np.where(mask, np.arange(num_ranks, dtype=np.int32), np.int32(-1))
    if num_ranks > MOST_TOPK:
        if mask.sum(axis=1).max(initial=0) > MOST_TOPK:
            raise InvalidArgument(f"a token goes to more than {MOST_TOPK} ranks")
        ids = np.ascontiguousarray(-np.sort(-ids, axis=1)[:, :MOST_TOPK])
    return torch.from_numpy(ids)


def dispatch(exchanges, x, layout, form):
    """Does Buffer.dispatch without a handle. Returns the same values, except the event."""
    group = exchanges.group
    try:
        form = checked(form)
        rows = Rows(x)
        routing = _Routing(layout, rows.num_tokens, group.size)
        check_worst(form, routing.weights is not None)
    except Exception as error:
        exchanges.refuse(error)
    key = (*rows.format, _LAYOUT, ("num_experts", routing.num_experts), ("top_k", routing.ids.shape[1]))
    arguments = dict(tokens=rows.tokens, topk_ids=routing.ids, topk_weights=routing.weights, token_scales=rows.scales)
    room, exchange = exchanges.known(key)
    fits = rows.num_tokens <= room and not 0 < form.num_worst_tokens < group.size * room
    received = exchanges.dispatch_again(exchange if fits else None, lambda known: known.dispatch(**arguments),
                                        routing.terms)
    if received is None:
        said = exchanges.agree(rows.num_tokens, key + routing.terms, routing.counts.numpy().tobytes())
        exchange = exchanges.meeting = exchanges.hold(max(tokens for tokens, _ in said), key)
        counts = np.frombuffer(b"".join(theirs for _, theirs in said), np.int32).reshape(group.size, -1)
        _check_worst(form.num_worst_tokens, int(counts[:, group.rank].sum()), exchange)
        received = exchange.dispatch(**arguments)
    exchanges.last = exchange
    num_rows = form.num_worst_tokens or received.num_rows
    facts = channels.Facts(group.rank, routing.mask.numpy(), received, num_rows, form.config.num_channels,
                           form.node_starts)
    state = State(exchange, received.handle, rows.format, key[-1][1], num_rows, form.owner)
    handle = form.make_handle(state, facts)
    recv_topk_idx = recv_topk_weights = counts = None
    if routing.weights is not None:
        recv_topk_idx = resized(received.topk_ids.to(routing.ids.dtype, copy=True), num_rows, -1)
        recv_topk_weights = resized(received.weights.clone(), num_rows, 0)  # a view would pin the buffer of the rows
        counts = received.handle.tokens_per_expert.tolist()
    return (rows.received(received, num_rows), recv_topk_idx, recv_topk_weights,
            expert_list(group, counts, routing.per_expert.numpy(), form), handle)


def checked(form):
    """Checks the form, and returns it with its numbers as Python ints."""
    check_config(form.config)
    check_flags(**form.switches)
    return form._replace(expert_alignment=integer("expert_alignment", form.expert_alignment, 1),
                         num_worst_tokens=integer("num_worst_tokens", form.num_worst_tokens))


def check_config(config):
    if config is not None and not isinstance(config, Config):
        raise InvalidArgument(f"config is {type(config).__name__}, need a Config or None")


def check_worst(form, has_weights):
    if form.num_worst_tokens and not has_weights:
        raise InvalidArgument("num_worst_tokens needs topk_idx and topk_weights")


def _check_worst(num_worst_tokens, num_rows, exchange):
    """Refuses the dispatch on all ranks when this rank would receive more rows than its num_worst_tokens."""
    if 0 < num_worst_tokens < num_rows:
        error = InvalidArgument(f"num_worst_tokens is {num_worst_tokens}, {num_rows} tokens come to this rank")
        exchange.refuse_dispatch(str(error))
        raise error


def expert_list(group, counts, per_expert, form):
    """Returns num_recv_tokens_per_expert_list of Buffer.dispatch. `counts` are the rows of each local expert, or None
    for a dispatch without top-k ids: then per_expert, int32 [E], is added over all ranks, and the call is collective.
    """
    if form.num_worst_tokens:
        return []
    if counts is None:
        said = group.all_gather(per_expert.tobytes())
        sums = np.frombuffer(b"".join(said), np.int32).reshape(len(group.view[1]), -1).sum(axis=0)
        counts = np.array_split(sums, group.size)[group.rank].tolist()
    return [rounded_up(count, form.expert_alignment) for count in counts]


def dispatch_cached(exchanges, x, handle, layout, form):
    """Does Buffer.dispatch with a handle: sends rows along the routes of the handle's dispatch, and returns the rows.

    Rows may have another type or width than in the handle's dispatch. The first time, such rows are routed by the mask
    in the handle.
    """
    try:
        memory = handles.find(handle, State)
        checked(form)
        rows, state = Rows(x), memory.state
        check_cached(layout, rows, state)
    except Exception as error:
        exchanges.refuse(error)
    num_ranks = exchanges.group.size
    key = (*rows.format, _LAYOUT, ("num_experts", num_ranks), ("top_k", min(num_ranks, MOST_TOPK)))
    room, exchange = (rows.num_tokens, state.exchange) if rows.format == state.format else exchanges.known(key)
    arguments = dict(tokens=rows.tokens, token_scales=rows.scales)

    terms = (("handle", True),)

    def route():  # the arguments that route this dispatch in `exchange`
        if exchange in state.routes:
            return dict(handle=state.routes[exchange])
        return dict(topk_ids=ids_of(channels.mask_of(memory, rows.num_tokens, num_ranks)))

    received = exchanges.dispatch_again(exchange if rows.num_tokens <= room else None,
                                        lambda known: known.dispatch(**arguments, **route()),
                                        None if exchange in state.routes else terms)
    if received is None:
        said = exchanges.agree(rows.num_tokens, rows.format + terms)
        if rows.format != state.format:
            exchange = exchanges.hold(max(tokens for tokens, _ in said), key)
        exchanges.meeting = exchange
        received = exchange.dispatch(**arguments, **route())
    state.routes[exchange] = received.handle
    return rows.received(received, state.num_rows)


def check_cached(layout, rows, state):
    if layout.topk_idx is not None or layout.topk_weights is not None:
        raise InvalidArgument("a dispatch with a handle brings no topk_idx and topk_weights: its layout is known")
    if rows.num_tokens != state.route.num_tokens:
        raise InvalidArgument(f"x has {rows.num_tokens} tokens, the handle's dispatch had {state.route.num_tokens}")


def combine(exchanges, x, handle, topk_weights, bias, config, switches):
    """Does Buffer.combine. Returns (combined_x, combined_topk_weights or None)."""
    state = None
    try:
        state = handles.find(handle, State).state
        check_config(config)
        check_flags(**switches)
        x, weights = _combined_rows(x, topk_weights, state)
        bias = detached(bias)
    except Exception as error:
        exchanges.refuse_combine(error, state and state.exchange)
    return combined(state, x, weights, bias, in_place=False)


def combined(state, x, weights, bias, **options):
    """Makes the combine of checked arguments. Returns (combined_x, combined_topk_weights or None)."""
    exchange, route = state.exchange, state.route
    if weights is None:
        return exchange.combine(x, route, bias=bias, **options), None
    if weights.shape[1] != state.top_k:  # another width than at the dispatch: they are sent as rows of a second combine
        return exchange.combine(x, route, bias=bias, **options), exchange.combine(weights, route, **options)
    returned = x.new_empty((route.num_tokens, state.top_k), dtype=torch.float32)
    return exchange.combine(x, route, bias=bias, row_weights=weights, out_topk_weights=returned, **options), returned


def _combined_rows(x, topk_weights, state):
    """Checks x and topk_weights, and returns both without the unused rows of num_worst_tokens."""
    if (not isinstance(x, torch.Tensor) or x.dtype not in FLOATS or x.dim() != 2 or x.shape[0] != state.num_rows
            or not x.is_cpu):
        raise InvalidArgument(f"x is {describe(x)}, need bfloat16, float16 or float32 [{state.num_rows}, hidden] on "
                              "the CPU")
    num_rows = state.route.num_rows
    if topk_weights is None:
        return resized(detached(x), num_rows), None
    cpu_array(topk_weights, "topk_weights", (torch.float32,), (state.num_rows, None))
    return resized(detached(x), num_rows), resized(detached(topk_weights), num_rows)
