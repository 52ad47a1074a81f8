"""An oracle for DeepEP's normal kernels: it computes their results from the inputs of all ranks, in simple torch code.

It follows DeepEP (the order of rows, who multiplies by the weights, the contents of handles), not ferry's code. Every
rank can compute the inputs of all ranks, because they come from one seed.
"""

import torch


class Inputs:
    """Tokens of all ranks: x [T, H], topk_idx int64 [T, K] (-1: unused), topk_weights float32 [T, K], lists by rank."""

    def __init__(self, seed, num_tokens, *, hidden=16, num_experts=8, top_k=2, dtype=torch.bfloat16, unused=0.2,
                 duplicates=False):
        generator = torch.Generator().manual_seed(seed)
        self.num_ranks, self.num_experts, self.top_k, self.hidden = len(num_tokens), num_experts, top_k, hidden
        self.num_tokens = list(num_tokens)
        self.x, self.topk_idx, self.topk_weights = [], [], []
        for count in num_tokens:
            self.x.append(torch.randn(count, hidden, generator=generator).to(dtype))
            if duplicates:
                idx = torch.randint(0, num_experts, (count, top_k), generator=generator)
            else:
                idx = torch.rand(count, num_experts, generator=generator).argsort(dim=1)[:, :top_k]
            left_out = torch.rand(count, top_k, generator=generator) < unused
            self.topk_idx.append(idx.masked_fill(left_out, -1).contiguous())
            self.topk_weights.append(torch.rand(count, top_k, generator=generator))
        self.route()

    def choose(self, ids):
        """Takes these topk_idx, a list by rank, in the place of those that were drawn."""
        self.topk_idx = ids
        self.route()

    def route(self):
        """Finds the ranks of each token, anew after a change of topk_idx."""
        self._ranks_of = [[self._find_ranks(ids) for ids in idx.tolist()] for idx in self.topk_idx]
        tokens = [(source, token) for source, count in enumerate(self.num_tokens) for token in range(count)]
        self._arrivals = [[(source, token) for source, token in tokens if rank in self._ranks_of[source][token]]
                          for rank in range(self.num_ranks)]
        self._places = [{place: row for row, place in enumerate(arrivals)} for arrivals in self._arrivals]

    def experts_of(self, rank):
        """Returns the range of the experts of a rank. Ranks own contiguous blocks; the first E % R ranks have one
        more."""
        even, extra = divmod(self.num_experts, self.num_ranks)
        first = rank * even + min(rank, extra)
        return range(first, first + even + (rank < extra))

    def ranks_of(self, source, token):
        """Returns the ascending list of the ranks that a token goes to."""
        return self._ranks_of[source][token]

    def _find_ranks(self, ids):
        return [rank for rank in range(self.num_ranks) if any(e in self.experts_of(rank) for e in ids)]

    def arrivals(self, rank):
        """Returns [(source, token)] of the rows that a rank receives, in order."""
        return self._arrivals[rank]

    def mask(self, rank):
        """Returns is_token_in_rank of a rank, bool [T, R]."""
        mask = torch.zeros(self.num_tokens[rank], self.num_ranks, dtype=torch.bool)
        for token in range(self.num_tokens[rank]):
            mask[token, self.ranks_of(rank, token)] = True
        return mask

    def per_expert(self, rank):
        """Returns num_tokens_per_expert of a rank, int32 [E]."""
        return torch.tensor([(self.topk_idx[rank] == e).sum() for e in range(self.num_experts)], dtype=torch.int32)

    def received(self, rank, of):
        """Returns the rows of `of` (a list of [T, ...] by rank) that a rank receives, in order."""
        rows = [of[source][token] for source, token in self.arrivals(rank)]
        return torch.stack(rows) if rows else of[rank].new_empty((0, *of[rank].shape[1:]))

    def received_topk(self, rank):
        """Returns (local expert ids or -1, weights or 0) of the received tokens, both [N, K]."""
        ids, weights = self.received(rank, self.topk_idx), self.received(rank, self.topk_weights)
        mine = self.experts_of(rank)
        here = (ids >= mine.start) & (ids < mine.stop)
        return torch.where(here, ids - mine.start, -1), torch.where(here, weights, torch.zeros(()))

    def expert_list(self, rank, alignment=1):
        """Returns num_recv_tokens_per_expert_list of a rank."""
        ids, _ = self.received_topk(rank)
        counts = [int((ids == local).sum()) for local in range(len(self.experts_of(rank)))]
        return [(count + alignment - 1) // alignment * alignment for count in counts]

    def combined(self, rank, rows, biases=(), dtype=None):
        """Returns for each token of a rank the sum of the biases, then of its rows in `rows` (a list of [N, ...] by
        rank), ranks ascending. The sum is in float32 and rounded once to `dtype`, by default the type of the rows."""
        shape = rows[0].shape[1:]
        out = torch.zeros((self.num_tokens[rank], *shape))
        for token in range(self.num_tokens[rank]):
            total = torch.zeros(shape)
            for bias in biases:
                total = total + bias[token].float()
            for owner in self.ranks_of(rank, token):
                total = total + rows[owner][self._places[owner][rank, token]].float()
            out[token] = total
        return out.to(dtype or rows[0].dtype)


def same_bits(have, want):
    """Whether two tensors have the same type, shape and bytes."""
    if have.dtype != want.dtype or have.shape != want.shape:
        return False
    have, want = have.contiguous().reshape(-1), want.contiguous().reshape(-1)
    return have.numel() == 0 or torch.equal(have.view(torch.uint8), want.view(torch.uint8))
