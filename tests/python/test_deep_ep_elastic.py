"""ferry.deep_ep.ElasticBuffer against an oracle in torch (elastic_oracle.py), bit for bit, in all of its modes."""

import gc
import itertools

import pytest

torch = pytest.importorskip("torch")

import ferry.conformance.elastic_oracle as oracle
import ferry
from ferry.conformance.deep_ep_oracle import Inputs, same_bits
from ferry.deep_ep import ElasticBuffer, EPHandle, EventHandle, EventOverlap

RANKS = [1, 2, 3, 4, 8]
TOKENS = [9, 0, 12, 5, 7, 1, 10, 3]  # by rank
M = 13
SHAPES = {
    "plain": dict(num_experts=24, top_k=4),
    "K larger than L": dict(num_experts=8, top_k=8, unused=0.4),
    "one of K": dict(num_experts=9, top_k=1, unused=0.5),
    "experts twice": dict(num_experts=6, top_k=5, duplicates=True),
    "fewer experts than ranks": dict(num_experts=3, top_k=2, unused=0.1),
}


def fp8_rows(inputs, seed):
    """By rank: (float8 [T, H], scales float32 [T, 3] with strides of their own)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(num_tokens, inputs.hidden) for num_tokens in inputs.num_tokens]
    rows = [torch.randint(0, 120, shape, generator=generator, dtype=torch.uint8) for shape in shapes]
    scales = [torch.rand(3, t, generator=generator).T for t in inputs.num_tokens]
    return [each.view(torch.float8_e4m3fn) for each in rows], scales


def floats(inputs, rows_of, seed, hidden, dtype):
    """By rank: [rows_of(rank), hidden] of many magnitudes, so that the order and place of each rounding shows."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows_of(rank), hidden) for rank in range(inputs.num_ranks)]
    magnitudes = [2.0 ** torch.randint(-6, 7, shape, generator=generator) for shape in shapes]
    return [(torch.randn(each.shape, generator=generator) * each).to(dtype) for each in magnitudes]


def bytes_of(rows):
    """uint8 [N, bytes of a row]."""
    if len(rows) == 0:  # no strides of an empty tensor are wrong
        return torch.empty(0, rows.shape[1] * rows.element_size(), dtype=torch.uint8)
    return rows.contiguous().view(torch.uint8)


def longer(rows, num_rows, fill=float("nan")):
    """rows, then rows of `fill`, which must not be read."""
    tail = torch.full((num_rows - len(rows), *rows.shape[1:]), fill, dtype=rows.dtype)
    return torch.cat([rows, tail])


def expanded_weights(inputs, rank, alignment):
    weights = inputs.topk_weights
    return torch.tensor([weights[slot.source][slot.token, slot.k] if slot != oracle.GAP else 0.0
                         for slot in oracle.slots(inputs, rank, alignment)])


def metadata(inputs, rank, max_tokens, alignment, expand):
    """int32 [N, K + 2]."""
    where = {slot: row for row, slot in enumerate(oracle.slots(inputs, rank, alignment))} if expand else {}
    rows = []
    for source, token in oracle.arrivals(inputs, rank):
        columns = [where.get(oracle.Slot(source, token, k), -1) for k in range(inputs.top_k)]
        highest = max(k for k, _ in oracle.entries(inputs, rank, source, token))
        rows.append([source * max_tokens + token, highest, *columns])
    return torch.tensor(rows, dtype=torch.int32).reshape(len(rows), inputs.top_k + 2)


def slot_idx(inputs, rank):
    """int32 [T, K]: tokens that went to the expert's rank before this one."""
    table = torch.full_like(inputs.topk_idx[rank], -1, dtype=torch.int32)
    for receiver in range(inputs.num_ranks):
        sent = [token for source, token in oracle.arrivals(inputs, receiver) if source == rank]
        for place, token in enumerate(sent):
            for k, _ in oracle.entries(inputs, receiver, rank, token):
                table[token, k] = place
    return table


