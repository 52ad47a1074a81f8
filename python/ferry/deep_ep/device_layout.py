"""The functions of layout.py and channels.py for cuda tensors, in operations of torch. They leave all results on the
device and do not wait for it.

T tokens of this rank, K top-k, E experts, R ranks, N rows received, L experts of this rank. C is the number of channels
of a rank; in fill_padded it is the number of rows of an expert.
"""

import torch


def token_ranks(topk_idx, num_experts, num_ranks):
    """Returns (whether each token goes to each rank, bool [T, R]; tokens that go to each rank, int32 [R]; entries of
    each expert, int32 [E]). topk_idx is integers [T, K]. An id that names no expert counts as -1 here; the dispatch
    refuses it."""
    ids = topk_idx.long()
    ids = torch.where((ids < 0) | (ids >= num_experts), -1, ids)
    ranks = torch.where(ids < 0, num_ranks, _owner(ids, num_experts, num_ranks))
    in_rank = ids.new_zeros((len(ids), num_ranks + 1), dtype=torch.bool)
    in_rank = in_rank.scatter_(1, ranks, True)[:, :num_ranks].contiguous()
    per_expert = _histogram(ids + 1, num_experts + 1)[1:]
    return in_rank, in_rank.sum(0, dtype=torch.int32), per_expert


def _owner(ids, num_experts, num_ranks):
    """Returns the rank of each expert. Ranks own contiguous blocks of experts; the first E % R ranks own one more."""
    even, larger = divmod(num_experts, num_ranks)
    in_larger = larger * (even + 1)
    behind = larger + torch.div(ids - in_larger, max(even, 1), rounding_mode="floor")
    return torch.where(ids < in_larger, torch.div(ids, even + 1, rounding_mode="floor"), behind)


def _histogram(values, size):
    """Returns int32 [size]: how often each number occurs in `values`, int64 from 0 to size - 1."""
    values = values.flatten()
    counts = torch.zeros(size, dtype=torch.int32, device=values.device)
    return counts.scatter_add_(0, values, counts.new_ones(()).expand(len(values)))


def ids_of(mask):
    """Returns int32 top-k ids [T, R] in which expert r is rank r: column r is r where the mask, bool [T, R], is True,
    and -1 elsewhere."""
    ranks = torch.arange(mask.shape[1], dtype=torch.int32, device=mask.device)
    return torch.where(mask, ranks, -1)


def fill_sent(mask, prefix, head):
    """Fills prefix int32 [R, C] and head int32 [T, R] from the mask, bool [T, R]. prefix is the running sum over
    channels of the tokens that go to a rank. head is, for a token that goes to a rank, how many earlier tokens of its
    channel go there, and -1 for other tokens."""
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
    """Fills prefix int32 [R, C] and tokens int32 [N or more] from sources int32 [N, 3], whose rows are ordered by
    source and token. prefix is the number of rows of a source from the channels before each channel. tokens is the
    token of each row, then -1. `each` int64 [R] is the size of a channel of each source, in tokens."""
    num_ranks, num_channels = prefix.shape
    rank, token = sources[:, 0].long(), sources[:, 1]
    channel = torch.div(token, each[rank], rounding_mode="floor")
    rows = _histogram(rank * num_channels + channel, num_ranks * num_channels).view(num_ranks, num_channels)
    prefix.copy_(rows.cumsum(1) - rows)
    tokens[len(sources) :] = -1
    tokens[: len(sources)] = token


def tokens_per_channel(num_tokens, num_channels):
    """Returns the number of tokens of a channel, a contiguous range of tokens. The last channels are shorter or
    empty."""
    return max(-(-num_tokens // num_channels), 1)


def fill_padded(running, sources, counts, layout, source_tokens):
    """Fills counts int32 [L], layout int64 [L, R] (first row << 32 | rows of each source) and source_tokens int32
    [L, C] (-1 where there is no row). They are computed from `running`, the running sums of a padded dispatch over
    (local expert, source), int64 [L * R], and from its sources, int32 [L * C, 3]."""
    num_local, capacity = source_tokens.shape
    rows = torch.diff(running, prepend=running.new_zeros(1)).view(layout.shape)
    ends = rows.cumsum(1)
    layout.copy_(((ends - rows) << 32) | rows)
    counts.copy_(ends[:, -1])
    has_row = torch.arange(capacity, device=counts.device) < ends[:, -1:]
    source_tokens.copy_(torch.where(has_row, sources[:, 1].view(num_local, capacity), -1))
