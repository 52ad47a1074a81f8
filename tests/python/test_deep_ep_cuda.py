"""ferry.deep_ep.Buffer with cuda tensors against itself with CPU tensors, bit for bit: ranks are threads, each with a
stream, or processes, on one GPU.

Tests that need no GPU run everywhere; the others report why they are skipped.
"""

import gc
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

import ferry  # noqa: E402
from ferry import _core  # noqa: E402
from ferry.conformance.deep_ep_oracle import Inputs, same_bits  # noqa: E402
from ferry.conformance.low_latency_case import MODES, Case  # noqa: E402
from ferry.deep_ep import Buffer, device_layout, handles, layout, normal  # noqa: E402
from ferry.deep_ep.device import Device  # noqa: E402
from ferry.deep_ep.device_low_latency import DeviceLowLatency  # noqa: E402
from test_cuda import DEVICE, captured, late_loading, needs_gpu, on_stream, run, same, settle  # noqa: E402, F401

RANKS = [1, 2, 4]
TOKENS = [9, 0, 23, 5]  # by rank


# ---- everywhere: the arithmetic that runs on a device is torch's, of any device


@pytest.mark.parametrize("num_ranks, num_experts", [(1, 4), (3, 8), (4, 4), (4, 2), (8, 24)])
def test_ranks_of_tokens_are_those_of_the_host(num_ranks, num_experts):
    ids = torch.randint(-1, num_experts, (13, 3), generator=torch.Generator().manual_seed(num_ranks))
    for given in (ids, ids.int(), ids[:0]):
        *want, known = layout.token_ranks(given, num_experts, num_ranks)
        assert known
        for ours, theirs in zip(device_layout.token_ranks(given, num_experts, num_ranks), want):
            assert same_bits(ours, theirs)
    strange = torch.tensor([[num_experts, -2, 0]])
    for ours, theirs in zip(device_layout.token_ranks(strange, num_experts, num_ranks),
                            device_layout.token_ranks(torch.tensor([[-1, -1, 0]]), num_experts, num_ranks)):
        assert same_bits(ours, theirs)


def matrices(group, num_channels):
    counts = torch.tensor(TOKENS)
    ids = torch.randint(-1, 8, (TOKENS[group.rank], 3), generator=torch.Generator().manual_seed(group.rank))
    mask = layout.token_ranks(ids, 8, group.size)[0]
    made = [torch.full(shape, 77, dtype=torch.int32) for shape in ((group.size, num_channels), mask.shape)]
    want = [each.clone() for each in made]
    device_layout.fill_sent(mask, *made)
    _core.fill_sent(mask, *want)
    exchange = group.exchange(max_tokens=23, hidden=4, num_experts=8, top_k=3, dtype="float32", layout="rank_major")
    received = exchange.dispatch(torch.zeros(len(ids), 4), ids)
    shapes = (group.size, num_channels), (received.num_rows + 2,)
    made += [torch.full(shape, 77, dtype=torch.int32) for shape in shapes]
    want += [torch.full(shape, 77, dtype=torch.int32) for shape in shapes]
    each = torch.tensor([device_layout.tokens_per_channel(int(count), num_channels) for count in counts[: group.size]])
    device_layout.fill_received(received.sources, each, *made[2:])
    _core.fill_received(received, want[2], None, want[3])
    for ours, theirs in zip(made, want):
        assert same_bits(ours, theirs)


@pytest.mark.parametrize("num_channels", [1, 4, 10])
def test_channel_matrices_are_those_of_the_host(num_channels):
    ferry.run_threads(4, matrices, num_channels)


def padded(group, num_experts):
    case = Case(group.size, num_experts=num_experts, seed=3)
    x, ids, _ = case.inputs(group.rank)
    _, counts, (source_tokens, layout_range, *_), *_ = Buffer(group).low_latency_dispatch(
        x, ids, case.max_tokens, case.num_experts, use_fp8=False)
    exchange = group.exchange(max_tokens=case.max_tokens, hidden=case.hidden, num_experts=case.num_experts, top_k=2,
                              layout="padded", expert_capacity=case.capacity)
    received = exchange.dispatch(x, ids)
    made = [torch.full_like(tensor, 77) for tensor in (counts, layout_range, source_tokens)]
    device_layout.fill_padded(received.handle.running_counts.flatten(), received.sources.view(-1, 3), *made)
    for ours, theirs in zip(made, (counts, layout_range, source_tokens)):
        assert same_bits(ours, theirs)