class Mode:
    """The arguments of one dispatch, and its expected results."""

    def __init__(self, inputs, expand, cpu_sync, fp8, alignment, zero_padding, column_major):
        self.inputs, self.expand, self.cpu_sync, self.fp8 = inputs, expand, cpu_sync, fp8
        self.alignment, self.zero_padding, self.column_major = alignment, zero_padding, column_major
        self.rows, self.scales = fp8_rows(inputs, 5) if fp8 else (inputs.x, None)

    def __repr__(self):
        return f"{ {name: value for name, value in vars(self).items() if name not in ('inputs', 'rows', 'scales')} }"

    def x(self, rank):
        return (self.rows[rank], self.scales[rank]) if self.fp8 else self.rows[rank]

    def arguments(self, rank):
        return dict(x=self.x(rank), topk_idx=self.inputs.topk_idx[rank], topk_weights=self.inputs.topk_weights[rank],
                    num_experts=self.inputs.num_experts, expert_alignment=self.alignment, do_expand=self.expand,
                    do_cpu_sync=self.cpu_sync, do_zero_padding=self.zero_padding,
                    use_tma_aligned_col_major_sf=self.column_major)

    def num_real(self, rank):
        """The number of rows up to the last received one, gaps included."""
        if self.expand:
            return len(oracle.slots(self.inputs, rank, self.alignment))
        return len(oracle.arrivals(self.inputs, rank))

    def num_rows(self, rank):
        if self.cpu_sync:
            return self.num_real(rank)
        rows, local = M * self.inputs.num_ranks, len(self.inputs.experts_of(rank))
        if not self.expand:
            return rows
        rows = rows * min(self.inputs.top_k, local) + (self.alignment - 1) * local
        return max(oracle.aligned(rows, self.alignment), self.num_real(rank))

    def is_gap(self, rank):
        """bool [real rows]."""
        if not self.expand:
            return torch.zeros(self.num_real(rank), dtype=torch.bool)
        slots = oracle.slots(self.inputs, rank, self.alignment)
        return torch.tensor([slot == oracle.GAP for slot in slots], dtype=torch.bool)

    def arrived(self, rank, of):
        return oracle.expanded(self.inputs, rank, self.alignment, of) if self.expand else self.inputs.received(rank, of)

    def check_rows(self, rank, recv_x):
        parts = [(recv_x, self.rows)] if not self.fp8 else list(zip(recv_x, (self.rows, self.scales)))
        real, compared = self.num_real(rank), torch.ones(self.num_real(rank), dtype=torch.bool)
        if not self.zero_padding:
            compared = ~self.is_gap(rank)
        for have, sent in parts:
            assert have.shape == (self.num_rows(rank), sent[rank].shape[1]), repr(self)
            want = self.arrived(rank, [bytes_of(each) for each in sent])
            assert same_bits(bytes_of(have[:real])[compared], want[compared]), repr(self)
        if self.fp8:
            rows, columns = recv_x[1].shape
            pitch = oracle.aligned(rows, 4)
            strides = (1, pitch) if self.column_major else (columns, 1)
            assert rows < 2 or recv_x[1].stride() == strides, repr(self)

    def check_topk(self, rank, recv_topk_idx, recv_topk_weights, weights=True):
        real = self.num_real(rank)
        ids, want = self.inputs.received_topk(rank)
        if self.expand:
            assert recv_topk_idx is None
            want = expanded_weights(self.inputs, rank, self.alignment)
        else:
            assert same_bits(recv_topk_idx[:real], ids), repr(self)
            assert len(recv_topk_idx) == self.num_rows(rank) and (recv_topk_idx[real:] == -1).all()
        if not weights:
            assert recv_topk_weights is None
            return
        assert len(recv_topk_weights) == self.num_rows(rank)
        assert same_bits(recv_topk_weights[:real], want), repr(self)

    def check_handle(self, rank, handle):
        inputs, real = self.inputs, len(oracle.arrivals(self.inputs, rank))
        num_recv = real if self.cpu_sync else M * inputs.num_ranks
        aligned = [oracle.aligned(count, self.alignment) for count in oracle.counts(inputs, rank)]
        assert (handle.do_expand, handle.num_experts, handle.expert_alignment, handle.num_max_tokens_per_rank) == \
            (self.expand, inputs.num_experts, self.alignment, M)
        assert handle.num_recv_tokens == num_recv and handle.num_expanded_tokens == self.num_rows(rank)
        assert handle.num_recv_tokens_per_expert_list == (aligned if self.cpu_sync else [])
        assert same_bits(handle.psum_num_recv_tokens_per_scaleup_rank, oracle.psum_per_rank(inputs, rank))
        assert same_bits(handle.psum_num_recv_tokens_per_expert,
                         oracle.psum_per_expert(inputs, rank, self.alignment, self.expand))
        assert handle.num_unaligned_recv_tokens_per_expert.tolist() == oracle.counts(inputs, rank)
        assert len(handle.recv_src_metadata) == num_recv and (handle.recv_src_metadata[real:] == -1).all()
        assert same_bits(handle.recv_src_metadata[:real], metadata(inputs, rank, M, self.alignment, self.expand))
        assert same_bits(handle.dst_buffer_slot_idx, slot_idx(inputs, rank))
        assert handle.token_metadata_at_forward is None and handle.channel_linked_list is None


