"""ferry.deep_ep.Buffer's normal kernels against an oracle in torch (deep_ep_oracle.py), bit for bit."""

import pytest

torch = pytest.importorskip("torch")

import ferry
from ferry.conformance.deep_ep_oracle import Inputs, same_bits
from ferry.deep_ep import Buffer, Config, handles

RANKS = [1, 2, 3, 4, 8]
TOKENS = [9, 0, 23, 5, 17, 1, 30, 12]  # by rank


def channel_ranges(num_tokens, num_channels):
    """range of tokens of each channel."""
    each = -(-num_tokens // num_channels)
    return [range(min(c * each, num_tokens), min((c + 1) * each, num_tokens)) for c in range(num_channels)]


def send(buffer, inputs, rank, **more):
    """A layout and a dispatch of this rank's inputs; returns the result of dispatch."""
    layout = buffer.get_dispatch_layout(inputs.topk_idx[rank], inputs.num_experts)
    per_rank, per_node, per_expert, mask, _ = layout
    arguments = dict(x=inputs.x[rank], num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
                     is_token_in_rank=mask, num_tokens_per_expert=per_expert)
    if more.pop("with_topk", True):
        arguments.update(topk_idx=inputs.topk_idx[rank], topk_weights=inputs.topk_weights[rank])
    return buffer.dispatch(**{**arguments, **more})


def outputs_of(inputs, dtype=torch.bfloat16):
    """The outputs of the ranks' experts for their rows: a list by rank of [N, H]."""
    return [(inputs.received(rank, inputs.x).float() * (0.37 + rank)).to(dtype) for rank in range(inputs.num_ranks)]


def check_combine(buffer, inputs, rank, handle, **more):
    """A combine of outputs_of and of the received weights."""
    outputs, weights = outputs_of(inputs), [inputs.received_topk(r)[1] for r in range(inputs.num_ranks)]
    combined, home, event = buffer.combine(outputs[rank], handle, topk_weights=weights[rank], **more)
    event.current_stream_wait()
    bias = more.get("bias")
    biases = () if bias is None else [b for b in (bias if isinstance(bias, tuple) else (bias,)) if b is not None]
    assert same_bits(combined, inputs.combined(rank, outputs, biases))
    assert same_bits(home, inputs.combined(rank, weights))


@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize("shape", [dict(), dict(num_experts=24, top_k=8), dict(top_k=1, unused=0.6),
                                   dict(num_experts=8, top_k=6, duplicates=True), dict(num_experts=11, top_k=4)])
def test_dispatch_and_combine(num_ranks, shape):
    inputs = Inputs(num_ranks, TOKENS[:num_ranks], **shape)

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        per_rank, per_node, per_expert, mask, _ = buffer.get_dispatch_layout(inputs.topk_idx[rank], inputs.num_experts)
        assert same_bits(mask, inputs.mask(rank)) and per_node is None
        assert same_bits(per_rank, inputs.mask(rank).sum(0).int())
        assert same_bits(per_expert, inputs.per_expert(rank))
        recv_x, idx, weights, counts, handle, event = send(buffer, inputs, rank, expert_alignment=4)
        event.current_stream_wait()
        assert same_bits(recv_x, inputs.received(rank, inputs.x))
        want_idx, want_weights = inputs.received_topk(rank)
        assert same_bits(idx, want_idx) and same_bits(weights, want_weights)
        assert counts == inputs.expert_list(rank, 4)
        check_combine(buffer, inputs, rank, handle)
        bias = [torch.randn(inputs.num_tokens[rank], inputs.hidden).bfloat16() for _ in range(2)]
        for given in (bias[0], (bias[0], None), (None, bias[1]), tuple(bias)):
            check_combine(buffer, inputs, rank, handle, bias=given)

    ferry.run_threads(num_ranks, body)


def test_biases_that_are_parameters():
    inputs = Inputs(6, TOKENS[:2])

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        *_, handle, _ = send(buffer, inputs, rank)
        bias = torch.randn(inputs.num_tokens[rank], inputs.hidden).bfloat16()
        for given in (torch.nn.Parameter(bias), (None, torch.nn.Parameter(bias))):
            out, _, _ = buffer.combine(outputs_of(inputs)[rank], handle, bias=given)
            assert same_bits(out, inputs.combined(rank, outputs_of(inputs), [bias])) and not out.requires_grad

    ferry.run_threads(2, body)


@pytest.mark.parametrize("num_ranks", [1, 3, 4])
def test_dispatch_without_topk(num_ranks):
    inputs = Inputs(7, TOKENS[:num_ranks], num_experts=10, top_k=3)

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        recv_x, idx, weights, counts, handle, _ = send(buffer, inputs, rank, with_topk=False, expert_alignment=2)
        assert idx is None and weights is None
        assert same_bits(recv_x, inputs.received(rank, inputs.x))
        assert counts == inputs.expert_list(rank, 2)
        combined, home, _ = buffer.combine(outputs_of(inputs)[rank], handle)
        assert home is None and same_bits(combined, inputs.combined(rank, outputs_of(inputs)))
        check_combine(buffer, inputs, rank, handle)  # weights of another width than the dispatch had

    ferry.run_threads(num_ranks, body)


@pytest.mark.parametrize("num_ranks,scales_dtype,transposed", [
    (2, torch.float32, False), (3, torch.float32, True), (3, torch.int32, True)])
def test_dispatch_of_quantised_rows(num_ranks, scales_dtype, transposed):
    inputs = Inputs(11, TOKENS[:num_ranks], hidden=256, num_experts=6, top_k=4)
    quantised = [x.float().clamp(-4, 4).to(torch.float8_e4m3fn) for x in inputs.x]
    scales = [torch.randint(0, 1 << 30, (len(x), 3), dtype=torch.int32).view(scales_dtype) for x in inputs.x]

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        mine = scales[rank].t().contiguous().t() if transposed else scales[rank]
        (rows, factors), idx, _, _, handle, _ = send(buffer, inputs, rank, x=(quantised[rank], mine))
        assert same_bits(rows, inputs.received(rank, quantised))
        assert same_bits(factors, inputs.received(rank, scales)) and factors.is_contiguous()
        assert same_bits(idx, inputs.received_topk(rank)[0])
        check_combine(buffer, inputs, rank, handle)
        rows, factors = buffer.dispatch((quantised[rank], mine), handle=handle)[0]
        assert same_bits(rows, inputs.received(rank, quantised))
        assert same_bits(factors, inputs.received(rank, scales))
        cached, *nothing, event = buffer.dispatch(inputs.x[rank], handle=handle)  # a gradient: of another type
        assert same_bits(cached, inputs.received(rank, inputs.x)) and nothing == [None] * 4
        assert same_bits(buffer.dispatch(inputs.x[rank], handle=handle)[0], cached)
        event.current_stream_wait()

    ferry.run_threads(num_ranks, body)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int8])
