"""ferry.cuda against ferry.Exchange, bit for bit: ranks are threads, each with a stream, or processes, on one GPU.

Tests that need no GPU run everywhere; the others report why they are skipped.
"""

import os
import signal
import time

import pytest

# Ranks of one process wait for each other in kernels. No kernel may be loaded late: the loader waits for kernels
# that run.
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
import ferry.cuda  # noqa: E402
import ferry.torch  # noqa: E402
from ferry import _core  # noqa: E402
from ferry.torch.rows import gaps_of  # noqa: E402

TOP_K = 3
TOKENS = {1: (5,), 2: (6, 0), 4: (3, 0, 9, 1)}  # of each rank
LAYOUTS = ["rank_major", "expert_major", "padded"]
DEVICE = "cuda:0"
ABSENT = None
if not _core.cuda_built():
    ABSENT = "this ferry was built without CUDA"
elif _core.cuda_num_devices() == 0:
    ABSENT = "this machine has no CUDA device"
elif not torch.cuda.is_available():
    ABSENT = f"torch {torch.__version__} cannot use the CUDA device"
needs_gpu = pytest.mark.skipif(ABSENT is not None, reason=f"needs a GPU: {ABSENT}")


# ---- everywhere


@pytest.mark.skipif(ABSENT is None, reason="there is a GPU")
def test_an_exchange_says_what_it_lacks():
    with pytest.raises(ferry.Error, match="built without CUDA|has 0 CUDA devices|cannot use the CUDA devices"):
        ferry.run_threads(2, cuda_exchange)


def test_a_setting_that_does_not_exist_is_refused_by_name():
    with pytest.raises(ferry.Error, match="hiden|built without CUDA|cannot use the CUDA devices"):
        ferry.run_threads(2, lambda group: ferry.cuda.Exchange(group, max_tokens=4, hiden=8, num_experts=4, top_k=2))


