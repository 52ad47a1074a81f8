"""Exchange, Received and Handle: rows, order, counts and sums against the oracle; the libraries; refusals."""

import time

import numpy as np
import pytest

import ferry
from dispatch_oracle import combined, received

torch = pytest.importorskip("torch", reason="torch is not installed: tensors of torch are not tested")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: its types are not tested")

RANKS = [1, 2, 3, 4]
FP8 = getattr(torch, "float8_e4m3fn", torch.uint8)


def inputs_of(seed, num_ranks, num_experts, top_k, hidden):
    """Per rank: tokens float32 (small integers: exact in every type), ids with -1 and duplicates, mask, weights."""
    rng = np.random.default_rng(seed)
    all_inputs = []
    for rank in range(num_ranks):
        num_tokens = int(rng.integers(0, 9)) if rank else 7
        tokens = rng.integers(-8, 9, (num_tokens, hidden)).astype(np.float32)
        ids = rng.integers(-1, num_experts, (num_tokens, top_k))
        mask = rng.random((num_tokens, top_k)) < 0.9
        all_inputs.append((tokens, ids, mask, rng.integers(1, 5, (num_tokens, top_k)).astype(np.float32)))
    return all_inputs


TO_LIBRARY = {
    "numpy": lambda array: array,
    "torch": torch.from_numpy,
}
TO_NUMPY = {"numpy": np.asarray, "torch": lambda tensor: tensor.float().numpy() if tensor.dtype == torch.bfloat16
            else tensor.numpy()}


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("layout", ["expert_major", "rank_major", "padded"])
@pytest.mark.parametrize("num_ranks", RANKS)
def test_rows_counts_and_sums_are_the_oracles(num_ranks, layout, library):
    num_experts, top_k, hidden, seed = 5, 3, 6, 11 * num_ranks
    everybody = inputs_of(seed, num_ranks, num_experts, top_k, hidden)
    routing = [(ids, mask) for _, ids, mask, _ in everybody]
    give, back = TO_LIBRARY[library], TO_NUMPY[library]

    def body(group):
        tokens, ids, mask, weights = everybody[group.rank]
        exchange = group.exchange(max_tokens=8, hidden=hidden, num_experts=num_experts, top_k=top_k, dtype="float32",
                                  layout=layout, expert_alignment=2, zero_gaps=True)
        rows = exchange.dispatch(give(tokens), give(ids), give(weights), topk_mask=give(mask))
        sources = back(rows.sources)
        live = sources[:, 0] >= 0
        wanted, experts = received(routing, group.rank, num_experts, layout)
        assert [tuple(each) for each in sources[live]] == wanted
        flat = back(rows.rows).reshape(-1, hidden)
        assert np.array_equal(flat[live], np.array([everybody[s][0][t] for s, t, _ in wanted]).reshape(-1, hidden))
        assert not flat[~live].any()
        counts = back(rows.handle.tokens_per_expert)
        if layout != "rank_major":
            assert counts.tolist() == [experts.count(e) for e in range(exchange.num_local_experts)]
            flat_weights = back(rows.weights)
            assert flat_weights[live].tolist() == [everybody[s][3][t, k] for s, t, k in wanted]
            outputs = flat * 2 + np.arange(flat.shape[0], dtype=np.float32)[:, None] % 3
        else:
            outputs = flat * 2 + 1
        result = exchange.combine(give(outputs.astype(np.float32)), rows.handle,
                                  None if layout == "rank_major" else give(weights))
        assert type(result) is type(give(tokens))
        return sources[live], outputs[live], back(result)

    results = ferry.run_threads(num_ranks, body)
    for rank, (tokens, ids, mask, weights) in enumerate(everybody):
        if layout == "rank_major":  # one row for each rank that has the token, added by rank
            wanted = np.zeros_like(tokens)
            for sources, outputs, _ in results:
                for (source, token, _), row in zip(sources, outputs):
                    if source == rank:
                        wanted[token] += row
        else:
            mine = {(t, k): row for sources, outputs, _ in results
                    for (s, t, k), row in zip(sources, outputs) if s == rank}
            wanted = combined(mine, ids, mask, weights, num_experts, num_ranks).reshape(tokens.shape)
        assert np.array_equal(results[rank][2], wanted), f"rank {rank}, seed {seed}"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_every_type_comes_back_as_it_was_given(library, dtype):
    def body(group):
        exchange = group.exchange(max_tokens=4, hidden=8, num_experts=4, top_k=2, dtype=dtype)
        numpy_type = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
        tokens = np.arange(32).reshape(4, 8).astype(numpy_type)
        if library == "torch":
            tokens = torch.arange(32).reshape(4, 8).to(getattr(torch, dtype))
        ids = np.array([[0, 3], [1, 2], [2, -1], [3, 0]])
        rows = exchange.dispatch(tokens, ids)
        assert rows.rows.dtype == tokens.dtype and rows.weights is None and rows.topk_ids is None
        result = exchange.combine(rows.rows, rows.handle, np.full((4, 2), 0.5, np.float32))
        assert result.dtype == tokens.dtype
        return [float(x) for x in result[:, 1]]

    assert ferry.run_threads(2, body) == [[1, 9, 8.5, 25]] * 2