class Combine:
    """Outputs of the experts and biases for the rows of modes that order them equally, and the expected result of
    combine."""

    def __init__(self, mode, num_biases, multiple_reduction, dtype=torch.bfloat16, hidden=24):
        inputs = mode.inputs
        self.num_biases, self.multiple_reduction = num_biases, multiple_reduction
        self.outputs = floats(inputs, mode.num_real, 17, hidden, dtype)
        for rank, rows in enumerate(self.outputs):
            rows[mode.is_gap(rank)] = float("nan")
        self.biases = [floats(inputs, inputs.num_tokens.__getitem__, 18 + i, hidden, dtype) for i in range(num_biases)]
        self.expected = [oracle.combined(inputs, rank, self.outputs, [bias[rank] for bias in self.biases],
                                         alignment=mode.alignment, expand=mode.expand,
                                         multiple_reduction=multiple_reduction) for rank in range(inputs.num_ranks)]

    def play(self, buffer, mode, rank, handle, topk_weights):
        given = [bias[rank] for bias in self.biases]
        x = longer(self.outputs[rank], mode.num_rows(rank))
        bias = None if not given else given[0] if len(given) == 1 else tuple(given)
        out, home, event = buffer.combine(x, handle, topk_weights=topk_weights, bias=bias)
        x.fill_(float("nan"))  # other ranks may still be reading their rows
        event.current_stream_wait()
        assert same_bits(out, self.expected[rank]), (repr(mode), self.num_biases, self.multiple_reduction)
        if topk_weights is None:
            assert home is None
            return
        idx, weights = mode.inputs.topk_idx[rank], mode.inputs.topk_weights[rank]
        assert same_bits(home, torch.where(idx >= 0, weights, torch.zeros(()))), repr(mode)


def modes_of(inputs):
    """All modes, without those that are the same as another."""
    for expand, cpu_sync, fp8, alignment, zero, column_major in itertools.product(
            (False, True), (True, False), (False, True), (1, 4), (False, True), (False, True)):
        if zero > (expand and alignment > 1) or column_major > fp8:
            continue
        yield Mode(inputs, expand, cpu_sync, fp8, alignment, zero, column_major)


def unmasked_weights(mode, rank, recv_topk_weights):
    """The weights that DeepEP itself returns: weights of other ranks' experts are not zero."""
    if mode.expand:
        return recv_topk_weights
    return longer(mode.inputs.received(rank, mode.inputs.topk_weights), mode.num_rows(rank))


@pytest.mark.parametrize("num_ranks, shape", [(ranks, shape) for ranks in RANKS for shape in SHAPES
                                              if ranks in (3, 8) or shape in ("plain", "experts twice")])
