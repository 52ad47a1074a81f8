"""Uses of ferry.torch in programs: recompute, differentiate twice, compile, keep rows; and its refusals."""

import threading

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
import ferry.torch  # noqa: E402
from dense_layer import HIDDEN, TOLERANCE, World, dense, expert, layer, leaf  # noqa: E402


# ---- more than one backward


def penalised(tokens, weights, out, grad):
    """A loss that has the first derivatives in it."""
    grads = torch.autograd.grad(out, (tokens, weights), grad, create_graph=True)
    return sum((each**2).sum() for each in grads)


def second_derivative(group, world):
    exchange = world.exchange(group)
    tokens, weights = leaf(world.tokens[group.rank]), leaf(world.topk_weights[group.rank])
    experts = [leaf(world.experts[e]) for e in world.local_experts(group.rank)]
    out = layer(world, exchange, tokens, world.topk_ids[group.rank], weights, experts)
    penalised(tokens, weights, out, world.grads[group.rank]).backward()
    return tokens.grad, weights.grad, [e.grad for e in experts]


def dense_second_derivative(world):
    """The same for all ranks in one graph: experts compute the rows of every rank."""
    tokens, weights = [leaf(x) for x in world.tokens], [leaf(w) for w in world.topk_weights]
    experts = [leaf(matrix) for matrix in world.experts]
    outs = []
    for x, ids, w in zip(tokens, world.topk_ids, weights):
        factors = [((ids == e).float() * w).sum(1, keepdim=True) for e in range(world.num_experts)]
        outs.append(sum(factor * expert(matrix, x) for factor, matrix in zip(factors, experts)))
    grads = torch.autograd.grad(outs, [*tokens, *weights], world.grads, create_graph=True)
    sum((each**2).sum() for each in grads).backward()
    return [x.grad for x in tokens], [w.grad for w in weights], [e.grad for e in experts]


@pytest.mark.parametrize("layout, weighted", [("expert_major", "source"), ("rank_major", "experts")])
def test_second_derivatives(layout, weighted):
    world = World(num_tokens=(4, 0, 5), layout=layout, weighted=weighted, alignment=2)
    tokens, weights, experts = dense_second_derivative(world)
    for rank, mine in enumerate(ferry.run_threads(world.size, second_derivative, world)):
        torch.testing.assert_close(mine[0], tokens[rank], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine[1], weights[rank], rtol=1e-4, atol=1e-4)
        for grad, e in zip(mine[2], world.local_experts(rank)):
            torch.testing.assert_close(grad, experts[e], rtol=1e-4, atol=1e-4)


def two_layers(group, world, reentrant):
    """One exchange and two layers, each recomputed in backward unless reentrant is None."""
    from torch.utils.checkpoint import checkpoint

    exchange = world.exchange(group)
    tokens, weights = leaf(world.tokens[group.rank]), leaf(world.topk_weights[group.rank])
    experts = [leaf(world.experts[e]) for e in world.local_experts(group.rank)]

    def block(x, w):
        return x + layer(world, exchange, x, world.topk_ids[group.rank], w, experts)

    x = tokens
    for _ in range(2):
        x = block(x, weights) if reentrant is None else checkpoint(block, x, weights, use_reentrant=reentrant)
    x.backward(world.grads[group.rank])
    return [x.detach(), tokens.grad, weights.grad, *[e.grad for e in experts]]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_layers_give_the_same_bits(reentrant):
    world = World(num_tokens=(4, 0, 7), alignment=2)
    kept = ferry.run_threads(world.size, two_layers, world, None)
    recomputed = ferry.run_threads(world.size, two_layers, world, reentrant)
    for rank, (mine, again) in enumerate(zip(kept, recomputed)):
        assert all(torch.equal(a, b) for a, b in zip(mine, again)), (world, rank)


def inference(group, world):
    exchange = world.exchange(group)
    experts = [world.experts[e] for e in world.local_experts(group.rank)]
    mine = world.tokens[group.rank], world.topk_ids[group.rank], world.topk_weights[group.rank]
    with torch.no_grad():
        out = layer(world, exchange, leaf(mine[0]), mine[1], mine[2], experts)
    assert not out.requires_grad
    return out


def test_without_gradients_it_is_the_same_layer():
    world = World(num_tokens=(4, 2))
    for out, expected in zip(ferry.run_threads(world.size, inference, world), dense(world)[0]):
        torch.testing.assert_close(out, expected.detach(), **TOLERANCE[torch.float32])


