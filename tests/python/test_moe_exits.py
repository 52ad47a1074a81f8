"""An exception that ends a program, raised in an expert of one rank, ends the call on the others as any exception
does."""

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from dense_layer import World, leaf  # noqa: E402
from ferry.moe import moe  # noqa: E402

NUM_TOKENS = (6, 0, 7)
DEADLINE_S = 5


class ExitsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, error):
        ctx.error = error
        return rows * 2

    @staticmethod
    def backward(ctx, grads):
        raise ctx.error


def exits(group, error, overlap, where):
    """Rank 2's experts raise: the result of each rank, and a call afterwards."""
    world, rank = World(NUM_TOKENS), group.rank
    exchange, weights = world.exchange(group), world.topk_weights[rank]

    def experts(rows, counts, out=None):
        if rank == 2 and where == "backward":
            return ExitsInBackward.apply(rows, error)
        if rank == 2:
            raise error
        return rows * 2

    def layer(experts):
        tokens = world.tokens[rank] if where == "without gradients" else leaf(world.tokens[rank])
        out = moe(exchange, tokens, world.topk_ids[rank], weights, experts, overlap=overlap)
        if where == "backward":
            out.sum().backward()
        return out.detach()

    with pytest.raises(type(error) if rank == 2 else ferry.PeerRejected) as raised:
        layer(experts)
    return str(raised.value), layer(lambda rows, counts, out=None: rows * 2)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("a hand")], ids=["exit", "interrupt"])
@pytest.mark.parametrize("where", ["without gradients", "forward", "backward"])
@pytest.mark.parametrize("overlap", [None, "batches"])
def test_the_others_are_told(overlap, where, error):
    told = ferry.run_threads(len(NUM_TOKENS), exits, error, overlap, where, deadline=DEADLINE_S)
    for rank, (text, out) in enumerate(told):
        assert len(out) == NUM_TOKENS[rank]
        if rank != 2:
            assert "rank 2 refused its combine" in text
            assert where == "backward" or f"{type(error).__name__}: {error}" in text


def alone(group, told):
    """An exit stays an exit where no other rank can be reached: rank 0 ends, and the group breaks, in the middle of the
    call."""
    world, rank = World(NUM_TOKENS), group.rank
    exchange, tokens = world.exchange(group), leaf(world.tokens[group.rank])
    if rank != 2:
        ferry.torch.dispatch(exchange, tokens, world.topk_ids[rank])
        raise ArithmeticError("rank 0 and 1 end")

    def experts(rows, counts):
        raise SystemExit(3)

    try:
        moe(exchange, tokens, world.topk_ids[rank], world.topk_weights[rank], experts)
    except BaseException as error:
        told.append(type(error))


def test_an_exit_stays_one_where_nobody_can_be_told():
    told = []
    with pytest.raises(ArithmeticError):
        ferry.run_threads(3, alone, told, deadline=DEADLINE_S)
    assert told == [SystemExit]