@pytest.mark.parametrize("wire, scale_type", [("fp8", "float32"), ("fp8_ue8m0", "int32"), ("int8", "float32")])
@pytest.mark.parametrize("order", ["row_major", "column_major"])
def test_quantised_rows_and_their_scales(wire, scale_type, order):
    def body(group):
        exchange = group.exchange(max_tokens=6, hidden=256, num_experts=2, top_k=1, wire=wire, scale_order=order)
        torch.manual_seed(3)
        tokens = torch.randn(6, 256).bfloat16()
        rows = exchange.dispatch(tokens, torch.full((6, 1), group.rank))
        assert rows.rows.dtype == (torch.int8 if wire == "int8" else FP8)
        assert str(rows.scales.dtype) == f"torch.{scale_type}" and rows.scales.shape[0] == 6
        assert rows.scales.stride() == ((rows.scales.shape[1], 1) if order == "row_major" else (1, 8))
        scales = rows.scales
        if wire == "fp8_ue8m0":
            exponents = torch.stack([scales[:, 0] & 255, scales[:, 0] >> 8 & 255], 1)
            scales = torch.exp2(exponents.float() - 127)
        values = rows.rows if wire == "int8" else torch.from_numpy(
            rows.rows.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32))
        blocks = values.float().view(6, scales.shape[1], -1) * scales[:, :, None]
        assert torch.allclose(blocks.view(6, 256), tokens.float(), rtol=0.07, atol=0.03)

    ferry.run_threads(2, body)


def test_opaque_rows_with_scales_of_their_own():
    def body(group):
        exchange = group.exchange(max_tokens=3, hidden=5, num_experts=2, top_k=1, dtype="uint8", scale_bytes=8,
                                  layout="rank_major")
        payload = torch.randint(0, 256, (3, 5), dtype=torch.uint8).view(FP8)
        scales = torch.randn(3, 2)
        rows = exchange.dispatch(payload, torch.full((3, 1), group.rank), token_scales=scales)
        assert torch.equal(rows.rows, payload.view(torch.uint8)) and torch.equal(rows.scales, scales)

    ferry.run_threads(2, body)


def test_buffers_of_plain_python():
    from array import array

    def body(group):
        exchange = group.exchange(max_tokens=2, hidden=2, num_experts=2, top_k=1, dtype="float32")
        tokens = memoryview(array("f", [1, 2, 3, 4])).cast("B").cast("f", (2, 2))
        ids = memoryview(array("q", [0, 1])).cast("B").cast("q", (2, 1))
        rows = exchange.dispatch(tokens, ids)
        result = exchange.combine(rows.rows, rows.handle)
        return memoryview(result).tolist()

    assert ferry.run_threads(2, body) == [[[1, 2], [3, 4]]] * 2


def test_outputs_in_the_window_are_not_copied():
    def body(group):
        exchange = group.exchange(max_tokens=4, hidden=16, num_experts=2, top_k=2, dtype="float32")
        tokens = torch.randn(4, 16)
        ids = torch.tensor([[0, 1]] * 4)
        rows = exchange.dispatch(tokens, ids)
        before = exchange.stats()
        outputs = exchange.empty(rows.num_rows)
        outputs.copy_(rows.rows)
        assert torch.equal(exchange.combine(outputs, rows.handle), tokens * 2)
        assert torch.equal(exchange.combine(rows.rows, rows.handle), tokens * 2)
        assert exchange.stats().bytes_copied == before.bytes_copied == 0
        exchange.combine(rows.rows, rows.handle, in_place=False)
        exchange.combine(rows.rows.clone(), rows.handle)
        assert exchange.stats().bytes_copied == 2 * rows.num_rows * 64
        return exchange.stats()

    stats = ferry.run_threads(2, body)[0]
    assert (stats.dispatches, stats.combines, stats.rows_sent, stats.bytes_sent) == (1, 4, 8, 512)
    assert len(stats.dispatch_wait_ns) == 2 and stats.imbalance == 1