def test_dispatch_of_other_types(dtype):
    inputs = Inputs(3, TOKENS[:3], hidden=7)
    rows = [(x * 8).to(dtype) for x in inputs.x]

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        recv_x, _, _, _, handle, _ = send(buffer, inputs, rank, x=rows[rank])
        assert same_bits(recv_x, inputs.received(rank, rows))
        if dtype in (torch.float16, torch.float32):
            outputs = outputs_of(inputs, dtype)
            assert same_bits(buffer.combine(outputs[rank], handle)[0], inputs.combined(rank, outputs))

    ferry.run_threads(3, body)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_worst_number_of_tokens(num_ranks):
    inputs = Inputs(5, TOKENS[:num_ranks], num_experts=12, top_k=3)
    most = sum(inputs.num_tokens)

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        num_rows = len(inputs.arrivals(rank))
        recv_x, idx, weights, counts, handle, _ = send(buffer, inputs, rank, num_worst_tokens=most)
        assert counts == [] and len(recv_x) == len(idx) == len(weights) == len(handle[3]) == most
        want_idx, want_weights = inputs.received_topk(rank)
        assert same_bits(recv_x[:num_rows], inputs.received(rank, inputs.x))
        assert same_bits(idx[:num_rows], want_idx) and bool((idx[num_rows:] == -1).all())
        assert same_bits(weights[:num_rows], want_weights) and bool((weights[num_rows:] == 0).all())
        outputs = outputs_of(inputs)
        padded = torch.full((most, inputs.hidden), float("nan"), dtype=torch.bfloat16)
        padded[:num_rows] = outputs[rank]
        combined, home, _ = buffer.combine(padded, handle, topk_weights=weights)
        assert same_bits(combined, inputs.combined(rank, outputs))
        assert same_bits(home, inputs.combined(rank, [inputs.received_topk(r)[1] for r in range(num_ranks)]))
        cached = buffer.dispatch(inputs.x[rank], handle=handle)[0]
        assert len(cached) == most and same_bits(cached[:num_rows], inputs.received(rank, inputs.x))

    ferry.run_threads(num_ranks, body)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("num_sms", [2, 6, 24])
