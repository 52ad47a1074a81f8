"""An exception of experts in backward() on one rank ends that pass on all ranks at once, and the exchange goes on."""

import time

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from dense_layer import World, leaf  # noqa: E402
from ferry.moe import moe, pair  # noqa: E402

NUM_TOKENS = (6, 0, 7)
DEADLINE_S = 20


class Raising(torch.autograd.Function):
    """Returns twice the rows. Its backward raises an error after `left` gradients."""

    @staticmethod
    def forward(ctx, rows, left):
        ctx.left = left
        return rows * 2

    @staticmethod
    def backward(ctx, grads):
        if ctx.left[0] == 0:
            raise ArithmeticError("no gradient")
        ctx.left[0] -= 1
        return grads * 2, None


def passes(group, overlap, culprit, left):
    """Four passes of three ranks, in the first and third of which the culprit's experts raise: the error of each rank,
    its time, and the gradients of the others."""
    world, rank = World(NUM_TOKENS), group.rank
    exchange, found = world.exchange(group), []
    for number in range(4):
        tokens, weights = leaf(world.tokens[rank]), leaf(world.topk_weights[rank])
        fails = [left if rank == culprit and number % 2 == 0 else 100]
        out = moe(exchange, tokens, world.topk_ids[rank], weights, lambda rows, counts: Raising.apply(rows, fails),
                  overlap=overlap)  # fmt: skip
        began = time.monotonic()
        try:
            out.sum().backward()
            found.append((tokens.grad, weights.grad))
        except (ArithmeticError, ferry.PeerRejected) as error:
            found.append((type(error), str(error), time.monotonic() - began))
    return found


@pytest.mark.parametrize("culprit", [0, 1])  # rank 1 has no tokens
@pytest.mark.parametrize("overlap, left", [(None, 0), ("batches", 0), ("batches", 1)])
def test_all_ranks_are_told_at_once(overlap, left, culprit):
    found = ferry.run_threads(len(NUM_TOKENS), passes, overlap, culprit, left, deadline=DEADLINE_S)
    for rank, (first, second, third, fourth) in enumerate(found):
        for kind, text, seconds in (first, third):
            assert kind is (ArithmeticError if rank == culprit else ferry.PeerRejected), text
            assert "no gradient" in text if rank == culprit else f"rank {culprit} refused its combine" in text
            assert seconds < DEADLINE_S / 4
        for one, other in zip(second, fourth):
            assert torch.equal(one, other) and one.isfinite().all()


def frozen(group):
    """Rank 1 raises in backward where rows need no gradients, so no other rank waits for it: their passes end
    normally."""
    world, rank = World(NUM_TOKENS), group.rank
    exchange, factor = world.exchange(group), leaf(torch.ones(()))

    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(factor)

        def forward(self, rows, counts):
            return Raising.apply(rows * self.factor, [0 if rank == 1 else 100])

    out = moe(exchange, world.tokens[rank], world.topk_ids[rank], world.topk_weights[rank], Experts())
    if rank == 1:
        with pytest.raises(ArithmeticError):
            out.sum().backward()
    else:
        out.sum().backward()
    group.barrier()
    return moe(exchange, world.tokens[rank], world.topk_ids[rank], world.topk_weights[rank], lambda rows, *_: rows)


def test_without_gradients_of_rows_the_others_do_not_wait():
    assert [len(out) for out in ferry.run_threads(3, frozen, deadline=DEADLINE_S)] == list(NUM_TOKENS)


def later(group, overlap):
    """An exception behind the layer's gradients stays on its rank, and the exchange goes on."""
    world, rank = World(NUM_TOKENS), group.rank
    exchange, tokens = world.exchange(group), leaf(world.tokens[rank])
    given = tokens * 1

    def hook(grads):
        raise ArithmeticError("no gradient")

    def layer(tokens):
        return moe(exchange, tokens, world.topk_ids[rank], world.topk_weights[rank], lambda rows, *_: rows * 2,
                   overlap=overlap)  # fmt: skip

    if rank == 0:
        given.register_hook(hook)
        with pytest.raises(ArithmeticError):
            layer(given).sum().backward()
    else:
        layer(given).sum().backward()
    return layer(world.tokens[rank])


@pytest.mark.parametrize("overlap", [None, "batches"])
def test_what_is_raised_behind_the_layer_is_told_to_nobody(overlap):
    found = ferry.run_threads(3, later, overlap, deadline=DEADLINE_S)
    assert [len(out) for out in found] == list(NUM_TOKENS)


def in_a_pair(group):
    """The backward pass of a pair fails beside a forward pass, which ends as if it had been alone."""
    world, rank = World(NUM_TOKENS), group.rank
    exchanges = [world.exchange(group), world.exchange(group)]
    tokens, weights = leaf(world.tokens[rank]), leaf(world.topk_weights[rank])

    def forward(exchange, left):
        return moe(exchange, tokens, world.topk_ids[rank], weights, lambda rows, counts: Raising.apply(rows, [left]))

    out = forward(exchanges[0], 0 if rank == 2 else 100)
    done = []
    with pytest.raises(ArithmeticError if rank == 2 else ferry.PeerRejected):
        pair(lambda: done.append(forward(exchanges[1], 100)), out.sum().backward)
    done[0].sum().backward()
    return done[0].detach(), forward(exchanges[0], 100).detach()


def test_a_backward_pass_in_a_pair_fails_alone():
    for beside, after in ferry.run_threads(3, in_a_pair, deadline=DEADLINE_S):
        assert torch.equal(beside, after)


def second_derivative(group):
    """A pass that is recorded itself sends no error, and its gradient is right."""
    world, rank = World(NUM_TOKENS, dtype=torch.float32), group.rank
    exchange, tokens = world.exchange(group), leaf(world.tokens[rank])
    out = moe(exchange, tokens, world.topk_ids[rank], world.topk_weights[rank], lambda rows, counts: rows**2)
    (grads,) = torch.autograd.grad(out.sum(), tokens, create_graph=True)
    (second,) = torch.autograd.grad(grads.sum(), tokens)
    sent = ((world.topk_ids[rank] >= 0) * world.topk_weights[rank]).sum(1, keepdim=True)
    torch.testing.assert_close(second, (2 * sent).expand_as(tokens))


def test_second_derivatives_go_through():
    ferry.run_threads(3, second_derivative, deadline=DEADLINE_S)