def gaps_of_host(group, layout):
    exchange = group.exchange(max_tokens=9, hidden=4, num_experts=5, top_k=TOP_K, dtype="float32", layout=layout,
                              expert_alignment=4, zero_gaps=True)  # fmt: skip
    tokens, ids, _ = inputs(group, 4, 5, torch.float32)
    received = exchange.dispatch(tokens, ids)
    assert torch.equal(gaps_of(received.handle, received.num_rows), received.sources[:, 0] < 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_without_a_token_are_found_from_the_counts(layout):
    ferry.run_threads(4, gaps_of_host, layout)


# ---- inputs and comparisons of all ranks


def cuda_exchange(group, **more):
    settings = dict(max_tokens=9, hidden=77, num_experts=5, top_k=TOP_K, dtype="float32", zero_gaps=True)
    return ferry.cuda.Exchange(group, **dict(settings, **more))


def inputs(group, hidden, num_experts, dtype, seed=0):
    """Tokens, ids (some -1, some twice in a token) and weights of this rank. In float32 they are whole numbers, whose
    sums are exact in any order."""
    generator = torch.Generator().manual_seed(100 * seed + group.rank)
    count = TOKENS[group.size][group.rank]
    tokens = torch.randint(-8, 9, (count, hidden), generator=generator).to(dtype)
    if dtype != torch.float32:
        tokens = torch.randn(count, hidden, generator=generator).to(dtype)
    ids = torch.randint(-1, num_experts, (count, TOP_K), generator=generator)
    return tokens, ids, torch.randint(1, 9, (count, TOP_K), generator=generator) / 4


def there(*tensors):
    return [tensor.to(DEVICE) for tensor in tensors]


def same(ours, theirs, name):
    """Equal bits; the results of ferry.cuda are on the device."""
    assert (ours is None) == (theirs is None), name
    if ours is None:
        return
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
    ours, theirs = (tensor.contiguous().cpu().flatten().view(torch.uint8) for tensor in (ours, theirs))
    assert torch.equal(ours, theirs), name


def same_received(ours, theirs):
    assert ours.num_rows == theirs.num_rows
    for name in ("rows", "sources", "weights", "topk_ids", "scales") if theirs.num_rows > 0 else ():
        same(getattr(ours, name), getattr(theirs, name), name)
    for name in ("tokens_per_expert", "aligned_tokens_per_expert", "expert_offsets", "running_counts",
                 "running_rows_per_rank"):  # fmt: skip
        same(getattr(ours.handle, name), getattr(theirs.handle, name), name)
    assert ours.handle.num_rows == theirs.handle.num_rows
    assert ours.handle.host_tokens_per_expert == theirs.handle.tokens_per_expert.tolist()


def settle(group):
    """Waits before device memory is freed: freeing waits for kernels of all ranks, and must not keep a rank from
    launching its own."""
    torch.cuda.current_stream().synchronize()
    group.barrier()


def on_stream(group, function, *args):
    """Runs a rank on a stream of its own."""
    with torch.cuda.stream(torch.cuda.Stream(DEVICE)):
        function(group, *args)
        settle(group)


def run(num_ranks, function, *args):
    torch.cuda.init()
    return ferry.run_threads(num_ranks, on_stream, function, *args, deadline=20)


# ---- the same as on the host


def compare(group, layout, dtype, num_experts, wire="none"):
    for hidden in (77, 256):
        settings = dict(hidden=hidden, dtype=dtype, num_experts=num_experts, layout=layout, wire=wire,
                        expert_alignment=4, max_output_row_bytes=4 * hidden, zero_gaps=True)  # fmt: skip
        compare_exchanges(group, settings)


def compare_exchanges(group, settings):
    ours, theirs = cuda_exchange(group, **settings), group.exchange(max_tokens=9, top_k=TOP_K, **settings)
    batches = [inputs(group, *map(settings.get, ("hidden", "num_experts", "dtype")), seed) for seed in range(5)]
    for seed, batch in enumerate(batches[:3]):  # reuses buffers
        compare_once(ours, theirs, batch, seed)
    compare_halves(ours, theirs, batches[3:])
    settle(group)


def compare_once(ours, theirs, given, seed):
    tokens, ids, weights = given
    hidden, rank_major = tokens.shape[1], theirs.config["layout"] == "rank_major"
    ids = ids.int() if seed == 1 else ids
    wide = torch.zeros(len(tokens), hidden + 3, dtype=tokens.dtype)
    wide[:, :hidden] = tokens
    a = ours.dispatch(wide.to(DEVICE)[:, :hidden], *there(ids, weights))
    b = theirs.dispatch(tokens, ids, weights)
    same_received(a, b)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(b.rows.shape, generator=generator).to(tokens.dtype)
    scalars = torch.randn(b.weights.shape, generator=generator)
    bias = [torch.randn(tokens.shape, generator=generator) for _ in range(2)]
    homes = torch.empty(weights.shape), torch.empty(weights.shape, device=DEVICE)
    applied = None if rank_major else weights
    expected = theirs.combine(rows, b.handle, applied, bias=bias, row_weights=scalars, out_topk_weights=homes[0],
                              out_dtype=torch.float32)  # fmt: skip
    out = ours.combine(rows.to(DEVICE), a.handle, None if rank_major else weights.to(DEVICE), bias=there(*bias),
                       row_weights=scalars.to(DEVICE), out_topk_weights=homes[1], out_dtype=torch.float32)  # fmt: skip
    same(out, expected, "combine")
    assert torch.equal(homes[1].cpu(), homes[0])
    again = ours.dispatch((-tokens).to(DEVICE), handle=a.handle)  # cached
    same_received(again, theirs.dispatch(-tokens, handle=b.handle))
    outputs = ours.outputs(a.num_rows, tokens.dtype)
    outputs.copy_(rows.view(outputs.shape))
    same(ours.combine(outputs, a.handle), theirs.combine(rows, b.handle), "combine in place")
    ours.finish()


def compare_halves(ours, theirs, batches):
    """The rows of one batch are sent while the outputs of the batch before are."""
    expected, previous, outs = [], None, []
    for tokens, ids, _ in batches:
        received = theirs.dispatch(tokens, ids)
        doubled = 2 * received.rows.float()
        expected.append(theirs.combine(doubled, received.handle))
        dispatching = ours.dispatch_send(*there(tokens, ids))
        outs += [] if previous is None else [previous.recv()]
        mine = dispatching.recv()
        same_received(mine, received)
        previous = ours.combine_send(2 * mine.rows.float(), mine.handle)
    outs.append(previous.recv())
    for out, each in zip(outs, expected):
        same(out, each, "combine by halves")
    ours.finish()


@needs_gpu
@pytest.mark.parametrize("num_ranks", TOKENS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_and_results_are_those_of_the_host(layout, dtype, num_ranks):
    run(num_ranks, compare, layout, dtype, 3 if num_ranks == 4 and dtype == torch.float32 else 5)


@needs_gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wire", ["fp8", "fp8_pow2", "fp8_ue8m0"])
def test_fp8_rows_and_scales_are_those_of_the_host(wire, layout):
    run(4, compare, layout, torch.bfloat16, 5, wire)


# ---- graphs


def captured(group, step):
    """A graph of step(), and the result of step(). Ranks take turns: the beginning of a capture waits for the whole
    device."""
    graph = torch.cuda.CUDAGraph()
    for turn in range(group.size):
        group.barrier()
        if turn == group.rank:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
                returned = step()
    group.barrier()
    return graph, returned


def replay(group, layout, cached):
    dtype = torch.bfloat16
    exchange = cuda_exchange(group, hidden=64, dtype=dtype, layout=layout)
    host = group.exchange(max_tokens=9, hidden=64, num_experts=5, top_k=TOP_K, dtype=dtype, layout=layout)
    tokens, ids, weights = there(*inputs(group, 64, 5, dtype))
    out = torch.empty_like(tokens)
    handle = exchange.dispatch(tokens, ids).handle if cached else None

    def step():
        routing = dict(handle=handle) if cached else dict(topk_ids=ids)
        received = exchange.dispatch(tokens, wait_for_counts=False, **routing)
        exchange.combine(2 * received.rows, received.handle, weights, out=out)
        return received

    step()
    settle(group)
    graph, kept = captured(group, step)
    for seed in (1, 2, 3):
        given = inputs(group, 64, 5, dtype, seed)
        new_ids = ids.cpu() if cached else given[1]
        tokens.copy_(given[0])
        ids.copy_(new_ids)
        weights.copy_(given[2])
        graph.replay()
        received = host.dispatch(given[0], new_ids)
        same(out, host.combine(2 * received.rows, received.handle, given[2]), f"replay {seed}")
        exchange.check()
    same(kept.handle.tokens_per_expert, received.handle.tokens_per_expert, "counts")
    settle(group)


@needs_gpu
@pytest.mark.parametrize("layout, cached", [("expert_major", True), ("padded", True), ("padded", False)])
def test_a_graph_replays_dispatch_and_combine(layout, cached):
    run(4, replay, layout, cached)


# ---- autograd


def gradients(group, exchange, weighted, device):
    """One layer whose only parameter multiplies every row, gaps too: out, and the gradients of its inputs."""
    tokens, ids, weights = (tensor.to(device) for tensor in inputs(group, 8, 5, torch.float32))
    factor, grad = torch.tensor(2.0, device=device), inputs(group, 8, 5, torch.float32, 1)[0].to(device)
    leaves = [leaf.requires_grad_() for leaf in (tokens, weights, factor)]
    travelling, applied = (None, weights) if weighted == "source" else (weights, None)
    for _ in range(2):  # the second pass over the same buffers, with old values in their gaps
        for leaf in leaves:
            leaf.grad = None
        received = ferry.torch.dispatch(exchange, tokens, ids, travelling)
        rows = received.rows * factor
        if weighted != "source":
            shares = received.weights if received.topk_ids is None else received.weights.sum(1)
            rows = rows.flatten(0, -2) * shares[:, None]
        out = ferry.torch.combine(exchange, rows, received.handle, applied)
        for _ in range(2):  # the rows of these calls overwrite those above
            exchange.dispatch(-tokens.detach(), ids)
        with torch.autograd.set_multithreading_enabled(False):  # ranks that are threads share the device
            out.backward(grad)
    return out.detach(), *(leaf.grad for leaf in leaves)


def compare_gradients(group, layout, weighted):
    settings = dict(hidden=8, layout=layout, expert_alignment=3, zero_gaps=False)
    exchange = cuda_exchange(group, **settings)
    ours = gradients(group, exchange, weighted, DEVICE)
    host = group.exchange(max_tokens=9, num_experts=5, top_k=TOP_K, dtype="float32", **settings)
    for a, b, name in zip(ours, gradients(group, host, weighted, "cpu"), ["out", "tokens", "weights", "factor"]):
        assert torch.equal(a.cpu(), b), name
    settle(group)


@needs_gpu
@pytest.mark.parametrize("num_ranks", [1, 4])
@pytest.mark.parametrize(
    "layout, weighted", [("expert_major", "source"), ("padded", "source"), *((each, "experts") for each in LAYOUTS)]
)
def test_gradients_are_those_of_the_host(layout, weighted, num_ranks):
    run(num_ranks, compare_gradients, layout, weighted)


def backward_in_torchs_thread(group):
    exchange = cuda_exchange(group, hidden=8)
    tokens, ids, _ = there(*inputs(group, 8, 5, torch.float32))
    rows = ferry.torch.dispatch(exchange, tokens.requires_grad_(), ids).rows
    with pytest.raises(ferry.InvalidArgument, match="set_multithreading_enabled"):
        rows.sum().backward()
    settle(group)


@needs_gpu
def test_a_backward_pass_that_would_wait_for_itself_is_refused():
    run(2, backward_in_torchs_thread)


# ---- errors


def refused(group, settings, spoil, errors, text):
    """One call in which rank 0 is wrong; `errors`: the errors of rank 0 and of the others. Then a call that
    succeeds."""
    exchange = cuda_exchange(group, **settings)
    tokens, ids, weights = inputs(group, 77, 5, torch.float32)
    given = there(tokens, ids, weights)
    expected = errors[min(group.rank, 1)]
    with pytest.raises(expected, match=text if expected is errors[0] else "rank 0"):
        exchange.dispatch(*spoil(*given) if group.rank == 0 else given)
    given[1].clamp_(max=0).masked_fill_(given[1] >= 0, group.rank)  # a row for each token and expert at most
    given[1][:, 1:] = -1
    given = [tensor[:2] for tensor in given]
    received = exchange.dispatch(*given)
    out = exchange.combine(received.rows, received.handle)
    assert torch.equal(out, given[0] * (given[1][:, :1] >= 0))
    exchange.finish()
    settle(group)


def bad_id(tokens, ids, weights):
    return tokens, ids.masked_fill(ids == ids[1, 2], 99), weights


@needs_gpu
@pytest.mark.parametrize(
    "settings, spoil, errors, text",
    [
        ({}, bad_id, (ferry.InvalidArgument, ferry.PeerRejected), r"id 99 .*outside \[-1, 5\)"),
        ({}, lambda tokens, *more: (tokens.cpu(), *more), (ferry.InvalidArgument, ferry.PeerRejected),
         "tokens is on device cpu, need cuda:0"),
        ({}, lambda tokens, ids, weights: (tokens, ids.float(), weights), (ferry.InvalidArgument, ferry.PeerRejected),
         "topk_ids is float32"),
        (dict(layout="padded", expert_capacity=2), lambda tokens, ids, weights: (tokens, ids * 0, weights),
         (ferry.Capacity, ferry.Capacity), "would receive 18 rows"),
    ],
    ids=["bad id", "host tensor", "wrong type", "capacity"],
)  # fmt: skip
def test_a_refused_call_is_told_to_all_and_the_next_one_works(settings, spoil, errors, text):
    run(2, refused, settings, spoil, errors, text)


def closed(group):
    exchange = cuda_exchange(group)
    given = there(*inputs(group, 77, 5, torch.float32))
    rows = exchange.dispatch(*given).rows
    before = rows.clone()
    exchange.close()
    with pytest.raises(ferry.Closed):
        exchange.dispatch(*given)
    assert torch.equal(rows, before)  # the tensor keeps the window
    settle(group)


@needs_gpu
def test_tensors_outlive_a_closed_exchange():
    run(2, closed)


# ---- processes


def in_a_process(group, killed=False):
    if not killed:
        return on_stream(group, compare, "expert_major", torch.bfloat16, 5)
    exchange = cuda_exchange(group)
    tokens, ids, _ = there(*inputs(group, 77, 5, torch.float32))
    exchange.dispatch(tokens, ids)
    settle(group)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(ferry.PeerLost) as caught:
        exchange.dispatch(tokens, ids)
    raise KeyError(f"{caught.value} (culprit {caught.value.culprit}), seconds: {time.monotonic() - begin:.0f}")


@pytest.fixture
def late_loading(monkeypatch):
    """Lazy loading is faster, and safe here: a process waits only for kernels of its own."""
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")


@needs_gpu
def test_processes_share_a_gpu(late_loading):
    ferry.spawn(2, in_a_process, deadline=30, method="spawn")


@needs_gpu
def test_a_killed_process_is_named_long_before_the_deadline(late_loading):
    with pytest.raises(KeyError, match=r"rank 1 died.*culprit 1\), seconds: [0-3]\b"):
        ferry.spawn(2, in_a_process, True, deadline=30, method="spawn")
