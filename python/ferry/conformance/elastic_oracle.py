"""An oracle for DeepEP's ElasticBuffer: it computes results from the inputs of all ranks (deep_ep_oracle.Inputs), in
simple torch code.

It follows DeepEP: the order of rows, the alignment, the contents of handles, and the rounding of combine.
"""

import functools
from typing import NamedTuple

import torch


class Slot(NamedTuple):
    """A row of the expanded layout. A source of -1 means a row between experts, which holds no token."""

    source: int
    token: int
    k: int


GAP = Slot(-1, -1, -1)


def aligned(count, alignment):
    return -(-count // alignment) * alignment


@functools.lru_cache(maxsize=None)
def arrivals(inputs, rank):
    return inputs.arrivals(rank)


@functools.lru_cache(maxsize=None)
def entries(inputs, rank, source, token):
    """Returns [(k, local expert)] of the entries of a token whose experts are on `rank`."""
    experts = inputs.experts_of(rank)
    ids = inputs.topk_idx[source][token].tolist()
    return [(k, e - experts.start) for k, e in enumerate(ids) if e in experts]


def counts(inputs, rank):
    """Returns the number of rows of each local expert."""
    arrived = [local for arrival in arrivals(inputs, rank) for _, local in entries(inputs, rank, *arrival)]
    return [arrived.count(local) for local in range(len(inputs.experts_of(rank)))]


@functools.lru_cache(maxsize=None)
def slots(inputs, rank, alignment):
    """Returns the Slot of each row of the expanded layout."""
    rows = []
    for local in range(len(inputs.experts_of(rank))):
        rows += [Slot(source, token, k) for source, token in arrivals(inputs, rank)
                 for k, expert in entries(inputs, rank, source, token) if expert == local]
        rows += [GAP] * (aligned(len(rows), alignment) - len(rows))
    return rows


def expanded(inputs, rank, alignment, of):
    """Returns the rows of `of` (a list of [T, ...] by rank) in the expanded layout, with zeros between experts."""
    rows = [of[slot.source][slot.token] if slot != GAP else of[rank].new_zeros(of[rank].shape[1:])
            for slot in slots(inputs, rank, alignment)]
    return torch.stack(rows) if rows else of[rank].new_empty(0, *of[rank].shape[1:])


def psum_per_expert(inputs, rank, alignment, expand):
    """Returns int32 [L]: the inclusive running sum of the aligned counts; if expanded, the row after the last row of
    each expert."""
    ends, start = [], 0
    for count in counts(inputs, rank):
        ends.append(start + count if expand else start + aligned(count, alignment))
        start += aligned(count, alignment)
    return torch.tensor(ends, dtype=torch.int32)


def psum_per_rank(inputs, rank):
    sources = [source for source, _ in arrivals(inputs, rank)]
    return torch.tensor([sum(s <= source for s in sources) for source in range(inputs.num_ranks)], dtype=torch.int32)


def combined(inputs, rank, outputs, biases=(), *, alignment=1, expand=False, multiple_reduction=True):
    """Returns combined_x [T, H']. `outputs` is a list by rank of rows in the order of the dispatch. Sums are in float32
    and start at +0."""
    dtype, hidden = outputs[0].dtype, outputs[0].shape[1]
    where = []
    for receiver in range(inputs.num_ranks):
        order = slots(inputs, receiver, alignment) if expand else arrivals(inputs, receiver)
        where.append({row: place for place, row in enumerate(order)})
    result = torch.empty(inputs.num_tokens[rank], hidden, dtype=dtype)
    for token in range(inputs.num_tokens[rank]):
        total = torch.zeros(hidden)
        for bias in biases:
            total = total + bias[token].float()
        for summand in _summands(inputs, rank, token, outputs, where, expand, multiple_reduction):
            total = total + summand.float()
        result[token] = total.to(dtype)
    return result


def _summands(inputs, rank, token, outputs, where, expand, multiple_reduction):
    receivers = inputs.ranks_of(rank, token)
    if not expand:
        return [outputs[receiver][where[receiver][rank, token]] for receiver in receivers]
    summands = {}
    for receiver in receivers:
        here = [k for k, _ in entries(inputs, receiver, rank, token)]
        rows = {k: outputs[receiver][where[receiver][Slot(rank, token, k)]] for k in here}
        if multiple_reduction:
            partial = torch.zeros(outputs[0].shape[1])
            for k in sorted(rows):
                partial = partial + rows[k].float()
            rows = {max(rows): partial.to(outputs[0].dtype)}
        summands.update(rows)
    return [summands[k] for k in sorted(summands)]
