"""Layouts of a routing on cuda tensors: layout.py and channels.py once more, in operations of torch, which
leave everything on the device and never wait for it.

T tokens of this rank, K top-k, E experts, R ranks, N rows received, L experts of this rank.
"""

import torch


def token_ranks(topk_idx, num_experts, num_ranks):
    """(bool [T, R]: whether a token goes to a rank; int32 [R]: tokens that do; int32 [E]: entries of each expert) of
    integers [T, K]. An id of no expert counts as -1: the dispatch is what refuses it."""
    ids = topk_idx.long()
    ids = torch.where((ids < 0) | (ids >= num_experts), -1, ids)
    ranks = torch.where(ids < 0, num_ranks, _owner(ids, num_experts, num_ranks))
    in_rank = ids.new_zeros((len(ids), num_ranks + 1), dtype=torch.bool)
    in_rank = in_rank.scatter_(1, ranks, True)[:, :num_ranks].contiguous()
    per_expert = _histogram(ids + 1, num_experts + 1)[1:]
    return in_rank, in_rank.sum(0, dtype=torch.int32), per_expert


def _owner(ids, num_experts, num_ranks):
    """Experts lie in blocks, the first E % R ranks have one more."""
    even, larger = divmod(num_experts, num_ranks)
    in_larger = larger * (even + 1)
    behind = larger + torch.div(ids - in_larger, max(even, 1), rounding_mode="floor")
    return torch.where(ids < in_larger, torch.div(ids, even + 1, rounding_mode="floor"), behind)


def _histogram(values, size):
    """int32 [size]: how many of the values, int64 from 0 to size - 1, are each."""
    values = values.flatten()
    counts = torch.zeros(size, dtype=torch.int32, device=values.device)
    return counts.scatter_add_(0, values, counts.new_ones(()).expand(len(values)))


def ids_of(mask):
    """int32 [T, R]: ids of experts that are the ranks themselves; mask bool [T, R]."""
    ranks = torch.arange(mask.shape[1], dtype=torch.int32, device=mask.device)
    return torch.where(mask, ranks, -1)


def fill_sent(mask, prefix, head):
    """From bool [T, R]: prefix int32 [R, C], the running sum over channels of tokens that go to a rank, and head int32
    [T, R], how many of its channel do so before a token that does, else -1."""
    num_tokens, num_channels = mask.shape[0], prefix.shape[1]
    if num_tokens == 0:
        prefix.zero_()
        return
    each = tokens_per_channel(num_tokens, num_channels)
    sent = torch.nn.functional.pad(mask.cumsum(0), (0, 0, 1, 0))  # [T + 1, R]
    ends = torch.arange(1, num_channels + 1, device=mask.device).mul_(each).clamp_(max=num_tokens)
    prefix.copy_(sent[ends].T)
    begins = torch.arange(num_tokens, device=mask.device).div_(each, rounding_mode="floor").mul_(each)
    head.copy_(torch.where(mask, sent[:-1] - sent[begins], -1))


def fill_received(sources, each, prefix, tokens):
    """From int32 [N, 3], rows by source and token: prefix int32 [R, C], the rows of a source from the channels before
    each one, and tokens int32 [N or more], the token of each row and -1 behind them. each int64 [R]: tokens of a
    channel of each source."""
    num_ranks, num_channels = prefix.shape
    rank, token = sources[:, 0].long(), sources[:, 1]
    channel = torch.div(token, each[rank], rounding_mode="floor")
    rows = _histogram(rank * num_channels + channel, num_ranks * num_channels).view(num_ranks, num_channels)
    prefix.copy_(rows.cumsum(1) - rows)
    tokens[len(sources) :] = -1
    tokens[: len(sources)] = token


def tokens_per_channel(num_tokens, num_channels):
    """A channel is a contiguous range of so many tokens, the last ones shorter or empty."""
    return max(-(-num_tokens // num_channels), 1)


def fill_padded(running, sources, counts, layout, source_tokens):
    """From the running sums of a padded dispatch, int64 [L * R] over (local expert, source), and its sources int32
    [L * C, 3]: counts int32 [L], layout int64 [L, R], first row << 32 | rows of each source, and source_tokens int32
    [L, C], -1 where no row is."""
    num_local, capacity = source_tokens.shape
    rows = torch.diff(running, prepend=running.new_zeros(1)).view(layout.shape)
    ends = rows.cumsum(1)
    layout.copy_(((ends - rows) << 32) | rows)
    counts.copy_(ends[:, -1])
    has_row = torch.arange(capacity, device=counts.device) < ends[:, -1:]
    source_tokens.copy_(torch.where(has_row, sources[:, 1].view(num_local, capacity), -1))