def test_all_modes(num_ranks, shape):
    inputs = Inputs(num_ranks, TOKENS[:num_ranks], **SHAPES[shape])
    modes, combines = list(modes_of(inputs)), {}
    for mode, num_biases, multiple in itertools.product(modes, (0, 1, 2), (True, False)):
        key = mode.expand, mode.alignment, num_biases, multiple
        combines[key] = combines.get(key) or Combine(mode, num_biases, multiple)

    def body(group):
        rank = group.rank
        buffers = {multiple: ElasticBuffer(group, num_max_tokens_per_rank=M, allow_multiple_reduction=multiple)
                   for multiple in (True, False)}
        for number, mode in enumerate(modes):
            recv_x, idx, weights, handle, event = buffers[True].dispatch(**mode.arguments(rank))
            event.current_stream_wait()
            mode.check_rows(rank, recv_x)
            mode.check_topk(rank, idx, weights)
            mode.check_handle(rank, handle)
            again = dict(handle=handle, do_expand=mode.expand, do_zero_padding=mode.zero_padding,
                         use_tma_aligned_col_major_sf=mode.column_major)
            if number % 2:
                again["topk_weights"] = inputs.topk_weights[rank]
            cached_x, cached_idx, cached_weights, cached_handle, _ = buffers[True].dispatch(mode.x(rank), **again)
            assert cached_handle is handle
            mode.check_rows(rank, cached_x)
            mode.check_topk(rank, cached_idx, cached_weights, weights=bool(number % 2))
            for multiple in (True, False):
                combine = combines[mode.expand, mode.alignment, (number + multiple) % 3, multiple]
                home = unmasked_weights(mode, rank, weights) if number % 5 and (multiple or not mode.expand) else None
                combine.play(buffers[multiple], mode, rank, handle, home)

    ferry.run_threads(num_ranks, body)