def cached_and_masked(group, world):
    """A mask goes through to the exchange; a handle replaces the ids."""
    exchange, rank = world.exchange(group), group.rank
    mask = torch.rand(world.topk_ids[rank].shape, generator=torch.Generator().manual_seed(rank)) < 0.5
    tokens = leaf(world.tokens[rank])
    first = ferry.torch.dispatch(exchange, tokens, world.topk_ids[rank], topk_mask=mask)
    again = ferry.torch.dispatch(exchange, tokens, handle=first.handle)
    assert torch.equal(first.rows, again.rows)
    assert first.weights is None and first.topk_ids is None
    ferry.torch.combine(exchange, again.rows * 2, again.handle).backward(world.grads[rank])
    sent = (mask & (world.topk_ids[rank] >= 0)).sum(1, keepdim=True)
    torch.testing.assert_close(tokens.grad, 2 * sent * world.grads[rank], rtol=1e-6, atol=1e-6)


def test_masks_and_handles():
    world = World(num_tokens=(4, 0, 7))
    ferry.run_threads(world.size, cached_and_masked, world)


def result_types(group, world):
    exchange, rank = world.exchange(group), group.rank
    tokens = leaf(world.tokens[rank])
    received = ferry.torch.dispatch(exchange, tokens, world.topk_ids[rank])
    out = ferry.torch.combine(exchange, received.rows.float(), received.handle, out_dtype=torch.float32)
    assert out.dtype == torch.float32
    out.sum().backward()
    sent = (world.topk_ids[rank] >= 0).sum(1, keepdim=True)
    assert torch.equal(tokens.grad, sent.to(world.dtype).expand(tokens.shape))


def test_bf16_rows_with_float32_outputs():
    ferry.run_threads(2, result_types, World(num_tokens=(4, 3), dtype=torch.bfloat16))


def strided(group, world):
    """Inputs that are not rows of contiguous elements, and gradients that are one number, expanded."""
    exchange, rank = world.exchange(group), group.rank
    tokens, weights = (leaf(each[rank].t().contiguous().t()) for each in (world.tokens, world.topk_weights))
    received = ferry.torch.dispatch(exchange, tokens.clone(), world.topk_ids[rank], weights.clone())
    (received.rows.sum() + received.weights.sum()).backward()
    sent = (world.topk_ids[rank] >= 0).float()
    assert torch.equal(tokens.grad, sent.sum(1, keepdim=True).expand(tokens.shape))
    assert torch.equal(weights.grad, sent)
    rows = leaf(received.rows.detach().t().contiguous().t())
    ferry.torch.combine(exchange, rows, received.handle, weights).sum().backward()
    torch.testing.assert_close(rows.grad, received.weights.detach()[:, None].expand(rows.shape))


def test_strides_do_not_matter():
    world = World(num_tokens=(4, 3))
    ferry.run_threads(world.size, strided, world)


def fill_gaps(group, world, copy):
    """NaN where the next dispatch leaves gaps; its rows and weights."""
    exchange = world.exchange(group)
    everywhere = torch.arange(world.top_k).repeat(world.num_tokens[0], 1)
    weights = torch.full(everywhere.shape, 7.0)
    exchange.dispatch(torch.full_like(world.tokens[0], float("nan")), everywhere, weights)
    few = world.tokens[0][:1], everywhere[:1], weights[:1]
    raw = exchange.dispatch(*few).rows.isnan().any()
    received = ferry.torch.dispatch(exchange, *few, copy=copy)
    return raw, received.rows.reshape(-1, HIDDEN), received.weights


@pytest.mark.parametrize("copy", [True, False], ids=["copied", "views"])
@pytest.mark.parametrize("layout", ["expert_major", "padded"])
def test_gaps_are_zeros(layout, copy):
    world = World(num_tokens=(4,), layout=layout, alignment=4)
    raw, rows, weights = ferry.run_threads(1, fill_gaps, world, copy)[0]
    assert raw  # the gaps as the exchange itself leaves them
    placed = torch.arange(world.num_experts * 4)[: len(rows)] % 4 == 0  # one row of each expert, then three of a gap
    placed[world.top_k * 4 :] = False
    assert torch.equal(rows[placed], world.tokens[0][:1].expand(world.top_k, -1))
    assert not rows[~placed].any() and not weights[~placed].any() and weights[placed].eq(7).all()


@pytest.mark.skipif(not hasattr(torch, "_disable_dynamo"), reason="this torch does not compile")
def test_compiled_programs_break_their_graph_here():
    world = World(num_tokens=(4,))

    def compiled(group):
        exchange = world.exchange(group)
        step = torch.compile(lambda *inputs: layer(world, exchange, *inputs, world.experts) * 2, backend="eager")
        tokens, weights = leaf(world.tokens[0]), leaf(world.topk_weights[0])
        out = step(tokens, world.topk_ids[0], weights)
        out.backward(world.grads[0] / 2)
        return out.detach() / 2, tokens.grad, weights.grad

    for mine, expected in zip(ferry.run_threads(1, compiled)[0], dense(world)):
        torch.testing.assert_close(mine, expected[0].detach(), **TOLERANCE[torch.float32])