def test_rows_may_be_written_to_after_a_combine_that_copied_them():
    import threading

    def body(group):
        exchange = group.exchange(max_tokens=4, hidden=16, num_experts=2, top_k=1, dtype="float32")
        rows = exchange.dispatch(torch.ones(4, 16), torch.full((4, 1), 1 - group.rank))
        if group.rank == 0:
            result = exchange.combine(rows.rows, rows.handle, in_place=False)
            rows.rows.fill_(-1)  # rank 1 has not read the rows
            written.set()
            return result.unique().tolist()
        half = exchange.combine_send(rows.rows, rows.handle)
        assert written.wait(30)
        return half.recv().unique().tolist()

    written = threading.Event()
    assert ferry.run_threads(2, body, deadline=40.0) == [[1.0], [1.0]]


def test_rows_read_in_place_may_be_written_when_all_ranks_have_read_them():
    """Rank 0 has combined, and received the next dispatch; rank 1 made the same calls and has not read the rows."""

    def body(group):
        exchange = group.exchange(max_tokens=4, hidden=16, num_experts=2, top_k=1, dtype="float32")
        ids = torch.full((4, 1), 1 - group.rank)
        rows = exchange.dispatch(torch.ones(4, 16), ids)
        outputs = exchange.empty(rows.num_rows)
        assert exchange.may_write(outputs)
        outputs.fill_(2)
        combine = exchange.combine_send(outputs, rows.handle)
        result = combine.recv() if group.rank == 0 else None
        next_rows = exchange.dispatch(torch.ones(4, 16), ids).rows
        group.barrier()
        may = [exchange.may_write(each) for each in (outputs, outputs[1:], outputs.numpy())]
        may += [exchange.may_write(each) for each in (rows.rows, next_rows, torch.ones(3), np.ones(3))]
        assert may == [False] * 3 + [True] * 4
        group.barrier()
        result = combine.recv() if result is None else result
        ends = time.monotonic() + 30
        while not exchange.may_write(outputs):
            assert time.monotonic() < ends
        outputs.fill_(-1)
        with pytest.raises(ferry.InvalidArgument, match="rows"):
            exchange.may_write([1.0])
        exchange.close()
        with pytest.raises(ferry.Closed):
            exchange.may_write(outputs)
        return result.unique().tolist()

    assert ferry.run_threads(2, body, deadline=40.0) == [[2.0], [2.0]]


def test_views_outlive_what_they_came_from():
    def body(group):
        exchange = group.exchange(max_tokens=4, hidden=4, num_experts=2, top_k=1, dtype="float32")
        views, wanted = [], []
        for i in range(12):  # more than the pool has buffers
            tokens = torch.full((4, 4), float(i + group.rank))
            rows = exchange.dispatch(tokens, torch.full((4, 1), group.rank))
            views.append(rows.rows)
            wanted.append(tokens)
            rows.release()
            with pytest.raises(ferry.Closed, match="released"):
                rows.rows
        exchange.close()
        with pytest.raises(ferry.Closed, match="closed"):
            exchange.stats()
        return all(map(torch.equal, views, wanted))

    assert all(ferry.run_threads(2, body))


def test_halves_overlap_and_cached_dispatch_reuses_the_slots():
    def body(group):
        exchange = group.exchange(max_tokens=4, hidden=4, num_experts=4, top_k=2, dtype="float32")
        ids = torch.tensor([[0, 3], [1, 2], [2, 0], [3, 1]])
        first = exchange.dispatch_send(torch.ones(4, 4), ids)
        second = exchange.dispatch_send(torch.full((4, 4), 2.0), ids)
        rows, more = first.recv(), second.recv()
        sums = [exchange.combine_send(each.rows, each.handle) for each in (rows, more)]
        results = [each.recv() for each in sums]
        assert [r.unique().tolist() for r in results] == [[2.0], [4.0]]
        again = exchange.dispatch(torch.full((4, 4), 5.0), handle=rows.handle)
        assert torch.equal(again.sources, rows.sources) and again.rows.unique().tolist() == [5.0]
        with pytest.raises(ferry.InvalidArgument):
            first.recv()

    ferry.run_threads(2, body)