def test_contents_of_a_handle(num_ranks, num_sms):
    inputs = Inputs(19, TOKENS[:num_ranks], top_k=3)
    counts = torch.stack([inputs.mask(rank).sum(0) for rank in range(num_ranks)])

    def body(group):
        rank, buffer, channels = group.rank, Buffer(group), num_sms // 2
        *_, handle, _ = send(buffer, inputs, rank, config=Config(num_sms))
        rank_prefix, channel_prefix, recv_channel_prefix, src_idx, mask, head = handle
        assert same_bits(rank_prefix, counts.cumsum(0).int())
        assert same_bits(mask, inputs.mask(rank))
        assert src_idx.tolist() == [token for _, token in inputs.arrivals(rank)]
        sent = torch.zeros(num_ranks, channels, dtype=torch.int32)
        received = torch.zeros(num_ranks, channels, dtype=torch.int32)
        heads = torch.full(mask.shape, -1, dtype=torch.int32)
        for peer in range(num_ranks):
            for c, tokens in enumerate(channel_ranges(len(mask), channels)):
                sent[peer, c] = int(mask[: tokens.stop, peer].sum())
                for token in tokens:
                    if mask[token, peer]:
                        heads[token, peer] = int(mask[tokens.start:token, peer].sum())
            for c, tokens in enumerate(channel_ranges(inputs.num_tokens[peer], channels)):
                received[peer, c] = sum(1 for s, t in inputs.arrivals(rank) if s == peer and t < tokens.start)
        assert same_bits(channel_prefix, sent) and same_bits(recv_channel_prefix, received) and same_bits(head, heads)

    ferry.run_threads(num_ranks, body)


