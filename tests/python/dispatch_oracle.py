"""Dispatch and combine as the obvious loops over all ranks' inputs, in numpy; the oracle of test_exchange.py."""

import numpy as np


def owner_of(expert, num_experts, num_ranks):
    """Contiguous blocks, the first num_experts % num_ranks ranks one more: (rank, local expert)."""
    small, more = divmod(num_experts, num_ranks)
    for rank in range(num_ranks):
        begin = rank * small + min(rank, more)
        if expert < begin + small + (rank < more):
            return rank, expert - begin
    raise AssertionError(expert)


def received(inputs, rank, num_experts, layout):
    """Sources [source rank, token, k] and local experts of the rows of `rank`, in the layout's order, without gaps."""
    entries = []
    for source, (ids, mask) in enumerate(inputs):
        for token in range(ids.shape[0]):
            here = []
            for k in range(ids.shape[1]):
                if ids[token, k] < 0 or not mask[token, k]:
                    continue
                owner, local = owner_of(ids[token, k], num_experts, len(inputs))
                if owner == rank:
                    here.append((local, source, token, k))
            entries += here if layout != "rank_major" else here[:1]
    if layout != "rank_major":
        entries.sort()
    return [entry[1:] for entry in entries], [entry[0] for entry in entries]


def combined(outputs, ids, mask, weights, num_experts, num_ranks):
    """outputs: {(rank, token, k): row float32} of the tokens of `rank`. Sums in k order; float32 [T, H]."""
    tokens, top_k = ids.shape
    hidden = next(iter(outputs.values())).shape[0] if outputs else 0
    out = np.zeros((tokens, hidden), np.float32)
    for token in range(tokens):
        for k in range(top_k):
            if ids[token, k] >= 0 and mask[token, k]:
                row = outputs[token, k]
                out[token] += (row if weights is None else np.float32(weights[token, k]) * row).astype(np.float32)
    return out
