"""The layer in one call against the dense one: values, gradients, both schedules, experts of the caller, refusals."""

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from ferry.moe import MoE, each, moe  # noqa: E402

RANKS, HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 4, 16, 24, 8, 3
SHAPE = dict(hidden=HIDDEN, num_experts=EXPERTS, top_k=TOP_K, max_tokens=20, dtype=torch.float32)


def numbers(rank):
    """(tokens, ids, weights) of a rank; rank 2 has no tokens."""
    generator = torch.Generator().manual_seed(rank)
    count = 0 if rank == 2 else 13 + rank
    ids = torch.rand(count, EXPERTS, generator=generator).argsort(-1)[:, :TOP_K].contiguous()
    return (torch.randn(count, HIDDEN, generator=generator), ids,
            torch.rand(count, TOP_K, generator=generator))


def all_weights():
    generator = torch.Generator().manual_seed(99)
    return (torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN, generator=generator) / 4,
            torch.randn(EXPERTS, HIDDEN, INTERMEDIATE, generator=generator) / 5)


def dense(tokens, ids, weights, gate_up, down):
    hidden = torch.einsum("th,tkoh->tko", tokens, gate_up[ids])
    gate, up = hidden.chunk(2, -1)
    outputs = torch.einsum("tki,tkhi->tkh", torch.nn.functional.silu(gate) * up, down[ids])
    return (outputs * weights.unsqueeze(-1)).sum(1)


def layer_of(group, overlap=None):
    layer = MoE(group, intermediate=INTERMEDIATE, overlap=overlap, **SHAPE)
    mine = slice(group.rank * EXPERTS // RANKS, (group.rank + 1) * EXPERTS // RANKS)
    with torch.no_grad():
        for parameter, whole in zip((layer.experts.gate_up, layer.experts.down), all_weights()):
            parameter.copy_(whole[mine])
    return layer


def values(group):
    with torch.no_grad():
        return [layer_of(group, overlap)(*numbers(group.rank)) for overlap in (None, "batches")]


@pytest.mark.parametrize("topology", [None, "host:2,rank:2"])
def test_both_schedules_give_the_dense_result(topology):
    options = {} if topology is None else {"topology": topology}
    for rank, (plain, batches) in enumerate(ferry.run_threads(RANKS, values, **options)):
        torch.testing.assert_close(plain, dense(*numbers(rank), *all_weights()), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(batches, plain, rtol=1e-5, atol=1e-5)


def gradients(group):
    layer = layer_of(group)
    tokens, ids, weights = numbers(group.rank)
    tokens, weights = tokens.requires_grad_(), weights.requires_grad_()
    layer(tokens, ids, weights).square().sum().backward()
    return tokens.grad, weights.grad, layer.experts.gate_up.grad, layer.experts.down.grad


def test_gradients_are_those_of_the_dense_layer():
    inputs = [numbers(rank) for rank in range(RANKS)]
    leaves = [(tokens.requires_grad_(), ids, weights.requires_grad_()) for tokens, ids, weights in inputs]
    held = [whole.requires_grad_() for whole in all_weights()]
    sum(dense(*leaf, *held).square().sum() for leaf in leaves).backward()
    local = EXPERTS // RANKS
    for rank, (tokens, weights, gate_up, down) in enumerate(ferry.run_threads(RANKS, gradients)):
        mine = slice(rank * local, (rank + 1) * local)
        expected = (leaves[rank][0].grad, leaves[rank][2].grad, held[0].grad[mine], held[1].grad[mine])
        for found, wanted in zip((tokens, weights, gate_up, down), expected):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def own_experts(group):
    exchange = group.exchange(**SHAPE)
    tokens, ids, weights = numbers(group.rank)
    first = group.rank * EXPERTS // RANKS
    return [moe(exchange, tokens, ids, weights, each(lambda e, rows: rows * (first + e)), overlap=overlap)
            for overlap in (None, "batches")]


def test_experts_of_the_caller():
    for rank, outs in enumerate(ferry.run_threads(RANKS, own_experts)):
        tokens, ids, weights = numbers(rank)
        for out in outs:
            torch.testing.assert_close(out, tokens * (ids * weights).sum(1, keepdim=True))


def refusals(group):
    complaints = []
    for settings, overlap in ((dict(layout="rank_major"), None), (dict(expert_alignment=8), None),
                              (dict(depth=1), "batches"), (dict(), "both")):
        with pytest.raises(ferry.InvalidArgument) as error:
            moe(group.exchange(**SHAPE, **settings), *numbers(0), each(lambda e, rows: rows), overlap=overlap)
        complaints.append(str(error.value))
    for arguments in (dict(intermediate=4, num_experts=7), dict()):
        with pytest.raises(ferry.InvalidArgument) as error:
            MoE(group, **{**SHAPE, **arguments})
        complaints.append(str(error.value))
    return complaints


def test_what_does_not_fit_is_refused():
    expected = ("'rank_major'", "alignment 1), not 'expert_major', 8", "depth 2, not 1", "'both' is neither",
                "7 experts on 2 ranks", "needs `intermediate`")
    for complaints in ferry.run_threads(2, refusals):
        assert all(part in text for part, text in zip(expected, complaints)), complaints
