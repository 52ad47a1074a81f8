"""ferry.torch against one process that computes every token with every expert: values and gradients."""

import warnings

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
import ferry.torch  # noqa: E402
from dense_layer import HIDDEN, TOLERANCE, World, dense, layer, leaf  # noqa: E402


def one_rank(group, world, copy):
    exchange = world.exchange(group)
    tokens, weights = leaf(world.tokens[group.rank]), leaf(world.topk_weights[group.rank])
    experts = [leaf(world.experts[e]) for e in world.local_experts(group.rank)]
    for _ in range(2):  # the second pass over the same buffers, with old values in their gaps
        for each in (tokens, weights, *experts):
            each.grad = None
        out = layer(world, exchange, tokens, world.topk_ids[group.rank], weights, experts, copy)
        out.backward(world.grads[group.rank])
    weight_grad = torch.zeros_like(weights) if weights.grad is None else weights.grad
    return out.detach(), tokens.grad, weight_grad, [e.grad for e in experts]


WORLDS = [
    dict(num_tokens=(6,), weighted="source"),
    dict(num_tokens=(5, 0), weighted="source"),
    dict(num_tokens=(4, 0, 7), weighted="source", alignment=4),
    dict(num_tokens=(3, 6, 1, 0), weighted="source", num_experts=3),
    dict(num_tokens=(4, 7), weighted="experts", alignment=3),
    dict(num_tokens=(0, 2, 5), weighted="experts"),
    dict(num_tokens=(3, 6, 1, 0), weighted="no"),
    dict(num_tokens=(5, 3), layout="padded", weighted="source"),
    dict(num_tokens=(4, 0, 3), layout="padded", weighted="experts"),
    dict(num_tokens=(6,), layout="rank_major", weighted="experts"),
    dict(num_tokens=(4, 0, 7), layout="rank_major", weighted="experts"),
    dict(num_tokens=(2, 6, 1, 5), layout="rank_major", weighted="no"),
    dict(num_tokens=(0, 0), weighted="source"),
    dict(num_tokens=(40, 33), weighted="source", top_k=8, num_experts=16),
]


