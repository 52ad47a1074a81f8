"""EPHandle has the sources of the rows that ElasticBuffer's dispatch received. State is what ferry keeps for it.

Inference engines read the fields of an EPHandle, shorten its tensors and build new EPHandles from them. So the state is
found by the memory of its int32 tensors (handles.py): any one of them is enough.

T tokens of this rank, K top-k, R ranks, L local experts, M most tokens of a rank, N received tokens, P expanded rows.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch

from ferry.deep_ep import handles
from ferry.deep_ep.layout import cpu_array, owners
from ferry.deep_ep.scalars import rounded_up
from ferry.errors import InvalidArgument


@dataclasses.dataclass(eq=False, repr=False)
class EPHandle:
    """Returned by ElasticBuffer.dispatch, for combine and for dispatches along the same routes.

    do_expand, num_experts, expert_alignment, num_max_tokens_per_rank (M), num_sms: the arguments of the dispatch.
    Callers may set do_expand = False (see combine).
    topk_idx [T, K]: the argument of the dispatch, or a copy of it.
    num_recv_tokens: N, or M * R without CPU sync; num_expanded_tokens: rows of recv_x.
    num_recv_tokens_per_expert_list: rows of each local expert, rounded up to the alignment; [] without CPU sync.
    psum_num_recv_tokens_per_scaleup_rank int32 [R]: running sum over source ranks of received tokens.
    psum_num_recv_tokens_per_expert int32 [L]: running sum of the aligned counts; if expanded, the row after the last
    row of each expert.
    num_unaligned_recv_tokens_per_expert int32 [L]: rows of each local expert.
    recv_src_metadata int32 [N, K + 2], by source rank, then token. Its columns are: source rank * M + token; the
    highest top-k column whose expert is on this rank; and for each top-k column its row in the expanded layout, or -1.
    Without CPU sync it is [M * R, K + 2], and the rows after the first N are -1.
    dst_buffer_slot_idx int32 [T, K]: how many earlier tokens of this rank go to the rank of the expert; -1: not sent.
    token_metadata_at_forward, channel_linked_list: None, since no rank forwards rows.
    """

    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    num_sms: int
    topk_idx: torch.Tensor
    num_recv_tokens: int
    num_expanded_tokens: int
    num_recv_tokens_per_expert_list: list
    psum_num_recv_tokens_per_scaleup_rank: torch.Tensor
    psum_num_recv_tokens_per_expert: torch.Tensor
    num_unaligned_recv_tokens_per_expert: torch.Tensor
    recv_src_metadata: torch.Tensor
    dst_buffer_slot_idx: torch.Tensor
    token_metadata_at_forward: Any = None
    channel_linked_list: Any = None


class Call(NamedTuple):
    """The arguments of a dispatch; all but topk_idx are equal on all ranks."""

    num_experts: int
    max_tokens: int  # M
    expert_alignment: int
    do_expand: bool
    do_cpu_sync: bool
    topk_idx: Any  # [T, K]

    @property
    def top_k(self):
        return self.topk_idx.shape[1]

    def worst_tokens(self, num_ranks):
        """Returns N for the case that every rank sends all its tokens to this rank."""
        return self.max_tokens * num_ranks

    def worst_rows(self, num_ranks, num_local_experts):
        """Returns the rows of recv_x for the case that every rank sends all its tokens to this rank, and that no token
        lists an expert twice."""
        if not self.do_expand:
            return self.worst_tokens(num_ranks)
        rows = self.worst_tokens(num_ranks) * min(self.top_k, num_local_experts)
        return rounded_up(rows + (self.expert_alignment - 1) * num_local_experts, self.expert_alignment)


class State:
    """The state of an EPHandle: the routes of one dispatch, one for each exchange that has repeated it."""

    made_by = "ElasticBuffer.dispatch"

    def __init__(self, exchange, rows_format, call, num_rows, owner):
        self.owner = owner
        self.exchange = exchange
        self.routes = {}  # exchange: ferry.Handle
        self.format = rows_format
        self.call = call
        self.num_rows = num_rows  # rows of recv_x
        self.is_local = None  # not expanded: bool [N, K], whether the expert of a column is on this rank
        self.version = _version(call.topk_idx)

    @property
    def route(self):
        return self.routes[self.exchange]


def find_state(handle):
    """Returns the State of an EPHandle. Raises ferry.InvalidArgument when no tensor of the handle belongs to one, or
    when topk_idx has been written to since the dispatch."""
    names = ("recv_src_metadata", "psum_num_recv_tokens_per_expert", "psum_num_recv_tokens_per_scaleup_rank",
             "num_unaligned_recv_tokens_per_expert", "dst_buffer_slot_idx")
    if not hasattr(handle, names[0]):
        raise InvalidArgument(f"handle is {type(handle).__name__}, need the EPHandle of a dispatch")
    state = handles.find([getattr(handle, name, None) for name in names], State).state
    if _version(state.call.topk_idx) != state.version:
        raise InvalidArgument("topk_idx was written to since the dispatch whose handle has it: rows would go elsewhere")
    return state


def _version(tensor):
    """Returns torch's count of writes to the tensor; None for an inference tensor, which has no count."""
    return None if tensor.is_inference() else tensor._version


