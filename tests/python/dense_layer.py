"""One process that computes every token with every expert: the reference of ferry.torch; and a comparison of the layer
with it."""

import itertools
from dataclasses import dataclass

import torch

import ferry.torch

HIDDEN = 8
TOLERANCE = {torch.float32: dict(rtol=2e-5, atol=2e-5), torch.bfloat16: dict(rtol=4e-2, atol=4e-2)}


@dataclass
class World:
    """All inputs of all ranks, made from one seed, so that each rank can make them for itself."""

    num_tokens: tuple  # of each rank
    num_experts: int = 5
    top_k: int = 3
    layout: str = "expert_major"
    alignment: int = 1
    dtype: torch.dtype = torch.float32
    weighted: str = "source"  # or "experts": the weights travel with the rows; or "no"
    seed: int = 1

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape):
            return torch.randn(*shape, generator=generator)

        self.tokens = [normal(count, HIDDEN).to(self.dtype) for count in self.num_tokens]
        # ids begin at -1 (not sent); the experts are so few that a token often names one twice
        self.topk_ids = [
            torch.randint(-1, self.num_experts, (count, self.top_k), generator=generator) for count in self.num_tokens
        ]
        self.topk_weights = [normal(count, self.top_k) for count in self.num_tokens]
        self.experts = [(normal(HIDDEN, HIDDEN) / HIDDEN**0.5).to(self.dtype) for _ in range(self.num_experts)]
        self.grads = [normal(count, HIDDEN).to(self.dtype) for count in self.num_tokens]

    @property
    def size(self):
        return len(self.num_tokens)

    def exchange(self, group, **more):
        config = dict(
            max_tokens=max(self.num_tokens), hidden=HIDDEN, num_experts=self.num_experts, top_k=self.top_k,
            dtype=self.dtype, layout=self.layout, expert_alignment=self.alignment,
        )  # fmt: skip
        return group.exchange(**dict(config, **more))

    def local_experts(self, rank):
        """Contiguous blocks, the first ones an expert more."""
        few, more = divmod(self.num_experts, self.size)
        begin = rank * few + min(rank, more)
        return range(begin, begin + few + (rank < more))


def leaf(tensor):
    return tensor.clone().requires_grad_()


def expert(matrix, rows):
    return torch.tanh(rows @ matrix)


def dense(world):
    """The reference: (out, gradients of tokens and weights) by rank, and the gradient of each expert."""
    tokens, weights = [leaf(x) for x in world.tokens], [leaf(w) for w in world.topk_weights]
    experts = [leaf(matrix) for matrix in world.experts]
    outs = []
    for x, ids, w in zip(tokens, world.topk_ids, weights):
        out = torch.zeros(x.shape)
        for e, k in itertools.product(range(world.num_experts), range(world.top_k)):
            factor = (ids[:, k] == e).float() * (1 if world.weighted == "no" else w[:, k])
            out = out + factor[:, None] * expert(experts[e], x).float()
        outs.append(out.to(world.dtype))
    torch.autograd.backward(outs, world.grads)
    zero = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
    return outs, [x.grad for x in tokens], zero, [e.grad for e in experts]


def run_experts(world, received, experts):
    """Rows of the experts of this rank, times their weights where the world sends weights with the rows."""
    if world.layout == "rank_major":
        return run_rank_major(world, received, experts)
    offsets = received.handle.expert_offsets.tolist()
    rows = received.rows.flatten(0, -2)
    outputs = torch.cat([expert(e, rows[begin:end]) for e, begin, end in zip(experts, offsets, offsets[1:])] or [rows])
    if world.weighted == "experts":
        outputs = (received.weights.reshape(-1, 1) * outputs).to(world.dtype)
    return outputs  # [N, H], of padded rows too


def run_rank_major(world, received, experts):
    outputs = torch.zeros(received.rows.shape)
    for e, k in itertools.product(range(len(experts)), range(world.top_k)):
        here = (received.topk_ids[:, k] == e).float()
        factor = here * received.weights[:, k] if world.weighted == "experts" else here
        outputs = outputs + factor[:, None] * expert(experts[e], received.rows).float()
    return outputs.to(world.dtype)


def layer(world, exchange, tokens, topk_ids, topk_weights, experts, copy=True):
    travelling = topk_weights if world.weighted == "experts" else None
    received = ferry.torch.dispatch(exchange, tokens, topk_ids, travelling, copy=copy)
    outputs = run_experts(world, received, experts)
    return ferry.torch.combine(exchange, outputs, received.handle, topk_weights if world.weighted == "source" else None)