@pytest.mark.parametrize("copy", [True, False], ids=["copied", "views"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", WORLDS, ids=lambda shape: "-".join(str(v).replace(" ", "") for v in shape.values()))
def test_values_and_gradients_are_those_of_the_dense_layer(shape, dtype, copy):
    world = World(dtype=dtype, **shape)
    outs, token_grads, weight_grads, expert_grads = dense(world)
    for rank, (out, tokens, weights, experts) in enumerate(ferry.run_threads(world.size, one_rank, world, copy)):
        close = dict(TOLERANCE[dtype], msg=lambda text: f"rank {rank}: {text}\n{world}")
        torch.testing.assert_close(out, outs[rank], **close)
        torch.testing.assert_close(tokens, token_grads[rank], **close)
        torch.testing.assert_close(weights, weight_grads[rank], **close)
        for mine, e in zip(experts, world.local_experts(rank)):
            torch.testing.assert_close(mine, expert_grads[e], **close)


# ---- bit for bit


def ordered_sum(rows):
    """float32, rows in order, from +0: the order that combine guarantees."""
    total = torch.zeros(HIDDEN)
    for row in rows:
        total = total + row.float()
    return total


def dispatch_backward(group, world):
    """Rows with random gradients; returns the values from which a test finds the source of each of them."""
    exchange = world.exchange(group)
    tokens, weights = leaf(world.tokens[group.rank]), leaf(world.topk_weights[group.rank])
    received = ferry.torch.dispatch(exchange, tokens, world.topk_ids[group.rank], weights)
    generator = torch.Generator().manual_seed(group.rank)
    row_grads = torch.randn(received.rows.shape, generator=generator).to(world.dtype)
    weight_grads = torch.randn(received.weights.shape, generator=generator)
    torch.autograd.backward([received.rows, received.weights], [row_grads, weight_grads])
    return received.sources, received.topk_ids, row_grads, weight_grads, tokens.grad, weights.grad


@pytest.mark.parametrize("layout", ["expert_major", "rank_major"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_gradient_of_dispatch_is_the_ordered_sum_of_the_rows(layout, dtype):
    world = World(num_tokens=(5, 0, 7), layout=layout, dtype=dtype, alignment=2)
    results = ferry.run_threads(world.size, dispatch_backward, world)
    row_grads = [dict() for _ in world.num_tokens]  # by source: {(token, k or rank): gradient}
    weight_grads = [torch.zeros(weights.shape) for weights in world.topk_weights]
    for rank, (sources, topk_ids, rows, weights, _, _) in enumerate(results):
        for i, (source, token, k) in enumerate(sources.tolist()):
            if source < 0:
                continue
            if layout == "rank_major":
                row_grads[source][token, rank] = rows[i]
                weight_grads[source][token] += weights[i] * (topk_ids[i] >= 0)  # the others are constants, zeros
            else:
                row_grads[source][token, k] = rows[i]
                weight_grads[source][token, k] = weights[i]
    for rank, (*_, token_grad, weight_grad) in enumerate(results):
        for token in range(world.num_tokens[rank]):
            mine = [grad for (t, _), grad in sorted(row_grads[rank].items(), key=lambda item: item[0]) if t == token]
            assert torch.equal(token_grad[token], ordered_sum(mine).to(dtype)), (world, rank, token)
        assert torch.equal(weight_grad, weight_grads[rank]), (world, rank)


def wide_backward(group):
    """Rows so wide that backward of the weighted sum takes them in blocks of four; gradients for neither input, one, or
    both."""
    hidden, generator = 2**14, torch.Generator().manual_seed(0)
    exchange = group.exchange(max_tokens=6, hidden=hidden, num_experts=3, top_k=3, dtype=torch.bfloat16)
    tokens = torch.randn(6, hidden, generator=generator).bfloat16()
    received = exchange.dispatch(tokens, torch.arange(3).repeat(6, 1))
    values = torch.randn(18, hidden, generator=generator).bfloat16(), torch.randn(6, 3, generator=generator)
    grad = torch.randn(6, hidden, generator=generator).bfloat16()
    for needed in ((True, False), (False, True), (True, True)):
        rows, weights = (value.clone().requires_grad_(need) for value, need in zip(values, needed))
        ferry.torch.combine(exchange, rows, received.handle, weights).backward(grad)
        _, token, k = received.sources.long().unbind(1)
        scaled = (values[1][token, k, None] * grad[token]).bfloat16()
        dots = torch.zeros(6, 3)
        dots[token, k] = (values[0].float() * grad[token].float()).sum(-1)
        assert torch.equal(rows.grad, scaled) if needed[0] else rows.grad is None
        assert torch.equal(weights.grad, dots) if needed[1] else weights.grad is None


def test_backward_of_a_weighted_sum_takes_its_rows_in_blocks():
    ferry.run_threads(1, wide_backward)


# ---- every kind of exchange: <forward(x), g> == <x, backward(g)>, summed over the ranks


def products(group, world, settings, arguments):
    """The products on this rank: <rows, g>, <tokens, grad> of a dispatch; <out, g>, <rows, grad>, <weights, grad> of a
    combine."""
    rank, generator = group.rank, torch.Generator().manual_seed(100 + group.rank)
    exchange = world.exchange(group, **settings)
    if rank not in arguments.get("active_ranks", range(world.size)):
        return torch.zeros(5)
    tokens, weights = leaf(world.tokens[rank]), leaf(world.topk_weights[rank])
    received = ferry.torch.dispatch(exchange, tokens, world.topk_ids[rank], **arguments)
    # Shared experts and values between experts have no weight: without them combine is linear in the weights.
    weighted = (received.sources[:, 2] >= 0) & (received.sources[:, 2] < world.top_k)

    def normal():
        rows = torch.randn(received.rows.shape, generator=generator)
        return rows * weighted.view(*rows.shape[:-1], 1)

    grad_rows, rows = normal(), leaf(normal())
    received.rows.backward(grad_rows)
    out = ferry.torch.combine(exchange, rows, received.handle, weights)
    out.backward(world.grads[rank])
    pairs = (received.rows, grad_rows), (tokens, tokens.grad), (out, world.grads[rank]), (rows, rows.grad)
    return torch.stack([(a.double() * b.double()).sum().detach() for a, b in (*pairs, (weights, weights.grad))])


@pytest.mark.parametrize(
    "settings, arguments",
    [
        (dict(), dict()),
        (dict(layout="padded", zero_gaps=True), dict()),
        (dict(tp_size=2, expert_alignment=3), dict()),
        (dict(num_shared_experts=1, num_shared_ranks=2), dict()),
        (dict(zero_experts=2, num_experts=3), dict()),
        (dict(replicas=[[0, 3], [1], [2, 4], [5], [6]], num_experts=7, replica_choice="by_token"), dict()),
        (dict(expert_rank=[3, 3, 0, 1, 0]), dict()),
        (dict(), dict(active_ranks=[3, 0, 2])),
    ],
    ids=lambda settings: ",".join(settings) or "plain",
)
def test_backward_is_the_transpose(settings, arguments):
    world = World(num_tokens=(4, 0, 7, 3), num_experts=5)
    by_rank = ferry.run_threads(world.size, products, world, settings, arguments)
    rows, tokens, out, outputs, weights = torch.stack(by_rank).sum(0)
    torch.testing.assert_close(tokens, rows, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(outputs, out, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(weights, out, rtol=1e-5, atol=1e-4)
    assert rows.abs() > 1 and out.abs() > 1  # the compared values are not zeros


# ---- torch.autograd.gradcheck


class Gathered(torch.autograd.Function):
    """Every rank's rows, so that all ranks check the same function; each keeps the gradient of its own."""

    @staticmethod
    def forward(ctx, group, mine, counts):
        ctx.group, ctx.counts = group, counts
        return torch.cat(gather(group, mine, counts))

    @staticmethod
    def backward(ctx, grad):
        return None, grad.split(ctx.counts)[ctx.group.rank].clone(), None


class Mine(torch.autograd.Function):
    """The transpose: this rank's rows from the rows of every rank."""

    @staticmethod
    def forward(ctx, group, everything, counts):
        ctx.group, ctx.counts = group, counts
        return everything.split(counts)[group.rank].clone()

    @staticmethod
    def backward(ctx, grad):
        return None, torch.cat(gather(ctx.group, grad, ctx.counts)), None


def gather(group, mine, counts):
    """Rows of all ranks, [counts[r], ...] each, through all_gather's equal lengths."""
    padded = torch.zeros(max(counts), *mine.shape[1:])
    padded[: len(mine)] = mine
    sent = bytearray(padded.numel() * 4)
    torch.frombuffer(sent, dtype=torch.float32).copy_(padded.flatten())
    every = bytearray().join(group.all_gather(bytes(sent)))
    blocks = torch.frombuffer(every, dtype=torch.float32).view(len(counts), *padded.shape)
    return [block[:count] for block, count in zip(blocks, counts)]


def checked(group, world):
    exchange, counts = world.exchange(group), list(world.num_tokens)
    experts = [world.experts[e] for e in world.local_experts(group.rank)]

    def function(tokens, weights):
        mine = Mine.apply(group, tokens, counts), Mine.apply(group, weights, counts)
        out = layer(world, exchange, mine[0], world.topk_ids[group.rank], mine[1], experts)
        return Gathered.apply(group, out, counts)

    inputs = leaf(torch.cat(world.tokens)), leaf(torch.cat(world.topk_weights))
    # Central differences of float32: 2e-2 balances rounding (1e-7 / eps) with the third derivative of tanh (eps^2).
    return torch.autograd.gradcheck(function, inputs, eps=2e-2, atol=3e-3, rtol=1e-2, nondet_tol=0.0)


@pytest.mark.parametrize(
    "shape",
    [
        dict(layout="expert_major", weighted="source", alignment=2),
        dict(layout="expert_major", weighted="experts"),
        dict(layout="padded", weighted="source"),
        dict(layout="rank_major", weighted="experts"),
    ],
    ids=lambda shape: "-".join(str(value) for value in shape.values()),
)
def test_gradcheck(shape):
    world = World(num_tokens=(2, 0, 1), top_k=2, **shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not a double precision.*")
        assert all(ferry.run_threads(world.size, checked, world))