def summed_tokens(handle, state):
    """Returns recv_src_metadata if the dispatch was expanded and the caller has set handle.do_expand = False, which
    says that the caller has summed the rows of each token. Otherwise returns None."""
    if handle.do_expand or not state.call.do_expand:
        return None
    metadata = handle.recv_src_metadata
    cpu_array(metadata, "recv_src_metadata", (torch.int32,), (None, state.call.top_k + 2))
    return metadata


def expanded(x, topk_weights, metadata, num_rows):
    """Turns the rows x of tokens [N, H'], with topk_weights [N, K] or None, into num_rows expanded rows. The row of a
    token goes to the row of its highest top-k column on this rank; its other rows are zeros, which add nothing."""
    came = metadata[metadata[:, 0] >= 0].long()
    column, places = came[:, 1:2], came[:, 2:]
    rows = x.new_zeros(num_rows, x.shape[1])
    rows[places.gather(1, column).squeeze(1)] = x[:len(came)]
    if topk_weights is None:
        return rows, None
    weights, is_local = topk_weights.new_zeros(num_rows), places >= 0
    weights[places[is_local]] = topk_weights[:len(came)][is_local]
    return rows, weights


def make_handle(state, received, group, num_sms):
    """Makes the EPHandle of the dispatch that received the rows in `received`."""
    call, route = state.call, received.handle
    sources = _sources(received)
    counts, aligned = route.tokens_per_expert.numpy(), route.aligned_tokens_per_expert.numpy()
    tokens = (_expanded_tokens if call.do_expand else _tokens)(sources, call.max_tokens, group.size)
    num_recv_tokens = len(tokens.numbers) if call.do_cpu_sync else call.worst_tokens(group.size)
    arrays, tensors = handles.allocate(
        state, *((np.int32, shape) for shape in
                 ((group.size,), counts.shape, counts.shape, (num_recv_tokens, call.top_k + 2), call.topk_idx.shape)))
    per_rank, per_expert, unaligned, metadata, slots = arrays
    per_rank[...] = np.searchsorted(tokens.numbers, np.arange(1, group.size + 1) * call.max_tokens)
    per_expert[...] = route.expert_offsets.numpy()[:-1] + counts if call.do_expand else np.cumsum(aligned)
    unaligned[...] = counts
    _fill_metadata(metadata, sources, tokens, state)
    _fill_slots(slots, call, group.size)
    return EPHandle(call.do_expand, call.num_experts, call.expert_alignment, call.max_tokens, num_sms, call.topk_idx,
                    num_recv_tokens, state.num_rows, aligned.tolist() if call.do_cpu_sync else [], *tensors)


def _sources(received):
    """Returns the sources of the rows, int32 [N, 3], by their ranks. Those of the rows of a view that lacks ranks are
    numbered by their place in it."""
    sources, ranks = received.sources.numpy(), received.handle.active_ranks
    if ranks is None:
        return sources
    return np.column_stack([np.array([*ranks, -1], np.int32)[sources[:, 0]], sources[:, 1:]])  # -1: no row


class _Tokens(NamedTuple):
    """Received tokens. `numbers` has source rank * M + token of each token, ascending. `rows` has the used expanded
    rows, and `places` the index in `numbers` of the token of each of these rows."""

    numbers: Any
    rows: Any
    places: Any


def _tokens(sources, max_tokens, _):
    return _Tokens(sources[:, 0] * np.int32(max_tokens) + sources[:, 1], None, None)


def _expanded_tokens(sources, max_tokens, num_ranks):
    rows = np.flatnonzero(sources[:, 0] >= 0)
    numbers = sources[rows, 0] * np.int32(max_tokens) + sources[rows, 1]
    place = np.zeros(num_ranks * max_tokens, np.int32)
    place[numbers] = 1
    distinct = np.flatnonzero(place)
    place[distinct] = np.arange(len(distinct))
    return _Tokens(distinct, rows, place[numbers])


def _fill_metadata(metadata, sources, tokens, state):
    num_tokens = len(tokens.numbers)
    metadata[...] = -1
    metadata[:num_tokens, 0] = tokens.numbers
    is_local = state.is_local.numpy() if state.is_local is not None else None
    if is_local is None:
        metadata[tokens.places, 2 + sources[tokens.rows, 2]] = tokens.rows
        is_local = metadata[:num_tokens, 2:] >= 0
    metadata[:num_tokens, 1] = is_local.shape[1] - 1 - is_local[:, ::-1].argmax(axis=1)


def _fill_slots(slots, call, num_ranks):
    ids = call.topk_idx.numpy()
    owner = owners(call.num_experts, num_ranks)[ids + 1]  # num_ranks for an entry that is not sent
    goes_to = owner[:, :, None] == np.arange(num_ranks)
    before = np.cumsum(goes_to.any(axis=1), axis=0) - 1
    slots[...] = -1
    token, column, rank = np.nonzero(goes_to)
    slots[token, column] = before[token, rank]