def test_modes_round_in_different_places():
    """The outputs drawn above distinguish the ways to round."""
    inputs = Inputs(3, TOKENS[:3], **SHAPES["K larger than L"])
    mode = Mode(inputs, True, True, False, 1, False, False)
    several, once = Combine(mode, 1, True), Combine(mode, 1, False)
    assert not torch.equal(several.expected[0], once.expected[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("expand", [False, True])
def test_combine_of_wider_types(dtype, expand):
    inputs = Inputs(41, TOKENS[:3], **SHAPES["plain"], dtype=dtype)
    mode = Mode(inputs, expand, True, False, 4, False, False)
    combine = Combine(mode, 2, True, dtype, inputs.hidden)

    def body(group):
        buffer = ElasticBuffer(group, num_max_tokens_per_rank=M)
        recv_x, _, weights, handle, _ = buffer.dispatch(**mode.arguments(group.rank))
        mode.check_rows(group.rank, recv_x)
        combine.play(buffer, mode, group.rank, handle, weights)

    ferry.run_threads(3, body)


def sum_of_summed(inputs, rank, outputs, bias):
    """[T, H']: the rows [N, H'] of all ranks, each added in the place of the rank's last expert of the token."""
    out = torch.empty_like(bias)
    for token in range(inputs.num_tokens[rank]):
        total = torch.zeros(bias.shape[1]) + bias[token].float()
        for receiver in sorted(inputs.ranks_of(rank, token),
                               key=lambda receiver: oracle.entries(inputs, receiver, rank, token)[-1]):
            total = total + outputs[receiver][oracle.arrivals(inputs, receiver).index((rank, token))].float()
        out[token] = total.to(bias.dtype)
    return out


@pytest.mark.parametrize("shape", ["plain", "K larger than L", "experts twice"])
@pytest.mark.parametrize("cpu_sync", [True, False])
@pytest.mark.parametrize("multiple", [True, False])
def test_an_expanded_dispatch_whose_rows_the_caller_sums(shape, cpu_sync, multiple):
    """Engines request it by handle.do_expand = False, and give a row for each entry of recv_src_metadata."""
    inputs = Inputs(44, TOKENS[:4], **SHAPES[shape])
    mode = Mode(inputs, True, cpu_sync, False, 128, False, False)
    outputs = floats(inputs, lambda rank: len(oracle.arrivals(inputs, rank)), 45, 24, torch.bfloat16)
    biases = floats(inputs, inputs.num_tokens.__getitem__, 46, 24, torch.bfloat16)
    expected = [sum_of_summed(inputs, rank, outputs, biases[rank]) for rank in range(4)]

    def body(group):
        rank = group.rank
        buffer = ElasticBuffer(group, num_max_tokens_per_rank=M, allow_multiple_reduction=multiple)
        *_, handle, _ = buffer.dispatch(**mode.arguments(rank), do_handle_copy=False)
        handle.do_expand = False
        num_rows = handle.recv_src_metadata.shape[0]
        given = longer(inputs.received(rank, inputs.topk_weights), num_rows)
        for weights in (None, given):
            out, home, _ = buffer.combine(longer(outputs[rank], num_rows), handle, weights, bias=biases[rank])
            assert same_bits(out, expected[rank])
        idx = inputs.topk_idx[rank]
        assert same_bits(home, torch.where(idx >= 0, inputs.topk_weights[rank], torch.zeros(())))
        for wrong in (dict(x=torch.zeros(num_rows + 1, 24)), dict(topk_weights=given[:, 0].contiguous())):
            with pytest.raises(ferry.InvalidArgument, match=f"need .*{num_rows}, "):
                buffer.combine(**{"x": torch.zeros(num_rows, 24), "handle": handle, **wrong})
        handle.recv_src_metadata = None  # names the source of each row
        with pytest.raises(ferry.InvalidArgument, match="recv_src_metadata is NoneType"):
            buffer.combine(outputs[rank], handle)

    ferry.run_threads(4, body)


@pytest.mark.parametrize("expand", [False, True])
def test_rows_of_another_type_follow_a_handle(expand):
    """Forward in fp8, gradients in bfloat16; with zero padding and column-major scales, which the handle does not
    have."""
    inputs = Inputs(42, TOKENS[:4], **SHAPES["plain"])
    fp8, bf16 = (Mode(inputs, expand, True, is_fp8, 4, False, False) for is_fp8 in (True, False))
    zeroed = Mode(inputs, expand, True, True, 4, expand, True)
    combine = Combine(fp8, 1, True)

    def body(group):
        rank, buffer = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=M)
        *_, handle, _ = buffer.dispatch(**fp8.arguments(rank))
        for _ in range(2):
            grads, *_, same, _ = buffer.dispatch(bf16.x(rank), handle=handle, do_expand=expand)
            bf16.check_rows(rank, grads)
            assert same is handle
            rows, *_ = buffer.dispatch(zeroed.x(rank), handle=handle, do_expand=expand, do_zero_padding=expand,
                                       use_tma_aligned_col_major_sf=True)
            zeroed.check_rows(rank, rows)
            combine.play(buffer, fp8, rank, handle, None)

    ferry.run_threads(4, body)


@pytest.mark.parametrize("expand", [False, True])
def test_handles_are_found_by_what_is_left_of_them(expand):
    inputs = Inputs(43, TOKENS[:3], **SHAPES["plain"])
    mode = Mode(inputs, expand, False, False, 1, False, False)
    combine = Combine(mode, 0, True)
    names = ["recv_src_metadata", "psum_num_recv_tokens_per_expert", "psum_num_recv_tokens_per_scaleup_rank",
             "num_unaligned_recv_tokens_per_expert", "dst_buffer_slot_idx"]

    def body(group):
        rank, buffer = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=M)
        *_, handle, _ = buffer.dispatch(**mode.arguments(rank))
        real = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1])
        handle.recv_src_metadata = handle.recv_src_metadata[:real]
        rebuilt = EPHandle(**vars(handle))
        for name in names:
            lost = {other: None for other in names if other != name}
            left = EPHandle(**{**vars(rebuilt), **lost})
            combine.play(buffer, mode, rank, left, None)
        state = vars(handle)
        copied = EPHandle(**{name: value.clone() if isinstance(value, torch.Tensor) else value
                             for name, value in state.items()})
        with pytest.raises(ferry.InvalidArgument, match="no tensor that a dispatch"):
            buffer.combine(torch.zeros(real, 8), copied)
        del handle, rebuilt, left, state
        gc.collect()

    ferry.run_threads(3, body)


@pytest.mark.parametrize("do_handle_copy", [True, False])
def test_handle_copy_stats_and_int32_ids(do_handle_copy):
    inputs = Inputs(44, TOKENS[:3], **SHAPES["plain"])

    def body(group):
        rank, buffer = group.rank, ElasticBuffer(group)
        ids = inputs.topk_idx[rank].int()
        stats = torch.full((len(inputs.experts_of(rank)),), 5, dtype=torch.int32)
        for _ in range(2):
            recv_x, idx, weights, handle, event = buffer.dispatch(
                inputs.x[rank], ids, None, stats, inputs.num_experts, M, do_handle_copy=do_handle_copy, num_sms=24,
                previous_event=buffer.capture(), async_with_compute_stream=True, allocate_on_comm_stream=True)
            assert isinstance(event, EventOverlap)
        assert weights is None and same_bits(idx, inputs.received_topk(rank)[0].int())
        assert stats.tolist() == [5 + 2 * count for count in oracle.counts(inputs, rank)]
        assert (handle.topk_idx.data_ptr() == ids.data_ptr()) == (len(ids) == 0 or not do_handle_copy)
        assert torch.equal(handle.topk_idx, ids) and handle.num_sms == 24 and handle.expert_alignment == 1
        assert same_bits(recv_x, inputs.received(rank, inputs.x))

    ferry.run_threads(3, body)


