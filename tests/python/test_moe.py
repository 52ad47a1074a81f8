"""The layer in one call against the dense one: values, gradients, both schedules, experts of the caller, refusals."""

import traceback

import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from ferry.moe import MoE, each, moe, swiglu  # noqa: E402
from ferry.placement import Balancer, blocks  # noqa: E402

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
    layer = MoE(group, intermediate=INTERMEDIATE, overlap=overlap, gradients="sum", **SHAPE)
    mine = slice(group.rank * EXPERTS // RANKS, (group.rank + 1) * EXPERTS // RANKS)
    with torch.no_grad():
        for parameter, whole in zip((layer.experts.gate_up, layer.experts.down), all_weights()):
            parameter.copy_(whole[mine])
    return layer


def test_the_layer_is_a_name_of_ferry_torch():
    assert ferry.torch.MoE is MoE
    with pytest.raises(AttributeError, match="no attribute 'MoF'"):
        ferry.torch.MoF  # noqa: B018


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


def frozen(group, overlap):
    """Only the experts learn, and all tokens go to those of rank 0: backward() is collective all the same."""
    layer = layer_of(group, overlap)
    tokens, ids, weights = numbers(group.rank)
    out = layer(tokens, ids % 2, weights)
    assert out.requires_grad
    out.square().sum().backward()
    return layer.experts.gate_up.grad, len(tokens)


@pytest.mark.parametrize("overlap", [None, "batches"])
def test_ranks_without_rows_make_the_calls_of_backward(overlap):
    first, *others = ferry.run_threads(RANKS, frozen, overlap, deadline=5)
    assert first[0].any()
    assert all(grad is not None and not grad.any() for grad, _ in others)  # zeros: all ranks' optimizers make a step


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


def three_calls(group):
    layer = layer_of(group)
    tokens, ids, weights = numbers(group.rank)
    with torch.no_grad():
        received = layer.exchange.dispatch(tokens, ids)
        outputs = layer.experts(received.rows, received.handle.tokens_per_expert.tolist())
        return layer(tokens, ids, weights), layer.exchange.combine(outputs, received.handle, weights)


def test_one_call_has_the_bits_of_three():
    for one, three in ferry.run_threads(RANKS, three_calls):
        assert torch.equal(one, three)


@pytest.fixture
def grouped_calls(monkeypatch):
    """An entry for each call of grouped_mm."""
    calls, grouped_mm = [], torch.nn.functional.grouped_mm
    monkeypatch.setattr(torch.nn.functional, "grouped_mm", lambda *a, **k: (calls.append(1), grouped_mm(*a, **k))[1])
    return calls


def swiglu_by_autograd(shape, as_lists, expanded):
    """(out, gradients of rows, of each gate_up, of each down), zeros where an expert had no rows."""
    intermediate, counts = shape
    generator = torch.Generator().manual_seed(3)
    rows, gate_up, down = (torch.randn(*size, generator=generator).requires_grad_() for size in
                           ((sum(counts), HIDDEN), (3, 2 * intermediate, HIDDEN), (3, HIDDEN, intermediate)))
    weights = [[one.detach().requires_grad_() for one in each] if as_lists else each for each in (gate_up, down)]
    out = swiglu(*weights)(rows, counts)
    out.backward(torch.ones(1, 1).expand_as(out) if expanded else out.detach().tanh())
    for one in [rows, *weights[0], *weights[1]] if as_lists else [rows, *weights]:
        if one.grad is None:
            one.grad = torch.zeros_like(one)
    return [out, rows.grad, *([one.grad for one in each] if as_lists else each.grad for each in weights)]


@pytest.mark.parametrize("intermediate, counts, grouped", [(24, [3, 0, 5], 2), (24, [0, 0, 0], 0), (7, [3, 0, 5], 0)])
@pytest.mark.parametrize("expanded", [False, True])
def test_grouped_products_are_those_of_each_expert(grouped_calls, intermediate, counts, grouped, expanded):
    """Weights that are not a tensor, or whose rows are not a multiple of 16 bytes, and no rows: grouped_mm is not
    called."""
    whole = swiglu_by_autograd((intermediate, counts), False, expanded)
    assert len(grouped_calls) == grouped
    parts = swiglu_by_autograd((intermediate, counts), True, expanded)
    assert len(grouped_calls) == grouped
    for one, by_expert in zip(whole, parts):
        torch.testing.assert_close(list(one), list(by_expert))


@pytest.mark.parametrize("counts, blocks", [([3, 0, 5], 1), ([0, 4, 7], 2), ([20, 0, 12], 2), ([0, 0, 0], 0)])
def test_results_go_where_combine_reads_by_products_of_blocks_of_experts(monkeypatch, grouped_calls, counts, blocks):
    monkeypatch.setattr("ferry.torch.experts._BLOCK_BYTES", 10 * 48 * 4)  # ten rows
    generator = torch.Generator().manual_seed(3)
    rows, gate_up, down = (torch.randn(*size, generator=generator)
                           for size in ((sum(counts), HIDDEN), (3, 48, HIDDEN), (3, HIDDEN, 24)))
    out = torch.full_like(rows, -1)
    assert swiglu(gate_up, down)(rows, counts, out) is out
    assert len(grouped_calls) == 2 * blocks
    torch.testing.assert_close(out, swiglu(list(gate_up), list(down))(rows, counts))


def called(group):
    """The arguments of experts. Rank 1 has so many tokens that those of rank 0 arrive first."""
    exchange = group.exchange(hidden=4096, num_experts=16, top_k=1, max_tokens=2000, dtype=torch.float32)
    ids = torch.tensor([0, 2, 3, 6] if group.rank == 0 else [1, 5] * 1000).unsqueeze(1)
    tokens = torch.arange(1.0, len(ids) + 1).unsqueeze(1).expand(-1, 4096).contiguous()
    calls = []

    def experts(rows, counts, out):
        calls.append([e for e, count in enumerate(counts) if count])
        factors = torch.arange(1.0, len(counts) + 1).repeat_interleave(torch.tensor(counts))
        torch.mul(rows, factors.unsqueeze(1), out=out)

    out = moe(exchange, tokens, ids, torch.ones(len(ids), 1), experts)
    torch.testing.assert_close(out, tokens * (ids + 1))
    return calls


def test_a_call_has_experts_whose_rows_follow_each_other():
    calls, none = ferry.run_threads(2, called)
    assert none == []
    assert calls in ([[0], [2, 3], [6], [1], [5]], [[0, 1, 2, 3, 5, 6]])


def peeked(group):
    exchange = group.exchange(**{**SHAPE, "top_k": 1})
    tokens = torch.full((4, HIDDEN), 1.0 + group.rank)
    sent = exchange.dispatch_send(tokens, torch.full((4, 1), group.rank))
    received = sent.memory()
    assert len(received.rows) == (8 if group.rank == 0 else 0)
    last = sent.recv()
    assert last.rows.data_ptr() == received.rows.data_ptr()
    return last.rows.sum().item()


def test_rows_can_be_looked_at_before_all_are_there():
    assert ferry.run_threads(2, peeked) == [4 * HIDDEN * 3, 0]


def failing(group):
    """The error on each rank when the experts of rank 1 raise: at once, in the second batch, with gradients; and the
    exchange goes on."""
    exchange, told = group.exchange(**SHAPE), []
    tokens, ids, weights = numbers(group.rank)
    for overlap, last, gradient in ((None, 0, False), ("batches", 0, False), ("batches", 1, False), (None, 0, True)):
        calls = 0

        def experts(rows, counts, out=None):
            nonlocal calls
            calls += 1
            if group.rank == 1 and calls > last:
                raise ArithmeticError("no GEMM")
            return rows.clone() if out is None else out.copy_(rows)

        with pytest.raises((ArithmeticError, ferry.PeerRejected)) as error:
            moe(exchange, tokens.clone().requires_grad_(gradient), ids, weights, experts, overlap=overlap)
        told.append((type(error.value), str(error.value)))
    return told, moe(exchange, tokens, ids, weights, each(lambda e, rows: rows))


def test_experts_that_raise_end_the_call_on_all_ranks():
    for rank, (told, out) in enumerate(ferry.run_threads(RANKS, failing)):
        assert all(kind is (ArithmeticError if rank == 1 else ferry.PeerRejected) for kind, _ in told), told
        assert all("no GEMM" in text for _, text in told)
        tokens, _, weights = numbers(rank)
        torch.testing.assert_close(out, tokens * weights.sum(1, keepdim=True))


def elsewhere(group):
    """The outcome for experts that do not write where combine reads: results are copied, or refused."""
    exchange = group.exchange(**SHAPE)
    tokens, ids, weights = numbers(group.rank)
    moe(exchange, tokens, ids, weights, each(lambda e, rows: rows))  # leaves results in the window
    out = moe(exchange, tokens, ids, weights, lambda rows, counts, out=None: rows * 5)
    torch.testing.assert_close(out, 5 * tokens * weights.sum(1, keepdim=True))
    for experts, complaint in ((lambda rows, counts, out: rows[:, :1], r"not torch.float32 \[\d+, 16\]"),
                               (lambda rows, counts, out: rows.double(), "experts returned torch.float64"),
                               (lambda rows, counts, out: counts, "experts returned list, not a tensor"),
                               (each(lambda e, rows: rows[:-1]), r"expert \d returned torch.float32"),
                               (each(lambda e, rows: None), r"expert \d returned NoneType")):
        with pytest.raises((ferry.InvalidArgument, ferry.PeerRejected), match=complaint):
            moe(exchange, tokens, ids, weights, experts)


def test_results_that_are_elsewhere_are_copied_or_refused():
    ferry.run_threads(RANKS, elsewhere, deadline=5)


def strided(group, gradient, overlap):
    """Tensors that are not contiguous give the same results as contiguous ones."""
    exchange = group.exchange(**SHAPE, depth=2)
    tokens, ids, weights = numbers(group.rank)
    expected = moe(exchange, tokens, ids, weights, each(lambda e, rows: rows), overlap=overlap)
    across = [tensor.t().contiguous().t() for tensor in (tokens, ids, weights)]
    assert len(tokens) < 2 or not any(tensor.is_contiguous() for tensor in across)
    across[0].requires_grad_(gradient)
    assert torch.equal(moe(exchange, *across, each(lambda e, rows: rows), overlap=overlap), expected)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("overlap", [None, "batches"])
def test_tensors_of_any_strides(gradient, overlap):
    ferry.run_threads(RANKS, strided, gradient, overlap, deadline=5)


def wrong_calls():
    """(the fault, the arguments and keywords of a moe() that has it, as functions of those of a good one)."""
    def instead(at, value):
        return lambda given: [*given[:at], value, *given[at + 1:]]

    same = list
    return [("unknown overlap", same, dict(overlap="both"), ferry.InvalidArgument, "'both' is neither"),
            ("unknown keyword", same, dict(overlaps=None), TypeError, r"moe\(\) has no argument 'overlaps'"),
            ("no tokens", instead(0, None), {}, ferry.InvalidArgument, "tokens is None"),
            ("a list", instead(0, [1.0]), {}, ferry.InvalidArgument, "tokens"),
            ("ids of fewer tokens", lambda given: [given[0], given[1][:1], *given[2:]], {}, ferry.InvalidArgument, "1"),
            ("text as weights", instead(2, "w"), {}, ferry.InvalidArgument, "topk_weights"),
            ("no experts", instead(3, None), {}, TypeError, "not callable"),
            ("two batches alone", same, dict(overlap="batches"), ferry.Mismatch,
             "called dispatch .* called combine")]


def one_is_wrong(group, gradient):
    """Rank 1's call is wrong: the others get an error at once, and the exchange goes on."""
    exchange = group.exchange(**SHAPE)
    tokens, ids, weights = numbers(group.rank)
    good = [tokens.requires_grad_(gradient), ids, weights, each(lambda e, rows: rows)]
    for what, change, keywords, error, message in wrong_calls():
        wrong = group.rank == 1
        told = error if wrong else ferry.Mismatch if error is ferry.Mismatch else ferry.PeerRejected
        with pytest.raises(told, match=message):
            moe(exchange, *(change(good) if wrong else good), **(keywords if wrong else {}))
            pytest.fail(what)
    out = moe(exchange, *good)
    torch.testing.assert_close(out, tokens * weights.sum(1, keepdim=True))


@pytest.mark.parametrize("gradient", [False, True])
def test_what_is_wrong_on_one_rank_ends_the_call_on_all(gradient):
    ferry.run_threads(RANKS, one_is_wrong, gradient, deadline=5)


def not_made(group):
    told = ferry.InvalidArgument if group.rank == 1 else ferry.PeerRejected
    for wrong, message in ((dict(num_experts=7), "7 experts on 2 ranks"), (dict(intermediate=None), "needs `interm"),
                           (dict(intermediate=-3), "intermediate is -3"), (dict(hidden=0), "hidden is 0, at least 1"),
                           (dict(top_k=99), "top_k")):
        with pytest.raises(told, match=message):
            MoE(group, **{**SHAPE, "intermediate": 4, **(wrong if group.rank == 1 else {})})
    return layer_of_two(group)


def layer_of_two(group):
    with torch.no_grad():
        return MoE(group, intermediate=4, **SHAPE)(*numbers(group.rank)).shape


def test_a_layer_that_one_rank_cannot_make_is_made_by_none():
    assert ferry.run_threads(2, not_made, deadline=5) == [(13, HIDDEN), (14, HIDDEN)]


def keeping(group):
    """Errors are kept, more often than the window has room for rows. Each keeps the variables of the frame that raised
    it, whose rows are unchanged; and the exchange goes on."""
    exchange, kept = group.exchange(**SHAPE), []
    tokens, ids, weights = numbers(group.rank)

    def raises(rows, counts, out):
        seen = rows.clone()
        raise ArithmeticError(len(seen))

    for number in range(10):
        try:
            moe(exchange, tokens + number, ids, weights, raises)
        except ArithmeticError as error:
            kept.append(error)
    for error in kept:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        assert torch.equal(frame.f_locals["rows"], frame.f_locals["seen"]) and len(frame.f_locals["seen"])
    assert len(kept) == 10
    return moe(exchange, tokens, ids, weights, each(lambda e, rows: rows))


def test_errors_that_are_kept_have_their_variables():
    for rank, out in enumerate(ferry.run_threads(RANKS, keeping, deadline=5)):
        tokens, _, weights = numbers(rank)
        torch.testing.assert_close(out, tokens * weights.sum(1, keepdim=True))


def switched(group):
    """A busy expert gets copies between two steps, and the result is the same."""
    layer = layer_of(group)
    tokens, _, weights = numbers(group.rank)
    ids = torch.stack([torch.full((len(tokens),), 5), *(torch.arange(len(tokens)) % 4 + i for i in range(2))], 1)
    held = blocks(EXPERTS, group.size)
    layer.balancer = Balancer(group, held)
    with torch.no_grad():
        before = layer(tokens, ids, weights)
        layer.balancer.begin(12)
        new = layer.balancer.end()
        layer.switch(held, new)
        after = layer(tokens, ids, weights)
    return before, after, len(new.slots()[5])


def test_a_placement_is_switched_between_two_steps():
    for before, after, copies in ferry.run_threads(RANKS, switched):
        assert copies > 1
        torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


def refusals(group):
    complaints = []
    for settings, overlap in ((dict(layout="rank_major"), None), (dict(expert_alignment=8), None),
                              (dict(depth=1), "batches"), (dict(), "both"), (dict(wire="int8_static"), None)):
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
                "'int8_static'", "7 experts on 2 ranks", "needs `intermediate`")
    for complaints in ferry.run_threads(2, refusals):
        assert all(part in text for part, text in zip(expected, complaints)), complaints
