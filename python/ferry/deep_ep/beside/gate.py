"""deep_ep.utils.gate: scores of a router that prefers rank 0, for tests. T tokens, E experts, R ranks, L = E / R."""

import torch

_LEAST_SCORE_OF_A_CHOICE = 0.9
_NEAR = 0.03  # the largest error of the ratio, relative to it


def _ranks_of_random_choices(num_tokens, num_experts, num_ranks, num_topk):
    """Returns int64 [T, R]: how many experts of each rank a random, even router chooses for each token."""
    owners = torch.rand(num_tokens, num_experts).topk(num_topk, dim=1).indices // (num_experts // num_ranks)
    return torch.zeros(num_tokens, num_ranks, dtype=torch.int64).scatter_add_(1, owners, torch.ones_like(owners))


def generate_rank_count(num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float):
    """Returns int32 [T, R]: how many experts of each rank each token chooses, K in all. Rank 0 gets about `ratio` times
    as many tokens as the other ranks do on average."""
    if ratio < 1 or num_topk > num_experts or (num_ranks < 2 and ratio != 1):
        raise ValueError(f"generate_rank_count: ratio is {ratio}, top-k {num_topk} of {num_experts} experts on "
                         f"{num_ranks} ranks: need a ratio of at least 1, two ranks for more, and enough experts")
    count = _ranks_of_random_choices(num_tokens, num_experts, num_ranks, num_topk)
    if num_ranks == 1:
        return count.int()
    tokens = (count > 0).sum(0)
    for token in torch.randperm(num_tokens).tolist():
        wanted = ratio * float(tokens[1:].sum()) / (num_ranks - 1)
        if abs(float(tokens[0]) - wanted) <= _NEAR * wanted:
            break
        tokens -= (count[token] > 0).int()
        _dealt_again(count[token], num_experts // num_ranks, tokens[0] < wanted)
        tokens += (count[token] > 0).int()
    return count.int()


def _dealt_again(row, each, first):
    """Concentrates the choices of one token on as few ranks as possible: on rank 0 first, or on rank 0 last."""
    left, others = int(row.sum()), (row[1:].argsort(descending=True) + 1).tolist()
    for rank in [0, *others] if first else [*others, 0]:
        row[rank] = min(each, left)
        left -= int(row[rank])


def generate_topk_idx(rank_count: torch.Tensor, num_tokens: int, num_experts: int, num_ranks: int, num_topk: int):
    """Returns int64 [T, K]: random experts, as many of each rank as rank_count [T, R] says."""
    each = num_experts // num_ranks
    places = torch.rand(num_tokens, num_ranks, each).argsort(dim=2).argsort(dim=2)
    chosen = (places < rank_count.unsqueeze(2)).view(num_tokens, num_experts)
    return chosen.nonzero()[:, 1].view(num_tokens, num_topk)


def get_precise_unbalanced_scores(num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float):
    """Returns scores, float32 [T, E], whose K largest of each token are the experts of generate_topk_idx."""
    count = generate_rank_count(num_tokens, num_experts, num_ranks, num_topk, ratio)
    ids = generate_topk_idx(count, num_tokens, num_experts, num_ranks, num_topk)
    scores = torch.rand(num_tokens, num_experts, dtype=torch.float32) * _LEAST_SCORE_OF_A_CHOICE
    high = 1 - torch.rand(ids.shape, dtype=torch.float32) * (1 - _LEAST_SCORE_OF_A_CHOICE - 1e-6)
    return scores.scatter_(1, ids, high)


def get_scores_by_factor(num_tokens: int, num_experts: int, num_ranks: int, factor: float):
    """Returns scores, float32 [T, E]: uniform in [0, factor) for the experts of rank 0 and in [0, 1) for the others."""
    scores = torch.rand(num_tokens, num_experts, dtype=torch.float32)
    scores[:, :num_experts // num_ranks] *= factor
    return scores


def map_unbalanced_ratio_to_factor(num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float):
    """Returns the factor with which rank 0 gets about `ratio` times as many tokens as the other ranks do on average,
    found by 20 bisections between 1 and 100."""
    low, high = 1.0, 100.0
    for _ in range(20):
        middle = (low + high) / 2
        ids = get_scores_by_factor(num_tokens, num_experts, num_ranks, middle).topk(num_topk, dim=1).indices
        to_rank = ((ids // (num_experts // num_ranks)).unsqueeze(2) == torch.arange(num_ranks)).any(1).sum(0).double()
        if to_rank[0] > to_rank[1:].mean() * ratio:
            high = middle
        else:
            low = middle
    return low


def get_random_unbalanced_scores(num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float):
    """Returns the scores, float32 [T, E], for the factor that gives `ratio`."""
    factor = 1.0
    if ratio != 1.0:
        factor = map_unbalanced_ratio_to_factor(num_tokens, num_experts, num_ranks, num_topk, ratio)
    return get_scores_by_factor(num_tokens, num_experts, num_ranks, factor)


def get_unbalanced_scores(num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float,
                          precise: bool):
    """Returns scores, float32 [T, E], with which rank 0 gets about `ratio` times as many tokens as the other ranks do
    on average; with `precise`, within 10 percent."""
    make = get_precise_unbalanced_scores if precise else get_random_unbalanced_scores
    return make(num_tokens, num_experts, num_ranks, num_topk, ratio)