def test_where_rows_will_lie_is_known_between_the_halves():
    def body(group):
        exchange = group.exchange(max_tokens=2, hidden=3, num_experts=2, top_k=1, dtype="float32", depth=2)
        held = []
        for number in range(9):  # more than the window has buffers for
            sent = exchange.dispatch_send(np.full((2, 3), number, np.float32), np.array([[0], [1]]))
            if number < 2 * 2 + 2:
                memory = sent.memory()
                held.append(memory.rows)
                assert memory.num_rows == 2 and held[-1].ctypes.data == sent.recv().rows.ctypes.data
            else:
                with pytest.raises(ferry.Capacity, match="^7 views of the window are alive, the limit is 6"):
                    sent.memory()
                held.append(sent.recv().rows)
            with pytest.raises(ferry.InvalidArgument, match=r"^operation \d+ is not a dispatch in flight"):
                sent.memory()
        assert all((rows == number).all() for number, rows in enumerate(held))

    ferry.run_threads(2, body)


def test_combine_without_a_handle_weights_home_and_norm():
    def body(group):
        exchange = group.exchange(max_tokens=3, hidden=4, num_experts=2, top_k=2, dtype="float32")
        tokens, ids = torch.randn(3, 4), torch.tensor([[0, 1], [1, 0], [-1, 1]])
        weights = torch.rand(3, 2)
        rows = exchange.dispatch(tokens, ids, weights)
        out, home = torch.empty(3, 4), torch.zeros(3, 2)
        result = exchange.combine(rows.rows, dispatched={"tokens": tokens, "topk_ids": ids}, topk_weights=weights,
                                  row_weights=rows.weights, out=out, out_topk_weights=home)
        assert result is out
        assert torch.equal(home, torch.where(ids < 0, 0, weights))
        assert torch.allclose(out, tokens * home.sum(1, keepdim=True))
        y, rstd, residual = torch.empty(3, 4), torch.empty(3), torch.randn(3, 4)
        z = exchange.combine(rows.rows, rows.handle, weights, residual=residual, gamma=torch.ones(4), y=y, rstd=rstd)
        assert torch.allclose(z, out + residual)
        assert torch.allclose(y, z / (z.pow(2).mean(1, keepdim=True) + 1e-6).sqrt(), atol=1e-5)
        assert torch.allclose(rstd, 1 / (z.pow(2).mean(1) + 1e-6).sqrt())

    ferry.run_threads(2, body)


