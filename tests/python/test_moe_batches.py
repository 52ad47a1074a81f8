"""Training in two batches: the values and gradients of one batch and of the dense layer, the schedule, refusals."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import ferry  # noqa: E402
from dense_layer import TOLERANCE, World, dense, expert, leaf  # noqa: E402
from ferry.moe import SwiGLU, each, moe  # noqa: E402

WORLDS = [(5, 8), (1, 0), (7, 0, 4), (0, 0, 3)]
FORWARD = ["dispatch_send", "recv", "dispatch_send", "experts", "combine_send", "recv", "experts", "recv",
           "combine_send", "recv"]  # fmt: skip
BACKWARD = [name.replace("experts", "gradients") for name in FORWARD]


def gradients(group, world, overlap, function):
    """(out, gradients of tokens, weights and experts), where experts are function(matrix, rows)."""
    exchange = world.exchange(group)
    tokens, weights = leaf(world.tokens[group.rank]), leaf(world.topk_weights[group.rank])
    held = [leaf(world.experts[e]) for e in world.local_experts(group.rank)]
    experts = each(lambda e, rows: function(held[e], rows))
    for _ in range(2):
        leaves = [tokens, weights, *held]
        for one in leaves:
            one.grad = None
        out = moe(exchange, tokens, world.topk_ids[group.rank], weights, experts, overlap=overlap)
        out.backward(world.grads[group.rank])
    return out.detach(), tokens.grad, weights.grad, [one.grad for one in held]


def row_by_row(matrix, rows):
    """Bits that do not depend on the other rows of a call; the bits of a matrix product may depend on them."""
    return torch.tanh(rows) * matrix[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("num_tokens", WORLDS, ids=str)
def test_gradients_are_those_of_the_dense_layer(num_tokens, dtype):
    world = World(num_tokens, dtype=dtype)
    expected = dense(world)
    for rank, (*found, experts) in enumerate(ferry.run_threads(world.size, gradients, world, "batches", expert)):
        for one, all_ranks in zip(found, expected):
            torch.testing.assert_close(one, all_ranks[rank], **TOLERANCE[dtype])
        for one, e in zip(experts, world.local_experts(rank)):  # None: it had no rows
            torch.testing.assert_close(torch.zeros_like(expected[3][e]) if one is None else one, expected[3][e],
                                       **TOLERANCE[dtype])


@pytest.mark.parametrize("num_tokens", WORLDS, ids=str)
def test_one_batch_has_the_same_bits(num_tokens):
    """All values but the experts' own gradients, which are sums over tokens in another order."""
    world = World(num_tokens, dtype=torch.bfloat16)
    one, two = (ferry.run_threads(world.size, gradients, world, overlap, row_by_row) for overlap in (None, "batches"))
    for (*whole, experts), (*halves, their_experts) in zip(one, two):
        assert all(torch.equal(*pair) for pair in zip(whole, halves))
        for pair in zip(experts, their_experts):
            torch.testing.assert_close(*pair, **TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("num_tokens", [(5, 8), pytest.param((7, 0, 4), marks=pytest.mark.long)], ids=str)
def test_ranks_that_are_processes(num_tokens):
    world = World(num_tokens)
    threads, processes = (run(world.size, gradients, world, "batches", row_by_row)
                          for run in (ferry.run_threads, ferry.spawn))
    for (*mine, my_experts), (*theirs, their_experts) in zip(threads, processes):
        assert all(torch.equal(*pair) for pair in zip(mine + my_experts, theirs + their_experts))


class Watched:
    """An exchange or operation that records its calls."""

    def __init__(self, watched, noted):
        self.watched, self.noted = watched, noted

    def __getattr__(self, name):
        found = getattr(self.watched, name)
        if name in FORWARD:
            self.noted.append(name)
        return (lambda *a, **k: Watched(found(*a, **k), self.noted)) if name.endswith("_send") else found


def noted(group):
    world = World((6, 6))
    tokens, weights = leaf(world.tokens[group.rank]), leaf(world.topk_weights[group.rank])
    called = []

    def experts(rows, counts):
        called.append("experts")
        outputs = rows * 2
        outputs.register_hook(lambda _: called.append("gradients"))
        return outputs

    exchange = Watched(world.exchange(group), called)
    out = moe(exchange, tokens, world.topk_ids[group.rank], weights, experts, overlap="batches")
    forward = list(called)
    called.clear()
    out.sum().backward()
    return forward, called


def test_a_batch_travels_while_the_other_is_computed():
    assert ferry.run_threads(2, noted) == [(FORWARD, BACKWARD)] * 2


def used(group):
    """Two layers on one exchange, recomputed or not; gradients are requested by name, and twice."""
    world = World((6, 3))
    exchange, ids = world.exchange(group), world.topk_ids[group.rank]
    tokens, weights = leaf(world.tokens[group.rank]), leaf(world.topk_weights[group.rank])
    experts = SwiGLU(len(world.local_experts(group.rank)), 8, 16, torch.float32)
    generator = torch.Generator().manual_seed(group.rank)
    for parameter in experts.parameters():  # the ranks are threads that share torch's generator
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    leaves = [tokens, weights, experts.gate_up, experts.down]

    def layer(tokens, overlap="batches"):
        return moe(exchange, tokens, ids, weights, experts, overlap=overlap)

    found = []
    for again in (None, False, True):
        run = layer if again is None else lambda x, again=again: checkpoint(layer, x, use_reentrant=again)
        for one in leaves:
            one.grad = None
        run(run(tokens)).square().sum().backward()
        found.append([one.grad for one in leaves])
    out = layer(tokens).square().sum()
    by_name = [torch.autograd.grad(out, one, retain_graph=True)[0] for one in leaves]
    together = torch.autograd.grad(out, leaves)
    frozen = moe(exchange, tokens.detach(), ids, weights, lambda rows, counts: rows.detach() * 2, overlap="batches")
    plain = moe(exchange, tokens.detach(), ids, weights, lambda rows, counts: rows.detach() * 2)
    return found, by_name, together, [torch.autograd.grad(out.sum(), weights)[0] for out in (frozen, plain)]


def test_layers_in_a_row_checkpoints_and_parts_of_a_gradient():
    for (kept, *recomputed), by_name, together, (frozen, plain) in ferry.run_threads(2, used):
        for again in recomputed:
            assert torch.equal(again[0], kept[0]) and torch.equal(again[1], kept[1])
            for pair in zip(again[2:], kept[2:]):  # the layers' sums are added in another order
                torch.testing.assert_close(*pair)
        for name, pair in zip(("tokens", "weights", "gate_up", "down"), zip(by_name, together)):
            assert torch.equal(*pair), name
        assert torch.equal(frozen, plain), (frozen, plain)


def wrong_calls(world, rank):
    """(change of the arguments, error, message): calls of rank 1, in two batches with gradients."""
    ids = world.topk_ids[rank].clone()
    ids[-1:] = 99  # in the second batch

    def raises(last):
        calls = []

        def experts(rows, counts):
            calls.append(1)
            if len(calls) > last:
                raise ArithmeticError("no GEMM")
            return rows * 2

        return experts

    return [(dict(topk_ids=ids), ferry.InvalidArgument, "99"), (dict(topk_ids=ids[:2]), ferry.InvalidArgument, "2"),
            (dict(topk_weights="w"), ferry.InvalidArgument, "topk_weights"),
            (dict(tokens=None), ferry.InvalidArgument, "tokens is None"),
            (dict(experts=raises(0)), ArithmeticError, "no GEMM"),
            (dict(experts=raises(1)), ArithmeticError, "no GEMM"),
            (dict(experts=lambda rows, counts: rows[:, 1:]), ferry.InvalidArgument, "experts gave"),
            (dict(topk_ids=ids, experts=raises(0)), ferry.InvalidArgument, "99"),
            (dict(overlap=None), ferry.Mismatch, "called")]


def one_is_wrong(group):
    world = World((6, 5, 7))
    exchange, rank = world.exchange(group), group.rank
    tokens, weights = leaf(world.tokens[rank]), leaf(world.topk_weights[rank])
    good = dict(tokens=tokens, topk_ids=world.topk_ids[rank], topk_weights=weights,
                experts=lambda rows, counts: rows * 2, overlap="batches")  # fmt: skip
    for change, error, message in wrong_calls(world, rank):
        told = error if rank == 1 or error is ferry.Mismatch else ferry.PeerRejected
        with pytest.raises(told, match=message):
            moe(exchange, **{**good, **(change if rank == 1 else {})})
            pytest.fail(str(change))
        moe(exchange, **good).sum().backward()
    sent = (world.topk_ids[rank] >= 0) * weights
    torch.testing.assert_close(moe(exchange, **good), 2 * tokens * sent.sum(1, keepdim=True))


def test_what_is_wrong_on_one_rank_ends_the_call_on_all():
    ferry.run_threads(3, one_is_wrong, deadline=5)


def too_shallow(group):
    world = World((2, 2))
    with pytest.raises(ferry.InvalidArgument, match="depth 2, not 1"):
        moe(world.exchange(group, depth=1), leaf(world.tokens[0]), world.topk_ids[0], world.topk_weights[0], None,
            overlap="batches")


def test_an_exchange_of_depth_one_is_refused():
    ferry.run_threads(2, too_shallow, deadline=5)