# ---- memory


def keep_rows(group, world, copy):
    exchange, kept = world.exchange(group), []
    for _ in range(12):  # more than the 2 * depth + 2 = 6 views that fit in the window
        kept.append(ferry.torch.dispatch(exchange, world.tokens[0], world.topk_ids[0], copy=copy))
    assert all(torch.equal(kept[0].rows, each.rows) for each in kept)
    return exchange.stats().bytes_copied


def test_rows_that_autograd_keeps_do_not_pin_the_window():
    world = World(num_tokens=(8,))
    assert ferry.run_threads(1, keep_rows, world, True) == [0]
    assert ferry.run_threads(1, keep_rows, world, False)[0] > 0  # shows that the count would see copies


def count_moves(group, world):
    """Bytes of rows moved by a layer and its backward, in rows."""
    exchange, rank = world.exchange(group), group.rank
    tokens, weights = leaf(world.tokens[rank]), leaf(world.topk_weights[rank])
    received = ferry.torch.dispatch(exchange, tokens, world.topk_ids[rank])
    out = ferry.torch.combine(exchange, received.rows * 2, received.handle, weights)
    before = exchange.stats()
    out.backward(world.grads[rank])
    after, row = exchange.stats(), HIDDEN * 4
    sent = int((world.topk_ids[rank] >= 0).sum())
    assert after.bytes_sent - before.bytes_sent == sent * row
    assert after.bytes_pulled - before.bytes_pulled == sent * (row + 4)  # the gradient, and one number beside the dots


def test_backward_moves_each_row_once_each_way():
    world = World(num_tokens=(4, 7))
    ferry.run_threads(world.size, count_moves, world)


def test_rows_are_only_saved_for_gradients_of_weights():
    world = World(num_tokens=(4,))

    def saved(group, gate_learns):
        exchange = world.exchange(group)
        received = ferry.torch.dispatch(exchange, leaf(world.tokens[0]), world.topk_ids[0])
        weights = world.topk_weights[0].clone().requires_grad_(gate_learns)
        return ferry.torch.combine(exchange, received.rows, received.handle, weights).grad_fn.saved_tensors[0]

    assert ferry.run_threads(1, saved, False) == [None]
    assert ferry.run_threads(1, saved, True) != [None]


# ---- refusals


def narrow_rows(group, world):
    """Rank 1 gives rows of another width that need gradients; all ranks get an error, and go on."""
    exchange, rank = world.exchange(group), group.rank
    tokens = leaf(world.tokens[rank])
    received = ferry.torch.dispatch(exchange, tokens, world.topk_ids[rank])
    rows = received.rows[:, : HIDDEN - rank]
    expected = ferry.InvalidArgument if rank == 1 else ferry.PeerRejected
    with pytest.raises(expected, match="need gradients, which travel as tokens of hidden 8"):
        ferry.torch.combine(exchange, rows, received.handle)
    ferry.torch.combine(exchange, received.rows, received.handle).backward(world.grads[rank])
    with torch.no_grad():  # without gradients any width is allowed
        assert ferry.torch.combine(exchange, received.rows[:, :3], received.handle).shape == (len(tokens), 3)


def test_rows_of_another_width_are_refused_everywhere():
    world = World(num_tokens=(4, 7))
    ferry.run_threads(world.size, narrow_rows, world)


@pytest.mark.parametrize("setting", [dict(wire="int8"), dict(combine_wire="int8_8"), dict(copy_experts=1)], ids=str)
def test_exchanges_that_do_more_than_move_rows_are_refused(setting):
    world = World(num_tokens=(2,))
    (name,) = setting

    def body(group):
        exchange = world.exchange(group, **setting)
        with pytest.raises(ferry.InvalidArgument, match=f"needs an exchange with {name}="):
            ferry.torch.dispatch(exchange, world.tokens[0], world.topk_ids[0])

    ferry.run_threads(1, body)


def test_a_rank_that_leaves_backward_out_is_named_at_the_deadline():
    world, told = World(num_tokens=(2, 3)), threading.Event()

    def body(group):
        exchange, rank = world.exchange(group), group.rank
        received = ferry.torch.dispatch(exchange, leaf(world.tokens[rank]), world.topk_ids[rank])
        if rank == 1:
            assert told.wait(30)
            return
        with pytest.raises(ferry.Timeout) as failure:
            received.rows.sum().backward()
        told.set()
        assert failure.value.culprit == 1 and "combine" in str(failure.value)

    ferry.run_threads(2, body, deadline=1.5)  # enough for a busy machine to make the exchange