@pytest.mark.parametrize("num_experts", [9, 2])
def test_low_latency_handles_are_those_of_the_host(num_experts):
    ferry.run_threads(3, padded, num_experts)


class Something:
    made_by = "a test"
    owner = handles.Owner("Buffer", SimpleNamespace(view=(1, (0,))))


def test_any_tensor_of_a_handle_leads_to_its_state_as_long_as_one_is_left():
    state = Something()
    mask, empty, rows = handles.allocate_on(torch.device("cpu"), state, (np.bool_, (3, 2)), (np.int32, (0, 4)),
                                            (np.int64, (5,)))
    mask.copy_(torch.tensor([[True, False], [False, True], [True, True]]))
    view, expected = rows[2:3].view(1, 1), mask.clone()
    for left in ([mask], [empty], (None, view), [rows, 3]):
        assert handles.find(left, Something).state is state
    with pytest.raises(ferry.InvalidArgument, match="of a test, need one of Buffer.dispatch"):
        handles.find([mask], normal.State)
    address = rows.untyped_storage().data_ptr()
    del mask, empty, rows, left
    gc.collect()
    assert torch.equal(handles.find([view], Something).first(torch.bool, (3, 2)), expected)
    del view
    gc.collect()
    assert address not in handles._alive


# ---- everywhere: refusals


def on_cuda(group, **options):
    """A buffer that works on a device; no test of this section touches the device."""
    buffer = Buffer(group, **options)
    buffer.device = Device(group, torch.device("cuda", 0))
    buffer.device_low_latency = DeviceLowLatency(buffer.device, buffer._owner)
    buffer._decided = True
    return buffer


def send(buffer, x, topk_idx, num_experts, **more):
    per_rank, _, per_expert, mask, _ = buffer.get_dispatch_layout(topk_idx, num_experts)
    return buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=mask, num_tokens_per_expert=per_expert,
                           topk_idx=topk_idx, **more)


def tensors_of_the_cpu(group):
    buffer, inputs, rank = on_cuda(group), Inputs(1, TOKENS[: group.size]), group.rank
    x, ids, weights = inputs.x[rank], inputs.topk_idx[rank], inputs.topk_weights[rank]
    with pytest.raises(ferry.InvalidArgument, match="x is bfloat16 .* on cpu, need .* on cuda:0"):
        send(buffer, x, ids, 8, topk_weights=weights)
    host = Buffer(group)
    *_, handle, _ = send(host, x, ids, 8, topk_weights=weights)
    with pytest.raises(ferry.InvalidArgument, match="of Buffer.dispatch, need one of Buffer.dispatch of cuda tensors"):
        buffer.combine(x, handle)
    with pytest.raises(ferry.InvalidArgument, match="x is bfloat16 .* on cpu, need .* on cuda:0"):
        buffer.low_latency_dispatch(x, ids, 23, 8)
    with pytest.raises(ferry.InvalidArgument, match="use_ue8m0 needs round_scale"):
        buffer.low_latency_dispatch(x, ids, 23, 8, use_ue8m0=True)
    group.barrier()


def test_a_buffer_of_a_device_takes_no_tensors_of_the_cpu():
    ferry.run_threads(2, tensors_of_the_cpu, deadline=20)


def one_is_wrong(group):
    """The exchange in which ranks agree: the call of rank 0 is refused there."""
    buffer = on_cuda(group)
    with pytest.raises(ferry.InvalidArgument if group.rank == 0 else ferry.PeerRejected, match="x is|rank 0 refused"):
        if group.rank == 0:
            buffer.dispatch(None)
        else:
            buffer.device.meet(None, 0, (("device", "cuda"),))


def test_a_refusal_is_told_where_ranks_meet():
    ferry.run_threads(3, one_is_wrong, deadline=20)