@pytest.mark.parametrize("num_ranks", [2, 10])
def test_handle_of_several_nodes(num_ranks):
    inputs = Inputs(23, (TOKENS * 2)[:num_ranks], num_experts=num_ranks * 2, top_k=3)

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        per_rank, per_node, per_expert, mask, _ = buffer.get_dispatch_layout(inputs.topk_idx[rank], inputs.num_experts)
        nodes = torch.stack([part.any(1) for part in mask.split(8, dim=1)], dim=1)
        assert per_node is None if num_ranks <= 8 else same_bits(per_node, nodes.sum(0).int())
        dispatch = buffer.dispatch if num_ranks > 8 else buffer.internode_dispatch
        recv_x, idx, weights, _, handle, _ = dispatch(
            inputs.x[rank], None, per_rank, per_node, mask, per_expert, inputs.topk_idx[rank],
            inputs.topk_weights[rank], config=Config(6))
        assert len(handle) == 10 and same_bits(handle[0], mask)
        assert same_bits(recv_x, inputs.received(rank, inputs.x)) and same_bits(idx, inputs.received_topk(rank)[0])
        arrivals = inputs.arrivals(rank)
        from_rank = torch.tensor([sum(1 for s, _ in arrivals if s == source) for source in range(num_ranks)])
        assert handle[-4].tolist() == from_rank.cumsum(0).tolist()
        assert handle[7].dtype == torch.uint8 and handle[7].shape == (len(arrivals), 8)
        assert handle[7].view(torch.int32)[:, 0].tolist() == [source // 8 for source, _ in arrivals]
        for peer, first_rows in enumerate(handle[5].tolist()):
            assert first_rows == [sum(1 for s, t in arrivals if s < peer or (s == peer and t < tokens.start))
                                  for tokens in channel_ranges(inputs.num_tokens[peer], 3)]
        ends = [tokens.stop for tokens in channel_ranges(len(mask), 3)]
        assert handle[1].t().tolist() == [nodes[:end].sum(0).tolist() for end in ends]
        assert handle[2].t().tolist() == [mask[:end].sum(0).tolist() for end in ends]
        outputs = outputs_of(inputs)
        combined, _, _ = buffer.internode_combine(outputs[rank], handle, weights)
        assert same_bits(combined, inputs.combined(rank, outputs))

    ferry.run_threads(num_ranks, body)


def test_more_ranks_than_top_k_allows():
    """Without top-k the ids are ranks, and an exchange takes 32 of them for a token."""
    inputs = Inputs(29, [2] * 34, num_experts=34, top_k=3, hidden=4)

    def body(group):
        buffer = Buffer(group)
        recv_x, *_, handle, _ = send(buffer, inputs, group.rank, with_topk=False)
        assert same_bits(recv_x, inputs.received(group.rank, inputs.x))
        outputs = outputs_of(inputs)
        assert same_bits(buffer.combine(outputs[group.rank], handle)[0], inputs.combined(group.rank, outputs))

    ferry.run_threads(34, body)


def test_handles_are_found_by_any_of_their_tensors():
    inputs = Inputs(31, TOKENS[:2])

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        *_, handle, _ = send(buffer, inputs, rank)
        for edited in (list(handle), (None, *handle[1:3]), (handle[4].detach(),), (handle[3].view(-1, 1), "other"),
                       (torch.ones(3), handle[5][:0]), handle[1:2], handle[0]):
            check_combine(buffer, inputs, rank, edited)
            assert same_bits(buffer.dispatch(inputs.x[rank], handle=edited)[0], inputs.received(rank, inputs.x))
        kept = handle[2].detach()
        del handle, edited
        check_combine(buffer, inputs, rank, (kept,))
        copies = [kept.clone()]
        del kept
        for call in (lambda: buffer.combine(inputs.x[rank], copies), lambda: buffer.dispatch(inputs.x[rank], copies)):
            with pytest.raises(ferry.InvalidArgument, match="copies of a handle"):
                call()

    ferry.run_threads(2, body)


def test_what_a_handle_keeps_is_freed_with_it():
    inputs = Inputs(37, TOKENS[:1])
    before = len(handles._alive)

    def body(group):
        buffer = Buffer(group)
        for _ in range(50):
            *_, handle, _ = send(buffer, inputs, 0)
            assert len(handles._alive) <= before + 12  # of this handle and the one before

    ferry.run_threads(1, body)
    assert len(handles._alive) == before


def test_more_tokens_than_before_and_handles_of_the_smaller_exchange():
    sizes = [[3, 1, 0], [0, 70, 4], [9, 9, 9], [500, 0, 0]]
    steps = [Inputs(41 + i, tokens) for i, tokens in enumerate(sizes)]

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        kept = []
        for inputs in steps:
            recv_x, *_, handle, _ = send(buffer, inputs, rank)
            kept.append((inputs, recv_x, handle))
        for inputs, recv_x, handle in kept:
            assert same_bits(recv_x, inputs.received(rank, inputs.x))
            check_combine(buffer, inputs, rank, handle)
            assert same_bits(buffer.dispatch(inputs.x[rank], handle=handle)[0], recv_x)

    ferry.run_threads(3, body)


@pytest.mark.parametrize("width", [0, 3, 4])
def test_received_rows_may_be_changed_right_after_combine(width):
    inputs = Inputs(43, [40, 40, 40, 40], hidden=512, num_experts=4, top_k=4, unused=0)

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        for _ in range(20):
            recv_x, _, weights, _, handle, _ = send(buffer, inputs, rank)
            weights = weights[:, :width].contiguous() if width else None
            combined, home, _ = buffer.combine(recv_x, handle, topk_weights=weights)
            recv_x.fill_(float("nan"))
            if width:
                weights.fill_(float("nan"))
            assert not combined.isnan().any() and (home is None or not home.isnan().any())

    ferry.run_threads(4, body)


def test_the_rows_are_not_copied_out_of_the_window():
    inputs = Inputs(47, [64, 64], hidden=64)

    def body(group):
        buffer, kept = Buffer(group), []
        for _ in range(12):  # tensors that autograd keeps beside the rows do not keep the memory of the rows
            recv_x, *others, _ = send(buffer, inputs, group.rank)
            kept.append(others)
            assert buffer.exchanges.last.stats().bytes_copied == 0 and recv_x.data_ptr() % (2 << 20) == 0
        for idx, weights, _, handle in kept:
            assert same_bits(idx, inputs.received_topk(group.rank)[0])
            check_combine(buffer, inputs, group.rank, handle)

    ferry.run_threads(2, body)


def test_nothing_to_send():
    inputs = Inputs(53, [0, 0, 0])
    unused = Inputs(53, [4, 2, 3], unused=1.1)

    def body(group):
        buffer = Buffer(group)
        for empty in (inputs, unused):
            recv_x, idx, weights, counts, handle, _ = send(buffer, empty, group.rank)
            assert recv_x.shape == (0, 16) and idx.shape == weights.shape == (0, 2) and sum(counts) == 0
            bias = torch.randn(empty.num_tokens[group.rank], 16).bfloat16()
            combined, home, _ = buffer.combine(recv_x, handle, weights, bias=bias)
            assert same_bits(combined, bias) and not home.any()

    ferry.run_threads(3, body)


def test_a_layout_of_ids_that_are_not_contiguous_is_refused():
    def body(group):
        buffer = Buffer(group)
        with pytest.raises(ferry.InvalidArgument, match=r"topk_idx is int64 \[4, 2\].*not contiguous"):
            buffer.get_dispatch_layout(torch.zeros(2, 4, dtype=torch.int64).t(), 4)

    ferry.run_threads(1, body)
