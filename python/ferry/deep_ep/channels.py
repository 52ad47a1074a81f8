"""Channel matrices are the contents of the tensors of a handle of the normal kernels.

The tokens of a rank are split into C channels, contiguous ranges of ceil(T / C) tokens; the last ones are shorter or
empty. ferry moves rows without channels, and fills the matrices with the numbers that DeepEP documents. T tokens of
this rank, R ranks, N rows received (or the worst case that the caller gave).
"""

from typing import NamedTuple

import numpy as np
import torch

from ferry import Received, _core
from ferry.deep_ep import handles
from ferry.deep_ep.layout import nodes_of


class Facts(NamedTuple):
    """The counts of one dispatch, by channel."""

    rank: int
    mask: np.ndarray  # bool [T, R]: this rank's tokens
    received: Received
    num_rows: int  # N
    num_channels: int  # C
    node_starts: tuple  # first rank of each node


def intranode(state, facts):
    """Makes the handle of Buffer.dispatch inside a node, a tuple of 6."""
    ranks, num_channels = facts.mask.shape[1], facts.num_channels
    shapes = [(ranks, ranks), (ranks, num_channels), (ranks, num_channels), (facts.num_rows,)]
    arrays, tensors = handles.allocate(state, (np.bool_, facts.mask.shape), *((np.int32, shape) for shape in shapes),
                                       (np.int32, facts.mask.shape))
    arrays[0][...] = facts.mask
    _core.fill_sent(tensors[0], tensors[2], tensors[5])
    _core.fill_received(facts.received, tensors[3], tensors[1], tensors[4])
    return (*tensors[1:5], tensors[0], tensors[5])


def internode(state, facts):
    """Makes the handle of internode_dispatch, a tuple of 10. In DeepEP a rank of the receiving node forwards rows to
    other ranks of the node. A handle of ferry does not describe such a hop: recv_rdma_channel_prefix_matrix and
    recv_rdma_rank_prefix_sum are zeros, and send_nvl_head has no rows."""
    (num_tokens, ranks), num_channels = facts.mask.shape, facts.num_channels
    starts = np.array(facts.node_starts)
    nodes, peers = len(starts), int(np.diff([*starts, ranks]).max())  # ranks of the largest node
    shapes = [(nodes, num_channels), (ranks, num_channels), (nodes, num_channels), (nodes,), (ranks, num_channels),
              (ranks,), (facts.num_rows, 2), (num_tokens, nodes), (0, peers)]
    arrays, tensors = handles.allocate(state, (np.bool_, facts.mask.shape), *((np.int32, shape) for shape in shapes))
    mask, node_prefix, rank_prefix, hop_prefix, hop_sum, recv_prefix, recv_sum, meta, node_head, _ = arrays
    mask[...] = facts.mask
    to_node = nodes_of(facts.mask, facts.node_starts)
    _core.fill_sent(to_node, node_prefix, node_head)
    _core.fill_sent(mask, rank_prefix)
    hop_prefix[...] = hop_sum[...] = 0
    _core.fill_received(facts.received, recv_prefix)
    from_rank = _rows_of_ranks(facts.received.handle, ranks)
    recv_sum[...] = from_rank.cumsum()
    recv_prefix += (recv_sum - from_rank)[:, None]
    meta[...] = -1, 0
    node = starts.searchsorted(np.arange(ranks), side="right") - 1  # the node of each rank
    num_rows = facts.received.num_rows
    meta[:num_rows, 0] = np.repeat(node, from_rank)
    meta[:num_rows, 1] = 1 << (facts.rank - starts[node[facts.rank]]) % 31
    tensors[7] = tensors[7].view(torch.uint8)  # [N, 8]: DeepEP's SourceMeta, two int32
    return tuple(tensors)


def _rows_of_ranks(route, num_ranks):
    """Returns the number of rows from each rank, [R]: 0 from a rank that the view lacks."""
    rows = np.zeros(num_ranks, np.int64)
    took_part = slice(None) if route.active_ranks is None else route.active_ranks
    rows[took_part] = np.diff(route.running_rows_per_rank.numpy(), prepend=0)
    return rows


def mask_of(memory, num_tokens, num_ranks):
    """Returns is_token_in_rank of a handle, bool [T, R], which is at the beginning of the handle's memory."""
    return memory[: num_tokens * num_ranks].view(np.bool_).reshape(num_tokens, num_ranks)