def several_nodes(group):
    buffer, zeros = on_cuda(group), torch.zeros(2, 3)
    with pytest.raises(ferry.InvalidArgument, match="cuda tensors are for dispatch among ranks of one node"):
        buffer.internode_dispatch(zeros)


def test_nodes_are_refused():
    ferry.run_threads(2, several_nodes, deadline=20)


def masks(group):
    buffer = on_cuda(group, enable_shrink=True)
    with pytest.raises(ferry.InvalidArgument, match="cuda:0: ranks with cuda tensors cannot be left out"):
        buffer.low_latency_update_mask_buffer(1, True)


def test_masks_are_refused():
    ferry.run_threads(2, masks, deadline=20)


def test_sm90_kernels_are_there_when_ferry_was_built_with_cuda():
    assert Buffer.is_sm90_compiled() is _core.cuda_built()


# ---- on a GPU: normal kernels


def there(value):
    """Tensors, also in tuples, on the device; other values unchanged."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(there, value))
    return value.to(DEVICE) if torch.is_tensor(value) else value


def all_same(ours, theirs, name):
    """Equal bits of tensors in tuples, and equal values of everything else."""
    if isinstance(theirs, (tuple, list)):
        assert type(ours) is type(theirs) and len(ours) == len(theirs), name
        for index, (a, b) in enumerate(zip(ours, theirs)):
            all_same(a, b, f"{name}[{index}]")
    elif torch.is_tensor(theirs):
        assert ours.device == torch.device(DEVICE), name
        same(ours, theirs, name)
    else:
        assert ours == theirs, name


class Both:
    """A buffer on the device beside one on the CPU: the same calls with the same arguments, and the same results."""

    def __init__(self, group):
        self.ours, self.theirs = Buffer(group), Buffer(group)

    def layout(self, topk_idx, num_experts):
        ours, theirs = (buffer.get_dispatch_layout(ids, num_experts)
                        for buffer, ids in ((self.ours, there(topk_idx)), (self.theirs, topk_idx)))
        all_same(ours[:4], theirs[:4], "layout")
        return ours, theirs

    def dispatch(self, x, topk_idx, num_experts, weights=None, **more):
        results = []
        for buffer, given, made in zip((self.ours, self.theirs), (there, lambda value: value),
                                       self.layout(topk_idx, num_experts)):
            per_rank, _, per_expert, mask, _ = made
            ids = None if weights is None else given(topk_idx)
            results.append(buffer.dispatch(given(x), None, per_rank, None, mask, per_expert, ids, given(weights),
                                           **more))
        ours, theirs = results
        ours[-1].current_stream_wait()
        num_rows = int(theirs[4][0][-1, self.ours.rank])
        all_same(cut(ours[0], num_rows), cut(theirs[0], num_rows), "recv_x")
        all_same(ours[1:5], theirs[1:5], "dispatch")
        return ours, theirs

    def cached(self, x, handles_of, num_rows):
        ours = self.ours.dispatch(there(x), handle=handles_of[0])
        theirs = self.theirs.dispatch(x, handle=handles_of[1])
        all_same(cut(ours[0], num_rows), cut(theirs[0], num_rows), "cached recv_x")
        assert ours[1:5] == (None,) * 4

    def combine(self, x, handles_of, topk_weights=None, bias=None):
        ours = self.ours.combine(there(x), handles_of[0], there(topk_weights), there(bias))
        theirs = self.theirs.combine(x, handles_of[1], topk_weights, bias)
        ours[-1].current_stream_wait()
        all_same(ours[:2], theirs[:2], "combine")


def cut(rows, num_rows):
    return type(rows)(part[:num_rows] for part in rows) if isinstance(rows, tuple) else rows[:num_rows]


def normal_calls(group, shape):
    inputs = Inputs(group.size, TOKENS[: group.size], **shape)
    rank, both = group.rank, Both(group)
    x, ids, weights = inputs.x[rank], inputs.topk_idx[rank], inputs.topk_weights[rank]
    ours, theirs = both.dispatch(x, ids, inputs.num_experts, weights, expert_alignment=4)
    first, kept = ours[0], ours[0].clone()
    two, rows = (ours[4], theirs[4]), len(kept)
    outputs = (theirs[0].float() * 0.37).to(x.dtype)
    bias = [torch.randn(x.shape, generator=torch.Generator().manual_seed(rank)).to(x.dtype) for _ in range(2)]
    for given in (None, bias[0], (None, bias[1]), tuple(bias)):
        both.combine(outputs, two, theirs[2], given)
    both.combine(outputs, two)
    both.combine(outputs, two, torch.ones(rows, 1))  # weights of another width
    both.cached(-x, two, rows)
    for _ in range(2):  # a gradient of another type: routed anew, and then not
        both.cached(x.float(), two, rows)
    plain = both.dispatch(x, ids, inputs.num_experts)  # without ids
    both.combine(outputs, (plain[0][4], plain[1][4]))
    most = sum(inputs.num_tokens) + 3
    padded = both.dispatch(x, ids.int(), inputs.num_experts, weights, num_worst_tokens=most)
    wide = torch.zeros(most, x.shape[1], dtype=x.dtype)
    wide[:rows] = outputs
    both.combine(wide, (padded[0][4], padded[1][4]), padded[1][2])
    assert torch.equal(first, kept)  # belongs to the caller
    settle(group)


@needs_gpu
@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize("shape", [dict(), dict(num_experts=11, top_k=4, duplicates=True, hidden=77)])
def test_dispatch_and_combine(num_ranks, shape):
    run(num_ranks, normal_calls, shape)


def quantised(group, scales_dtype):
    inputs = Inputs(11, TOKENS[: group.size], hidden=256, num_experts=6, top_k=4)
    rank, both = group.rank, Both(group)
    x = inputs.x[rank].float().clamp(-4, 4).to(torch.float8_e4m3fn)
    scales = torch.arange(3 * len(x), dtype=torch.int32).view(3, len(x)).T.view(scales_dtype)  # column-major
    ids, weights = inputs.topk_idx[rank], inputs.topk_weights[rank]
    ours, theirs = both.dispatch((x, scales), ids, 6, weights)
    two, rows = (ours[4], theirs[4]), len(theirs[0][0])
    assert ours[0][1].is_contiguous()
    both.combine(inputs.received(rank, inputs.x), two, theirs[2])
    both.cached((x, scales), two, rows)
    both.cached(inputs.x[rank], two, rows)
    both.dispatch(x, ids, 6, weights)  # without scales
    settle(group)


@needs_gpu
@pytest.mark.parametrize("scales_dtype", [torch.float32, torch.int32])
def test_quantised_rows(scales_dtype):
    run(2, quantised, scales_dtype)


def growing(group):
    both = Both(group)
    for seed, tokens in enumerate(([1, 2], [9, 0], [0, 0], [40, 3])):
        inputs = Inputs(seed, tokens)
        x, ids, weights = (of[group.rank] for of in (inputs.x, inputs.topk_idx, inputs.topk_weights))
        ours, theirs = both.dispatch(x, ids, inputs.num_experts, weights)
        both.combine(theirs[0], (ours[4], theirs[4]))
    settle(group)


@needs_gpu
def test_any_number_of_tokens_at_any_time():
    run(2, growing)


# ---- on a GPU: low latency


def received_same(ours, theirs, capacity):
    """Handles, counts, and the rows and scales that count."""
    all_same(ours[1:3], theirs[1:3], "counts and handle")
    pairs = [(ours[0], theirs[0])] if torch.is_tensor(theirs[0]) else list(zip(ours[0], theirs[0]))
    for a, b in pairs:
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        for local, count in enumerate(theirs[1].tolist()):
            part, expected = (rows[local, :count].clone(memory_format=torch.contiguous_format) for rows in (a, b))
            same(part, expected, f"rows of local expert {local}")
    assert pairs[0][0].is_contiguous()
    for a, b in pairs[1:]:
        assert a.stride(1) == 1 and a.stride(2) == -(-capacity // 4) * 4


def low_latency(group, mode, hooks):
    case = Case(group.size, max_tokens=7, seed=group.size, num_experts=2 * group.size + 1)
    ours, theirs = Buffer(group), Buffer(group)
    x, ids, weights = case.inputs(group.rank)
    num_local = len(case.my_experts(group.rank))
    stats = [torch.zeros(num_local, dtype=torch.int32) for _ in range(2)]
    stats[0] = stats[0].to(DEVICE)
    for turn in range(3):
        options = dict(MODES[mode], return_recv_hook=hooks, async_finish=not hooks)
        a = ours.low_latency_dispatch(*there((x, ids)), case.max_tokens, case.num_experts, stats[0], **options)
        b = theirs.low_latency_dispatch(x, ids, case.max_tokens, case.num_experts, stats[1], **options)
        for received in (a, b):
            received[4]() if hooks else received[3].current_stream_wait()
        received_same(a, b, case.capacity)
        same(stats[0], stats[1], "cumulative_local_expert_recv_stats")
        outputs = torch.randn(num_local, case.capacity, case.hidden, generator=torch.Generator().manual_seed(turn)) \
            .to(x.dtype)
        chosen = ids.clone()
        chosen[:, :turn] = -1  # combine adds fewer rows than were sent
        want = theirs.low_latency_combine(outputs, chosen, weights, b[2])[0]
        out, zero_copy = torch.full(x.shape, float("nan"), dtype=x.dtype, device=DEVICE), turn == 1
        given = outputs.to(DEVICE)
        if zero_copy:
            ours.get_next_low_latency_combine_buffer(a[2]).copy_(given)
        got, _, hook = ours.low_latency_combine(given, *there((chosen, weights)), a[2], zero_copy=zero_copy, out=out,
                                                return_recv_hook=hooks)
        if not zero_copy:
            given.fill_(float("nan"))  # belongs to the caller again
        if hooks:
            hook()
            hook()
        assert got is out
        same(out, want, f"combine {turn}")
    settle(group)


@needs_gpu
@pytest.mark.parametrize("num_ranks, mode, hooks", [(1, "bf16", False), (2, "fp8", True), (4, "bf16", True),
                                                    (4, "pow2", False), (4, "ue8m0", False)])
def test_low_latency(num_ranks, mode, hooks):
    run(num_ranks, low_latency, mode, hooks)


def rows_given_back(group):
    """Received rows are combined, and are overwritten at once."""
    case = Case(group.size, seed=2)
    ours, theirs = Buffer(group), Buffer(group)
    x, ids, weights = case.inputs(group.rank)
    for _ in range(3):
        a, b = (buffer.low_latency_dispatch(*given, case.max_tokens, case.num_experts, use_fp8=False)
                for buffer, given in ((ours, there((x, ids))), (theirs, (x, ids))))
        got = ours.low_latency_combine(a[0], *there((ids, weights)), a[2])[0]
        a[0].fill_(float("nan"))
        same(got, theirs.low_latency_combine(b[0], ids, weights, b[2])[0], "combine")
    settle(group)


@needs_gpu
def test_received_rows_are_the_callers_after_they_were_combined():
    run(2, rows_given_back)


def overlapped(group):
    """Two halves of a batch: the experts of one compute while rows of the other are sent."""
    case = Case(group.size, max_tokens=8, seed=21)
    ours, theirs = Buffer(group), Buffer(group)
    x, ids, weights = case.inputs(group.rank)
    halves = [slice(0, len(x) // 2), slice(len(x) // 2, len(x))]
    given = there((x, ids, weights))
    for _ in range(3):
        sent = [ours.low_latency_dispatch(given[0][half], given[1][half], 8, case.num_experts, use_fp8=False,
                                          return_recv_hook=True) for half in halves]
        with pytest.raises(ferry.InvalidArgument, match="2 operations are in flight, the depth is 2"):
            ours.low_latency_dispatch(given[0], given[1], 8, case.num_experts, use_fp8=False)
        combined = []
        for half, (rows, _, handle, _, hook) in zip(halves, sent):
            hook()
            combined.append(ours.low_latency_combine(2 * rows, given[1][half], given[2][half], handle,
                                                     return_recv_hook=True))
        for half, (out, _, hook) in zip(halves, combined):
            hook()
            rows, _, handle, _, _ = theirs.low_latency_dispatch(x[half], ids[half], 8, case.num_experts, use_fp8=False)
            same(out, theirs.low_latency_combine(2 * rows, ids[half], weights[half], handle)[0], "combine")
    settle(group)


@needs_gpu
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_two_halves_in_flight(num_ranks):
    run(num_ranks, overlapped)


def replay(group, mode):
    case = Case(group.size, max_tokens=5, seed=31, tokens=(5,) * group.size)
    ours, theirs = Buffer(group), Buffer(group)
    x, ids, weights = there(case.inputs(group.rank))
    out = torch.empty_like(x)

    def step():
        received, counts, handle, _, _ = ours.low_latency_dispatch(x, ids, 5, case.num_experts, **MODES[mode])
        rows = received if torch.is_tensor(received) else received[0]
        ours.low_latency_combine(3 * rows.to(x.dtype), ids, weights, handle, out=out)
        return counts, handle

    step()
    settle(group)
    graph, (counts, (source_tokens, layout_range, *_)) = captured(group, step)
    for seed in (1, 2, 3):
        given = Case(group.size, max_tokens=5, seed=seed, tokens=(5,) * group.size).inputs(group.rank)
        for tensor, new in zip((x, ids, weights), given):
            tensor.copy_(new)
        torch.cuda.current_stream().synchronize()
        group.barrier()
        graph.replay()
        received, want_counts, handle, *_ = theirs.low_latency_dispatch(*given[:2], 5, case.num_experts, **MODES[mode])
        rows = received if torch.is_tensor(received) else received[0]
        same(out, theirs.low_latency_combine(3 * rows.to(x.dtype), *given[1:], handle)[0], f"replay {seed}")
        all_same((counts, source_tokens, layout_range), (want_counts, *handle[:2]), "handle")
    settle(group)


@needs_gpu
@pytest.mark.parametrize("num_ranks, mode", [(2, "bf16"), (4, "fp8")])
def test_a_graph_replays_low_latency_calls(num_ranks, mode):
    run(num_ranks, replay, mode)


# ---- on a GPU: streams, refusals, processes


def streams(group):
    inputs, rank, buffer = Inputs(5, [6, 6]), group.rank, Buffer(group)
    x, ids, weights = there((inputs.x[rank], inputs.topk_idx[rank], inputs.topk_weights[rank]))
    other = torch.cuda.Stream(DEVICE)
    layout_of = buffer.get_dispatch_layout(ids, inputs.num_experts)
    comm = None
    for _ in range(2):
        late = torch.zeros_like(x)
        other.wait_stream(torch.cuda.current_stream(DEVICE))
        with torch.cuda.stream(other):
            torch.cuda._sleep(1_000_000)
            late.copy_(x)
            event = buffer.capture()
        recv_x, _, _, _, handle, done = buffer.dispatch(
            late, None, layout_of[0], None, layout_of[3], layout_of[2], ids, weights, previous_event=event,
            async_finish=True, allocate_on_comm_stream=True)
        with torch.cuda.stream(other):
            done.current_stream_wait()
            same(recv_x, inputs.received(rank, inputs.x), "recv_x")
        combined, _, done = buffer.combine(recv_x, handle, async_finish=True)
        comm = buffer.get_comm_stream()
        with torch.cuda.stream(comm):
            done.current_stream_wait()
            copy = combined.clone()
        comm.synchronize()
        rows = [inputs.received(each, inputs.x) for each in range(2)]
        same(copy, inputs.combined(rank, rows), "combined_x")
    assert isinstance(comm, torch.cuda.Stream) and buffer.get_comm_stream() is comm
    settle(group)


@needs_gpu
def test_events_order_streams():
    run(2, streams)


def refused(group):
    """A rank that is wrong beside one that is right, then a correct pair on both."""
    inputs, rank, both = Inputs(61, [6, 9], num_experts=6), group.rank, Both(group)
    x, ids, weights = inputs.x[rank], inputs.topk_idx[rank], inputs.topk_weights[rank]
    ours, theirs = both.dispatch(x, ids, 6, weights)
    two = ours[4], theirs[4]
    error = ferry.InvalidArgument if rank == 0 else ferry.PeerRejected
    device = there((x, ids, weights))

    def call(wrong, *, handle=None):
        if handle is not None:
            return both.ours.dispatch(wrong if rank == 0 else device[0], handle=handle)
        made = both.ours.get_dispatch_layout(device[1], 6)
        given = dict(x=device[0], num_tokens_per_rank=made[0], is_token_in_rank=made[3], num_tokens_per_expert=made[2],
                     topk_idx=device[1], topk_weights=device[2])
        return both.ours.dispatch(**{**given, **(wrong if rank == 0 else {})})

    nowhere = torch.zeros(6, 2, dtype=torch.bool, device=DEVICE)
    for wrong, text in ((dict(x=x), "on cpu, need contiguous rows"), (dict(topk_weights=None), "given together"),
                        (dict(is_token_in_rank=nowhere), "num_tokens_per_rank"), (dict(config=3), "config is int"),
                        (dict(topk_idx=device[1] + 6), "topk_idx has ids"),
                        (dict(num_worst_tokens=1), "num_worst_tokens is 1")):
        with pytest.raises(error, match=text if rank == 0 else "rank 0"):
            call(wrong)
    with pytest.raises(error, match="x has 3 tokens" if rank == 0 else "rank 0"):
        call(device[0][:3], handle=two[0])
    for wrong, text in ((theirs[0], "on cpu"), (ours[0][:1], "need a contiguous"), (ours[0].double(), "float64")):
        with pytest.raises(error, match=text if rank == 0 else "rank 0"):
            both.ours.combine(wrong if rank == 0 else ours[0], two[0])
    with pytest.raises(ferry.Mismatch):
        both.ours.combine(ours[0] if rank == 0 else ours[0].half(), two[0])
    both.combine(theirs[0], two)
    settle(group)


@needs_gpu
def test_a_refusal_is_told_to_all_and_the_next_call_works():
    run(2, refused)


def low_latency_refused(group):
    case = Case(2, seed=8, tokens=(4, 4))
    ours, theirs = Buffer(group), Buffer(group)
    x, ids, weights = case.inputs(group.rank)
    device = there((x, ids, weights))
    received, _, handle, _, _ = ours.low_latency_dispatch(*device[:2], 6, 4, use_fp8=False)
    waits = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    for wrong, text in ((dict(use_logfmt=True), "use_logfmt is not for cuda"),
                        (dict(zero_copy=True), "zero_copy needs get_next"),
                        (dict(combine_wait_recv_cost_stats=waits), "combine_wait_recv_cost_stats is given")):
        with pytest.raises(ferry.InvalidArgument, match=text):
            ours.low_latency_combine(received, *device[1:], handle, **wrong)
    with pytest.raises(ferry.InvalidArgument, match="dispatch_wait_recv_cost_stats is given"):
        ours.low_latency_dispatch(*device[:2], 6, 4, use_fp8=False, dispatch_wait_recv_cost_stats=waits)
    settle(group)  # the errors that kernels found are there
    given = ids.masked_fill(ids == ids[0, 0], 99) if group.rank == 0 else ids  # an error that only kernels see
    _, _, handle, _, _ = ours.low_latency_dispatch(device[0], there(given), 6, 4, use_fp8=False)
    settle(group)
    with pytest.raises(ferry.InvalidArgument if group.rank == 0 else ferry.PeerRejected):
        ours.low_latency_combine(received, *device[1:], handle)
    a, b = (buffer.low_latency_dispatch(*tensors[:2], 6, 4, use_fp8=False)
            for buffer, tensors in ((ours, device), (theirs, (x, ids))))
    received_same(a, b, 12)
    same(ours.low_latency_combine(a[0], *device[1:], a[2])[0],
         theirs.low_latency_combine(b[0], ids, weights, b[2])[0], "combine")
    settle(group)


@needs_gpu
def test_low_latency_refusals():
    run(2, low_latency_refused)


def in_a_process(group):
    on_stream(group, normal_calls, dict())
    on_stream(group, low_latency, "fp8", True)


@needs_gpu
def test_processes(late_loading):  # noqa: F811
    ferry.spawn(2, in_a_process, deadline=30)
