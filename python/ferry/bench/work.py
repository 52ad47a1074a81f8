"""The work of every program of a comparison: the tokens and the routing from a seed, and the expected results. Needs
only numpy and torch. A test compares the routing with that of `ferry bench`."""

from dataclasses import dataclass

import numpy as np
import torch

STEP = np.uint64(0x9E3779B97F4A7C15)
CHOICES = 16  # the first of the random streams with which `ferry bench` draws the choices of ranks
NUM_PATTERNS = 1021  # different rows; tokens that far apart have equal rows


@dataclass(frozen=True)
class Shape:
    """The shape of one comparison; `tokens` are of each rank."""

    tokens: int
    hidden: int
    ranks: int
    experts: int
    top_k: int

    @property
    def local_experts(self):
        return self.experts // self.ranks


def random_bits(seed, count):
    """Returns the first `count` numbers of splitmix64, as in tools/bench/routing.h."""
    with np.errstate(over="ignore"):
        state = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * STEP
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def route(shape, seed, rank):
    """Returns (topk_ids int64, topk_weights float32), both [tokens, top_k], equal to those of `ferry bench --routing
    uniform --seed`."""
    stream = random_bits((seed * int(STEP) + CHOICES + rank) % 2**64, 1)[0]
    bits = random_bits(stream, shape.tokens * (shape.experts + shape.top_k)) >> np.uint64(11)
    draws = ((bits + 0.5) * 2.0**-53).reshape(shape.tokens, -1)
    ids = np.argsort(-draws[:, :shape.experts], axis=1)[:, :shape.top_k]
    weights = np.float32(0.1) + draws[:, shape.experts:].astype(np.float32)
    weights /= weights.sum(axis=1, keepdims=True)
    return torch.from_numpy(np.ascontiguousarray(ids)), torch.from_numpy(weights)


class Work:
    """The work of one rank: tokens bf16 [T, H], topk_ids and topk_weights, and checks of the rows that it receives and
    of the results."""

    def __init__(self, shape, seed, rank):
        self.shape, self.rank = shape, rank
        random = torch.Generator().manual_seed(seed)
        self.patterns = torch.randn(NUM_PATTERNS, shape.hidden, generator=random).bfloat16()
        self.topk_ids, self.topk_weights = route(shape, seed, rank)
        self.tokens = self.patterns.index_select(0, self._pattern_of(rank * shape.tokens + torch.arange(shape.tokens)))
        self._every_id = torch.stack([route(shape, seed, source)[0] for source in range(shape.ranks)])

    @staticmethod
    def _pattern_of(tokens):
        return tokens % NUM_PATTERNS

    def wrong_received(self, rows, tokens_per_expert):
        """Returns the number of elements that differ from the expected rows, ordered by local expert, source, token, k.
        """
        first = self.rank * self.shape.local_experts
        ids = self._every_id.flatten() - first
        mine = ((ids >= 0) & (ids < self.shape.local_experts)).nonzero().flatten()
        mine = mine[ids[mine].argsort(stable=True)]
        counts = torch.bincount(ids[mine], minlength=self.shape.local_experts)
        if not torch.equal(counts, torch.as_tensor(tokens_per_expert)) or rows.shape[0] != mine.numel():
            return max(1, rows.numel())
        expected = self.patterns.index_select(0, self._pattern_of(mine // self.shape.top_k))
        return int((rows.view(torch.int16) != expected.view(torch.int16)).sum())

    def scale(self, rows, tokens_per_expert):
        """Applies the experts: expert e multiplies its rows by 2^(e mod 4), which is exact in bf16."""
        expert = torch.arange(self.shape.local_experts) + self.rank * self.shape.local_experts
        factor = torch.repeat_interleave(2.0 ** (expert % 4), torch.as_tensor(tokens_per_expert))
        return rows * factor.bfloat16().unsqueeze(1)

    def wrong_combined(self, out):
        """Returns the number of elements that differ by more than a rounding to bf16 from the weighted sum of the
        results of scale()."""
        total = (self.topk_weights.double() * 2.0 ** (self.topk_ids % 4)).sum(1, keepdim=True)
        expected = self.tokens.double() * total
        return int(((out.double() - expected).abs() > expected.abs() * 2.0**-8).sum())
