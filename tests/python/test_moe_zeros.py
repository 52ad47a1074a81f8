"""Every weight of a layer gets a gradient in every backward pass, zeros where no row came to it."""

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from ferry.moe import MoE, each, moe, swiglu  # noqa: E402
from ferry.placement import Placement  # noqa: E402

RANKS, HIDDEN, EXPERTS, TOP_K = 2, 8, 4, 1
SHAPE = dict(hidden=HIDDEN, top_k=TOP_K, max_tokens=6, dtype=torch.float32)


class Experts(torch.nn.ModuleList):
    """A module for each expert, of which those with rows are called."""

    def __init__(self):
        super().__init__(torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(EXPERTS // RANKS))

    def forward(self, rows, counts, out=None):
        return each(lambda e, part: self[e](part))(rows, counts, out)


class Checkpointed(Experts):
    """The graph of an expert is made again in backward: the expert's weights are not in the first graph."""

    def forward(self, rows, counts, out=None):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(super().forward, rows, counts, use_reentrant=True)


class Model(torch.nn.Module):
    def __init__(self, group, experts, overlap):
        super().__init__()
        self.router = torch.nn.Linear(HIDDEN, EXPERTS)
        self.layer = MoE(group, experts=experts, intermediate=16, num_experts=EXPERTS, overlap=overlap, **SHAPE)

    def forward(self, tokens, reached):
        weights, ids = self.router(tokens)[:, :reached].softmax(-1).topk(TOP_K)
        return self.layer(tokens, ids, weights)


def gradients(group, kind, overlap, reached):
    """{parameter: its gradient} after the tokens of rank 0, 6 or none, have gone to the experts [0, reached)."""
    torch.manual_seed(group.rank)
    model = Model(group, kind and kind(), overlap)
    tokens = torch.randn(6 if group.rank == 0 else 0, HIDDEN).requires_grad_()
    model(tokens, reached).square().sum().backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("kind", [None, Experts, Checkpointed])
@pytest.mark.parametrize("overlap", [None, "batches"])
def test_weights_without_rows_have_zeros(kind, overlap):
    for reached in (1, EXPERTS):
        found = ferry.run_threads(RANKS, gradients, kind, overlap, reached, deadline=10)
        for rank, grads in enumerate(found):
            assert all(grad is not None for grad in grads.values()), (rank, grads)
        assert not any(grad.any() for name, grad in found[1].items() if reached == 1 or "router" in name)
        held = [grad for name, grad in found[0].items() if "experts" in name]
        assert any(grad.any() for grad in held) or reached > 1  # all tokens may choose experts of rank 1
        if kind is not None and reached == 1:
            assert not any(grad.any() for grad in held[2:])


def as_one(group):
    """Gradients of a rank whose experts compute all of the rows, with and without the zero gradients of other
    experts."""
    torch.manual_seed(3)
    rows, experts = torch.randn(6, HIDDEN), Experts()
    counts = [6, 0]
    experts(rows, counts).square().sum().backward()
    alone = experts[0].weight.grad.clone()
    experts.zero_grad()
    exchange = group.exchange(num_experts=EXPERTS, **SHAPE)
    moe(exchange, rows[:6 if group.rank == 0 else 0], torch.zeros(6 if group.rank == 0 else 0, 1).long(),
        torch.ones(6 if group.rank == 0 else 0, 1), experts).square().sum().backward()
    return alone, experts[0].weight.grad


def test_zeros_change_no_other_gradient():
    alone, found = ferry.run_threads(RANKS, as_one)[0]
    assert torch.equal(alone, found)


def closures(group, as_lists):
    """Weights of swiglu(), which is not a module."""
    exchange = group.exchange(num_experts=EXPERTS, **SHAPE)
    made = [torch.randn(2, *shape) for shape in ((2 * 16, HIDDEN), (HIDDEN, 16))]
    leaves = [one.requires_grad_() for whole in made for one in (whole.unbind() if as_lists else [whole])]
    half = len(leaves) // 2
    experts = swiglu(leaves[:half], leaves[half:]) if as_lists else swiglu(*leaves)
    moe(exchange, torch.randn(6, HIDDEN), torch.zeros(6, 1).long(), torch.ones(6, 1), experts).sum().backward()
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("as_lists", [False, True])
def test_weights_of_swiglu_are_known(as_lists):
    first, second = ferry.run_threads(RANKS, closures, as_lists, deadline=10)
    assert all(grad is not None for grad in first) and first[0].any()
    assert all(grad is not None and not grad.any() for grad in second)


def left_out(group, active):
    """A step of AdamW on copies of all experts, of which those of a rank that is away get no row."""
    held = Placement((*range(EXPERTS), *range(EXPERTS)), RANKS)
    layer = MoE(group, intermediate=16, **SHAPE, **held.settings("by_table"))
    with torch.no_grad():  # threads share torch's own generator
        for weight in layer.parameters():
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) / 4)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    for step in (None, active):
        layer(torch.randn(6, HIDDEN), torch.arange(6).unsqueeze(1) % EXPERTS, torch.ones(6, 1), step).sum().backward()
        layer.sum_gradients(held)
        optimizer.step()
        optimizer.zero_grad()
    return [weight.detach() for weight in layer.parameters()]


@pytest.mark.parametrize("active", [[0], [1], None])
def test_copies_stay_alike_where_a_rank_was_left_out(active):
    first, second = ferry.run_threads(RANKS, left_out, active, deadline=10)
    assert all(torch.equal(one, other) for one, other in zip(first, second))