GOOD = {"tokens": torch.zeros(2, 4), "topk_ids": torch.zeros(2, 2, dtype=torch.int64)}
REFUSED = {
    "no tensor": ({"tokens": "text"}, "tokens is a str"),
    "dtype of tokens": ({"tokens": torch.zeros(2, 4, dtype=torch.float64)}, r"tokens is float64 \[2, 4\]"),
    "another row type": ({"tokens": torch.zeros(2, 4).half()}, "tokens are fp16, the exchange is fp32"),
    "shape": ({"tokens": torch.zeros(8)}, r"tokens is float32 \[8\], need shape \[any, any\]"),
    "hidden": ({"tokens": torch.zeros(2, 5)}, "5"),
    "device": ({"tokens": torch.zeros(2, 4, device="meta")}, "tokens is on device meta, need cpu"),
    "gradient": ({"tokens": torch.zeros(2, 4, requires_grad=True)}, "use ferry.torch"),
    "columns apart": ({"tokens": torch.zeros(4, 2).t()}, "contiguous"),
    "ids not contiguous": ({"topk_ids": torch.zeros(2, 2, dtype=torch.int64).t()[:, ::2]}, "need a contiguous|top"),
    "ids of a type": ({"topk_ids": torch.zeros(2, 2)}, "topk_ids is float32"),
    "an id too large": ({"topk_ids": torch.full((2, 2), 4)}, "4"),
    "too many tokens": ({"tokens": torch.zeros(3, 4), "topk_ids": torch.zeros(3, 2, dtype=torch.int64)}, "3"),
    "weights of a shape": ({"topk_weights": torch.zeros(2, 3)}, r"need shape \[2, 2\]"),
    "mask of a type": ({"token_mask": torch.zeros(2)}, "need bool or uint8"),
    "handle of a type": ({"handle": 3}, "handle is a int, need a ferry.Handle"),
    "deadline": ({"deadline": -1.0}, "deadline is -1"),
    "a pending sign": ({"tokens": torch._neg_view(torch.zeros(2, 4))}, "tokens is a negated view"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_one_rank_gives_wrong_is_an_error_on_all_and_the_next_call_works(case):
    change, message = REFUSED[case]

    def body(group):
        exchange = group.exchange(max_tokens=2, hidden=4, num_experts=4, top_k=2, dtype="float32")
        wrong = group.rank == 1
        with pytest.raises(ferry.InvalidArgument if wrong else ferry.PeerRejected, match=message) as caught:
            exchange.dispatch(**{**GOOD, **(change if wrong else {})})
        assert caught.value.group_usable and caught.value.culprit in (1, None)
        return exchange.dispatch(**GOOD).num_rows

    assert sum(ferry.run_threads(2, body, deadline=20.0)) == 8


REFUSED_COMBINES = {
    "rows of a type": ({"expert_rows": torch.zeros(4, 4, dtype=torch.int32)}, "expert_rows is int32"),
    "number of rows": ({"expert_rows": torch.zeros(5, 4)}, "5"),
    "no handle": ({"handle": None}, "needs a handle"),
    "out of a shape": ({"out": torch.zeros(2, 3)}, r"out is float32 \[2, 3\], need shape \[2, 4\]"),
    "bias of a type": ({"bias": torch.zeros(2, 4).half()}, "bias is float16"),
    "three biases": ({"bias": [torch.zeros(2, 4)] * 3}, "3 tensors, need at most 2"),
    "partials": ({"partials": "some"}, 'partials is "some"'),
    "no epsilon": ({"epsilon": None}, "wrong Python type"),
    "dispatched": ({"dispatched": {"token": 1}}, 'dispatched has "token"'),
}


@pytest.mark.parametrize("case", REFUSED_COMBINES)
def test_a_combine_refused_on_one_rank_is_refused_on_all(case):
    change, message = REFUSED_COMBINES[case]

    def body(group):
        exchange = group.exchange(max_tokens=2, hidden=4, num_experts=2, top_k=2, dtype="float32")
        rows = exchange.dispatch(torch.ones(2, 4), torch.tensor([[0, 1], [1, 0]]))
        good = {"expert_rows": rows.rows, "handle": rows.handle}
        wrong = group.rank == 1
        with pytest.raises(ferry.InvalidArgument if wrong else ferry.PeerRejected, match=message):
            exchange.combine(**{**good, **(change if wrong else {})})
        return exchange.combine(**good).unique().tolist()

    assert ferry.run_threads(2, body, deadline=20.0) == [[2.0]] * 2


@pytest.mark.parametrize("config, message", [
    ({"layout": "columns"}, 'layout: "columns", need rank_major, expert_major, padded'),
    ({"hiden": 4}, "no setting \"hiden\"; did you mean 'hidden'"),
    ({"colour": 4}, 'no setting "colour"; there are algorithm, .*zero_gaps'),
    ({"hidden": "wide"}, "hidden is 'wide'"),
    ({"dtype": "complex64"}, "complex64"),
    ({"top_k": 99}, "top_k"),
    ({"token_ranks": [0, 2]}, r"token_ranks\[1\] is 2, need distinct ranks in \[0, 2\)"),
    ({"expert_ranks": [1], "expert_rank": [1, 0, 1, 1]}, r"expert_rank\[1\] is 0, .*expert_ranks \[1\]"),
])
def test_settings_that_are_refused_are_named(config, message):
    with pytest.raises(ferry.InvalidArgument, match=message):
        ferry.window_bytes(2, **{"max_tokens": 4, "hidden": 4, "num_experts": 4, "top_k": 2, **config})


@pytest.mark.parametrize("missing", ["max_tokens", "hidden", "num_experts", "top_k"])
def test_a_setting_that_is_missing_is_named(missing):
    settings = {"max_tokens": 4, "hidden": 4, "num_experts": 4, "top_k": 2}
    del settings[missing]
    with pytest.raises(ferry.InvalidArgument, match=f"an exchange needs {missing}, which is not given"):
        ferry.window_bytes(2, **settings)


def test_the_types_of_settings_are_those_that_there_are():
    assert set(ferry.Settings.__annotations__) == set(
        ferry.run_threads(1, lambda group: group.exchange(max_tokens=4, hidden=4, num_experts=4, top_k=2).config)[0])


@pytest.mark.parametrize("config, error, message", [
    ({"hiden": 4}, ferry.InvalidArgument, 'no setting "hiden"'),
    ({"hidden": "wide"}, ferry.InvalidArgument, "hidden is 'wide'"),
    ({"top_k": 99}, ferry.InvalidArgument, "top_k is 99"),
    ({"hidden": 8}, ferry.Mismatch, "different exchanges: hidden is 4 and 8, max_output_row_bytes is 16 and 32$"),
])
def test_an_exchange_that_one_rank_makes_otherwise_is_refused_on_all(config, error, message):
    good = {"max_tokens": 4, "hidden": 4, "num_experts": 4, "top_k": 2}

    def body(group):
        odd = group.rank == 1
        wanted = error if odd or error is ferry.Mismatch else ferry.PeerRejected
        with pytest.raises(wanted, match=message) as caught:
            group.exchange(**{**good, **(config if odd else {})})
        assert caught.value.culprit == 1 and caught.value.group_usable
        return group.exchange(**good).config["hidden"]

    assert ferry.run_threads(3, body, deadline=20.0) == [4] * 3


def test_settings_are_read_back():
    def body(group):
        exchange = group.exchange(max_tokens=4, hidden=8, num_experts=4, top_k=2, dtype=torch.float16, zero_gaps=True)
        assert exchange.window_bytes.worst == ferry.window_bytes(1, **exchange.config).worst
        return exchange.config

    config = ferry.run_threads(1, body)[0]
    assert (config["dtype"], config["layout"], config["zero_gaps"], config["depth"]) == (
        "float16", "expert_major", True, 2)


def test_an_operation_that_is_dropped_is_received_by_the_next_call():
    def body(group):
        exchange = group.exchange(max_tokens=8, hidden=64, num_experts=2, top_k=1, dtype="float32")
        ids = torch.tensor([[0], [1]] * 4)
        for i in range(6):  # more than can be in flight
            tokens = torch.full((8, 64), float(i))
            exchange.dispatch_send(tokens, ids)
            rows = exchange.dispatch(tokens, ids)
            exchange.combine_send(rows.rows.clone(), rows.handle)  # writes to a result that no caller holds
            assert torch.equal(exchange.combine(rows.rows, rows.handle), tokens)
        return exchange.stats().combines

    assert ferry.run_threads(2, body, deadline=20.0) == [12, 12]


def test_an_exchange_may_be_closed_and_watched_while_it_waits():
    import threading

    def body(group):
        exchange = group.exchange(max_tokens=1, hidden=8, num_experts=2, top_k=1, dtype="float32")
        tokens, ids = torch.ones(1, 8), torch.zeros(1, 1, dtype=torch.int64)
        exchange.dispatch(tokens, ids)
        if group.rank == 1:
            assert closed.wait(20)
            return exchange.dispatch(tokens, ids).num_rows

        def watch():
            time.sleep(0.2)
            seen.append(exchange.stats().dispatches)
            exchange.close()
            closed.set()

        thread = threading.Thread(target=watch)
        thread.start()
        num_rows = exchange.dispatch(tokens, ids).num_rows
        thread.join()
        return num_rows

    seen, closed = [], threading.Event()
    assert ferry.run_threads(2, body, deadline=30.0) == [2, 0] and seen == [1]


NO_CALLS = [
    (lambda exchange, x, ids: exchange.dispatch(x, topk_id=ids),
     r"dispatch\(\) has no argument 'topk_id'; did you mean 'topk_ids'\?"),
    (lambda exchange, x, ids: exchange.dispatch(), r"dispatch\(\) needs 'tokens'"),
    (lambda exchange, x, ids: exchange.dispatch_send(x, ids, None, None),
     r"dispatch_send\(\) takes at most 3 arguments without a keyword, got 4"),
    (lambda exchange, x, ids: exchange.dispatch(x, ids, topk_ids=ids), r"dispatch\(\) got 'topk_ids' twice"),
]


@pytest.mark.parametrize("call, message", NO_CALLS)
def test_what_is_no_call_for_python_is_refused_on_all_ranks(call, message):
    """The other ranks do not wait, nor pair the calls of this rank off by one."""

    def body(group):
        exchange = group.exchange(max_tokens=2, hidden=4, num_experts=2, top_k=1, dtype="float32")
        x, ids = np.ones((2, 4), np.float32), np.zeros((2, 1), np.int64)
        wrong = group.rank == 1
        with pytest.raises(TypeError if wrong else ferry.PeerRejected, match=message):
            call(exchange, x, ids) if wrong else exchange.dispatch(x, ids)
        received = exchange.dispatch(x, ids)
        with pytest.raises(TypeError if wrong else ferry.PeerRejected, match=r"combine\(\) has no argument 'weights'"):
            exchange.combine(received.rows, weights=ids) if wrong else exchange.combine(received.rows, received.handle)
        assert (exchange.combine(received.rows, received.handle) == x).all()

    ferry.run_threads(2, body, deadline=5.0)


def test_an_exchange_that_one_rank_refuses_is_made_by_none_and_the_next_one_works():
    def body(group):
        for wrong in ({"top_k": 99}, {"layout": "columns"}, {"hidden": -1}):
            settings = dict(max_tokens=2, hidden=4, num_experts=4, top_k=2, dtype="float32")
            error = ferry.InvalidArgument if group.rank == 1 else ferry.PeerRejected
            with pytest.raises(error, match=next(iter(wrong))):
                group.exchange(**{**settings, **(wrong if group.rank == 1 else {})})
        return group.exchange(**settings).dispatch(**GOOD).num_rows

    assert sum(ferry.run_threads(3, body, deadline=20.0)) == 12


def test_bits_of_bfloat16_are_uint16():
    def body(group):
        exchange = group.exchange(max_tokens=2, hidden=2, num_experts=2, top_k=1)
        tokens = np.array([[1, 2], [3, 4]], ml_dtypes.bfloat16)
        rows = exchange.dispatch(tokens.view(np.uint16), np.array([[0], [1]]))
        out = np.empty((2, 2), np.uint16)
        assert exchange.combine(rows.rows, rows.handle, out=out) is out
        return out.view(ml_dtypes.bfloat16).tolist() == tokens.tolist()

    assert all(ferry.run_threads(2, body))


def test_two_threads_in_one_exchange_are_told():
    import threading

    def body(group):
        exchange = group.exchange(max_tokens=4, hidden=8, num_experts=2, top_k=1, dtype="float32")
        ids = torch.zeros(4, 1, dtype=torch.int64)
        if group.rank == 1:
            go.wait(20)
            return exchange.dispatch(torch.ones(4, 8), ids).num_rows
        other = threading.Thread(target=lambda: answers.append(exchange.dispatch(torch.ones(4, 8), ids).num_rows))
        other.start()
        while not answers:
            try:
                exchange.stats()
                exchange.empty(1)
            except ferry.InvalidArgument as error:
                assert "one caller at a time" in str(error)
                break
        go.set()
        other.join()
        return answers[0]

    go, answers = threading.Event(), []
    assert ferry.run_threads(2, body, deadline=30.0) == [8, 0]


def test_the_dtype_of_an_argument_is_named_as_it_was_given():
    """uint16 rows are the bits of bfloat16; other arguments are not rows."""
    def body(group):
        exchange = group.exchange(max_tokens=4, hidden=8, num_experts=2, top_k=1, dtype="bfloat16")
        tokens, ids = np.full((4, 8), 0x3F80, np.uint16), np.zeros((4, 1), np.int64)
        with pytest.raises(ferry.InvalidArgument, match=r"topk_ids is uint16 \[4, 1\], need int64 or int32"):
            exchange.dispatch(tokens, ids.astype(np.uint16))
        with pytest.raises(ferry.InvalidArgument, match=r"topk_weights is uint16 \[4, 1\], need float32"):
            exchange.dispatch(tokens, ids, np.ones((4, 1), np.uint16))
        assert exchange.dispatch(tokens, ids).num_rows == 4

    ferry.run_threads(1, body)