def test_results_outlive_later_calls():
    inputs = [Inputs(50 + i, TOKENS[:3], **SHAPES["plain"]) for i in range(8)]

    def body(group):
        rank, buffer, kept = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=M), []
        for number, each in enumerate(inputs):
            mode = Mode(each, bool(number % 2), True, False, 1, False, False)
            kept.append((mode, *buffer.dispatch(**mode.arguments(rank))))
        for mode, recv_x, idx, weights, handle, _ in kept:
            mode.check_rows(rank, recv_x)
            mode.check_topk(rank, idx, weights)
            mode.check_handle(rank, handle)

    ferry.run_threads(3, body)


def test_a_larger_bound_makes_a_larger_exchange():
    small, large = Inputs(60, [2, 1], **SHAPES["plain"]), Inputs(61, [40, 33], **SHAPES["plain"])

    def body(group):
        rank, buffer = group.rank, ElasticBuffer(group, num_max_tokens_per_rank=2)
        kept = [buffer.dispatch(small.x[rank], small.topk_idx[rank], num_experts=24)]
        kept.append(buffer.dispatch(large.x[rank], large.topk_idx[rank], num_experts=24, num_max_tokens_per_rank=40))
        for inputs, (recv_x, *_, handle, _) in zip((small, large), kept):
            assert same_bits(recv_x, inputs.received(rank, inputs.x))
            again, *_ = buffer.dispatch(inputs.x[rank], handle=handle)
            assert same_bits(again, recv_x)

    ferry.run_threads(2, body)


def test_what_a_buffer_says_of_itself():
    def body(group):
        buffer = ElasticBuffer(group, 1 << 21, num_cpu_bytes=0, explicitly_destroy=True)
        assert buffer.get_physical_domain_size() == buffer.get_logical_domain_size() == (1, 3)
        assert ferry.deep_ep.get_physical_domain_size(group) == (1, 3)
        assert ferry.deep_ep.get_logical_domain_size(group, False) == (1, 3)
        assert (buffer.rank_idx, buffer.num_ranks, buffer.num_bytes) == (group.rank, 3, 1 << 21)
        assert (buffer.scaleout_rank_idx, buffer.scaleup_rank_idx) == (0, group.rank)
        num_sms = buffer.get_theoretical_num_sms(256, 8)
        assert num_sms == 4 and buffer.get_theoretical_num_qps(num_sms) <= buffer.num_allocated_qps
        assert isinstance(buffer.capture(), EventHandle) and buffer.get_comm_stream().query()
        buffer.barrier(use_comm_stream=False, with_cpu_sync=True, sequential=False)
        hint = ElasticBuffer.get_buffer_size_hint(group, 128, 7168, 8)
        worst = ferry.window_bytes(3, max_tokens=128, hidden=7168, num_experts=3, top_k=8).worst
        assert worst <= hint < worst + (2 << 20) and hint % (2 << 20) == 0
        assert hint < ElasticBuffer.get_buffer_size_hint(group, 128, 7168)
        assert ElasticBuffer(group).num_bytes == 0
        assert ElasticBuffer(group, num_max_tokens_per_rank=128, hidden=7168, num_topk=8).num_bytes == hint
        tokens = dict(x=torch.zeros(1, 8), topk_idx=torch.zeros(1, 1, dtype=torch.int64), num_max_tokens_per_rank=1)
        buffer.dispatch(**tokens, num_experts=3)
        buffer.destroy()
        for gone in (buffer.barrier, lambda: buffer.dispatch(**tokens, num_experts=4)) if group.rank == 0 else ():
            with pytest.raises(ferry.Closed):
                gone()
        group.barrier()

    ferry.run_threads(3, body)
