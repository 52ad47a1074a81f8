"""Refusals of ferry.deep_ep.Buffer: an error that names the fault on the rank that is wrong, ferry.PeerRejected on the
others at once, and a buffer that goes on."""

import gc
import time

import pytest

torch = pytest.importorskip("torch")

import ferry
from ferry import _core
from ferry.conformance.deep_ep_oracle import Inputs, same_bits
from ferry.deep_ep import Buffer, Config, ElasticBuffer, EventHandle, EventOverlap, groups
from test_deep_ep_buffer import check_combine, outputs_of, send

INPUTS = Inputs(61, [6, 9, 4], num_experts=6, top_k=2)


def refused(call, match, *, wrong_rank=1, error=ferry.InvalidArgument):
    """Runs call(buffer, rank, handle) of a rank that is wrong beside ranks that are right, then a good pair."""

    def body(group):
        rank, buffer = group.rank, Buffer(group)
        *_, handle, _ = send(buffer, INPUTS, rank)
        began = time.monotonic()
        wanted, text = (error, match) if rank == wrong_rank else (ferry.PeerRejected, f"rank {wrong_rank}")
        with pytest.raises(wanted, match=text):
            call(buffer, rank, handle, rank == wrong_rank)
        assert time.monotonic() - began < 20
        recv_x, *_, handle, _ = send(buffer, INPUTS, rank)
        assert same_bits(recv_x, INPUTS.received(rank, INPUTS.x))
        check_combine(buffer, INPUTS, rank, handle)

    ferry.run_threads(3, body, deadline=30.0)


def mask_of(rank):
    return INPUTS.mask(rank)


BAD_DISPATCHES = {
    "x None": (dict(x=None), "x is"),
    "x 3-d": (dict(x=torch.zeros(1, 9, 16)), "need contiguous rows"),
    "x not contiguous": (dict(x=torch.zeros(16, 9).t()), "not contiguous"),
    "x on meta": (dict(x=torch.zeros(9, 16, device="meta")), "on meta"),
    "three tensors": (dict(x=(torch.zeros(9, 16),) * 3), "a pair"),
    "scales of other tokens": (dict(x=(torch.zeros(9, 16), torch.zeros(8, 1))), r"scales of x are float32 \[8, 1\]"),
    "more tokens than ids": (dict(x=torch.zeros(10, 16)), r"is_token_in_rank is bool \[9, 3\]"),
    "no layout": (dict(is_token_in_rank=None), "is_token_in_rank is NoneType"),
    "mask of ints": (dict(is_token_in_rank=mask_of(1).int()), "is_token_in_rank is int32"),
    "mask of another routing": (dict(is_token_in_rank=mask_of(1).roll(1, 1),
                                     num_tokens_per_rank=mask_of(1).sum(0).roll(1).int()),
                                "is_token_in_rank is not what topk_idx says"),
    "counts of another mask": (dict(num_tokens_per_rank=torch.zeros(3, dtype=torch.int32)),
                               r"num_tokens_per_rank is \[0, 0, 0\]"),
    "counts int64": (dict(num_tokens_per_rank=mask_of(1).sum(0)), "num_tokens_per_rank is int64"),
    "per expert on meta": (dict(num_tokens_per_expert=torch.zeros(6, dtype=torch.int32, device="meta")), "on meta"),
    "weights of Python": (dict(topk_weights=[1.0, 2.0]), "AttributeError: 'list' object has no attribute 'detach'"),
    "x nested": (dict(x=torch.nested.nested_tensor([torch.ones(2, 3)])), "RuntimeError: .*NestedTensorImpl"),
    "scales sparse": (dict(x=(torch.zeros(9, 16), torch.ones(9, 1).to_sparse())), "RuntimeError: "),
    "alignment None": (dict(expert_alignment=None), "expert_alignment is None, need 1 to 2147483647"),
    "alignment of many": (dict(expert_alignment=torch.ones(3)), r"expert_alignment is tensor\(.*, need 1 to"),
    "ids without weights": (dict(topk_weights=None), "given together"),
    "weights without ids": (dict(topk_idx=None), "given together"),
    "ids float": (dict(topk_idx=torch.zeros(9, 2)), "topk_idx is float32"),
    "ids of no expert": (dict(topk_idx=INPUTS.topk_idx[1].where(INPUTS.topk_idx[1] != 5, 6)), "outside|topk_idx"),
    "weights double": (dict(topk_weights=torch.zeros(9, 2, dtype=torch.float64)), "topk_weights is float64"),
    "weights of another shape": (dict(topk_weights=torch.zeros(9, 3)), r"topk_weights is float32 \[9, 3\]"),
    "weights nan": (dict(topk_weights=torch.full((9, 2), float("nan"))), "NaN"),
    "config of another kind": (dict(config=20), "config is int, need a Config or None"),
    "alignment 0": (dict(expert_alignment=0), "expert_alignment is 0"),
    "fewer rows than come": (dict(num_worst_tokens=1), "num_worst_tokens is 1"),
    "worst case without ids": (dict(with_topk=False, num_worst_tokens=99), "num_worst_tokens needs"),
}


@pytest.mark.parametrize("case", BAD_DISPATCHES)
def test_dispatch(case):
    wrong, match = BAD_DISPATCHES[case]
    refused(lambda buffer, rank, handle, mine: send(buffer, INPUTS, rank, **(wrong if mine else {})), match)


BAD_CACHED = {
    "with ids": (dict(topk_idx=INPUTS.topk_idx[1]), "brings no topk_idx"),
    "other number of tokens": (dict(x=torch.zeros(8, 16, dtype=torch.bfloat16)),
                               "x has 8 tokens, the handle's dispatch had 9"),
    "no handle's tensors": (dict(handle=(torch.ones(3), None)), "no tensor that a dispatch"),
}


@pytest.mark.parametrize("case", BAD_CACHED)
def test_cached_dispatch(case):
    wrong, match = BAD_CACHED[case]

    def call(buffer, rank, handle, mine):
        buffer.dispatch(**{**dict(x=INPUTS.x[rank], handle=handle), **(wrong if mine else {})})

    refused(call, match)


ROWS = len(INPUTS.arrivals(1))
BAD_COMBINES = {
    "other number of rows": (dict(x=torch.zeros(ROWS + 1, 16, dtype=torch.bfloat16)), rf"need .* \[{ROWS}, hidden\]"),
    "rows None": (dict(x=None), "x is NoneType"),
    "rows int": (dict(x=torch.zeros(ROWS, 16, dtype=torch.int32)), "x is int32"),
    "rows on meta": (dict(x=torch.zeros(ROWS, 16, dtype=torch.bfloat16, device="meta")), "on meta"),
    "rows turned": (dict(x=torch.zeros(16, ROWS, dtype=torch.bfloat16).t()), "contiguous"),
    "weights of other rows": (dict(topk_weights=torch.zeros(ROWS + 1, 2)), "topk_weights is"),
    "weights double": (dict(topk_weights=torch.zeros(ROWS, 2, dtype=torch.float64)), "topk_weights is float64"),
    "bias of other tokens": (dict(bias=torch.zeros(8, 16, dtype=torch.bfloat16)), "bias"),
    "bias of another type": (dict(bias=torch.zeros(9, 16)), "bias"),
    "three biases": (dict(bias=(None, None, None)), "bias"),
    "no handle's tensors": (dict(handle=(torch.ones(3),)), "no tensor that a dispatch"),
    "handle None": (dict(handle=None), "no tensor that a dispatch"),
}


@pytest.mark.parametrize("case", BAD_COMBINES)
def test_combine(case):
    wrong, match = BAD_COMBINES[case]
    outputs = outputs_of(INPUTS)

    def call(buffer, rank, handle, mine):
        arguments = dict(x=outputs[rank], handle=handle, topk_weights=INPUTS.received_topk(rank)[1])
        buffer.combine(**{**arguments, **(wrong if mine else {})})

    refused(call, match)


def other_handle(kind, buffer, rank, handle):
    """Tensors of a handle that does not come from Buffer.dispatch, made by all ranks."""
    x, ids = INPUTS.x[rank], INPUTS.topk_idx[rank]
    if kind == "V2":
        *_, other, _ = ElasticBuffer(buffer.group).dispatch(x, ids, num_experts=6, num_max_tokens_per_rank=9)
        return [other.recv_src_metadata]
    if kind == "none, after another type":
        buffer.dispatch(x.float(), handle=handle)
        return ()
    received = buffer.low_latency_dispatch(x, ids, 9, 6, use_fp8=False)
    return received[2] if kind == "low latency" else ()


OTHER_HANDLES = {
    "low latency": "of Buffer.low_latency_dispatch, need one of Buffer.dispatch",
    "V2": "of ElasticBuffer.dispatch, need one of Buffer.dispatch",
    "none, after low latency": "no tensor that a dispatch",
    "none, after another type": "no tensor that a dispatch",
}


@pytest.mark.parametrize("use", ["dispatch", "combine"])
@pytest.mark.parametrize("kind", OTHER_HANDLES)
def test_other_handles(kind, use):
    """A rank that gives such a handle is refused in the exchange in which the others are: that of the handle's own
    kind."""
    rows = INPUTS.x if use == "dispatch" else outputs_of(INPUTS)

    def call(buffer, rank, handle, mine):
        wrong = other_handle(kind, buffer, rank, handle)
        getattr(buffer, use)(rows[rank], handle=wrong if mine else handle)

    refused(call, OTHER_HANDLES[kind])


def test_ranks_that_want_different_things():
    def body(group):
        rank, buffer = group.rank, Buffer(group)
        x = INPUTS.x[rank] if rank else INPUTS.x[rank].float()
        for _ in range(2):
            with pytest.raises(ferry.Mismatch, match="rank 0 dispatches with dtype=float32.*; rank 1 with dtype=bfl"):
                send(buffer, INPUTS, rank, x=x)
        check_combine(buffer, INPUTS, rank, send(buffer, INPUTS, rank)[4])

    ferry.run_threads(3, body)


def test_all_ranks_are_wrong():
    def body(group):
        buffer = Buffer(group)
        with pytest.raises(ferry.InvalidArgument, match="expert_alignment is 0"):
            send(buffer, INPUTS, group.rank, expert_alignment=0)
        check_combine(buffer, INPUTS, group.rank, send(buffer, INPUTS, group.rank)[4])

    ferry.run_threads(3, body)


def test_layout_is_local_and_checks_its_arguments():
    def body(group):
        buffer = Buffer(group)
        if group.rank == 1:
            for ids in (torch.zeros(3, 2), torch.full((3, 2), 6), torch.full((3, 2), -2), torch.zeros(3).long()):
                with pytest.raises(ferry.InvalidArgument, match="topk_idx"):
                    buffer.get_dispatch_layout(ids, 6)
            for num_experts in (0, -1, "6", True, 2**31):
                with pytest.raises(ferry.InvalidArgument, match=f"num_experts is {num_experts!r}, need 1 to"):
                    buffer.get_dispatch_layout(INPUTS.topk_idx[1], num_experts)
        check_combine(buffer, INPUTS, group.rank, send(buffer, INPUTS, group.rank)[4])

    ferry.run_threads(3, body)


def test_an_exception_in_one_rank():
    errors = {}

    def body(group):
        buffer = Buffer(group)
        try:
            send(buffer, INPUTS, group.rank)
            if group.rank == 1:
                raise KeyError("of a user")
            send(buffer, INPUTS, group.rank)
        except Exception as error:
            errors[group.rank] = error
            raise

    began = time.monotonic()
    with pytest.raises(KeyError, match="of a user"):
        ferry.run_threads(3, body, deadline=60.0)
    assert time.monotonic() - began < 30
    assert isinstance(errors[0], ferry.PeerLost) and isinstance(errors[2], ferry.Error)


def test_ranks_that_use_handles_of_different_dispatches():
    def body(group):
        rank, buffer = group.rank, Buffer(group)
        handles = [send(buffer, INPUTS, rank)[4] for _ in range(2)]
        with pytest.raises(ferry.Mismatch):
            buffer.dispatch(INPUTS.x[rank], handle=handles[rank == 2])
        with pytest.raises(ferry.Mismatch):
            buffer.combine(outputs_of(INPUTS)[rank], handles[rank == 2])
        check_combine(buffer, INPUTS, rank, handles[1])

    ferry.run_threads(3, body, deadline=30.0)


def test_life_of_a_buffer():
    def body(group):
        with pytest.raises(ferry.InvalidArgument, match="group .* or a comm"):
            Buffer(None)
        buffer = Buffer(group, explicitly_destroy=True)
        recv_x, *_, handle, _ = send(buffer, INPUTS, group.rank)
        buffer.destroy()
        assert same_bits(recv_x, INPUTS.received(group.rank, INPUTS.x))
        for call in (buffer.destroy, lambda: send(buffer, INPUTS, group.rank)):
            with pytest.raises(ferry.Closed, match="destroyed"):
                call()
        assert buffer.group is group and buffer.rank == group.rank and buffer.group_size == 3
        second = Buffer(group)  # the exchange of the handle still exists
        check_combine(second, INPUTS, group.rank, handle)

    ferry.run_threads(3, body)
    gc.collect()


def test_raw_memory_and_streams():
    def body(group):
        buffer = Buffer(group, 1000, 64)
        raw = buffer.get_local_buffer_tensor(torch.uint8)
        raw.copy_(torch.arange(1000) % 251)
        assert raw.shape == (1000,)
        floats = buffer.get_local_buffer_tensor(torch.int32, torch.Size([3, 2]), offset=5)
        assert floats.shape == (3, 2) and same_bits(floats.reshape(-1), raw[20:44].view(torch.int32))
        assert buffer.get_local_buffer_tensor(torch.float64, use_rdma_buffer=True).shape == (8,)
        with pytest.raises(ferry.InvalidArgument, match="1000 bytes has 125 elements"):
            buffer.get_local_buffer_tensor(torch.float64, torch.Size([126]))
        stream = buffer.get_comm_stream()
        stream.wait_stream(stream)
        stream.wait_event(stream.record_event())
        stream.synchronize()
        assert stream.query() and Buffer.is_sm90_compiled() is _core.cuda_built()

    ferry.run_threads(1, body)


def test_events():
    event = Buffer.capture()
    assert isinstance(event, EventOverlap) and isinstance(event.event, EventHandle)
    seen = []
    event.register_hook_after_wait(lambda: seen.append(1) or "result")
    with pytest.raises(RuntimeError, match="a hook already"):
        event.register_hook_after_wait(print)
    with event as same:
        assert same is event and not seen
    assert seen == [1] and event.wait() is None and event.event is not None
    event.hook_after_wait = lambda: "result"
    assert event.current_stream_wait(release_handle=True) == "result" and event.event is None
    with event:
        pass
    with pytest.raises(RuntimeError, match="no event"):
        event.current_stream_wait()
    other = Buffer.capture()
    with other(release_handle=True):
        pass
    assert other.event is None
    assert EventOverlap(extra_tensors=(1,)).extra_tensors == (1,)


def test_configurations():
    assert Config(20, 6, 256, 6, 128).get_nvl_buffer_size_hint(7168 * 2, 8) == 335709824
    assert Config().get_rdma_buffer_size_hint(7168 * 2, 8) == 0
    assert Config(20, 6, 256, 6, 128).get_rdma_buffer_size_hint(7168 * 2, 16) == 86637184
    for wrong in (dict(num_sms=3), dict(num_max_nvl_chunked_send_tokens=256), dict(num_max_rdma_chunked_send_tokens=0),
                  dict(num_max_rdma_chunked_send_tokens=200, num_max_rdma_chunked_recv_tokens=100)):
        with pytest.raises(ferry.InvalidArgument):
            Config(**wrong)
    assert [Buffer.get_dispatch_config(r).nvl_send for r in (1, 2, 3, 8, 9, 160, 1000)] == [24, 24, 6, 6, 36, 28, 28]
    assert [Buffer.get_combine_config(r).nvl_send for r in (2, 4, 8, 16, 24, 144)] == [10, 9, 4, 4, 1, 2]
    before = Buffer.num_sms
    try:
        Buffer.set_num_sms(24)
        assert Buffer.get_dispatch_config(8).num_sms == Buffer.num_sms == 24
        with pytest.raises(ferry.InvalidArgument, match="num_sms is 7"):
            Buffer.set_num_sms(7)
    finally:
        Buffer.set_num_sms(before)


class Communicator:
    """What ferry needs of mpi4py's, on a ferry.Group."""

    def __init__(self, group):
        self._group = group

    def Get_rank(self):
        return self._group.rank

    def Get_size(self):
        return self._group.size

    def Allgather(self, mine, everything):
        everything[:] = b"".join(self._group.all_gather(bytes(mine)))


def test_handles_and_hooks_of_a_buffer_that_left_its_group(monkeypatch):
    """A buffer that joined by itself leaves its group when it is destroyed. What it returned says so, in a buffer that
    goes on too, where the other ranks get PeerRejected."""
    join = groups.join
    monkeypatch.setattr(groups, "join", lambda group, comm=None: join(
        *((None, group) if isinstance(group, Communicator) else (group, comm))))

    def body(group):
        gone, buffer = Buffer(Communicator(group)), Buffer(group)
        elastic, here = ElasticBuffer(Communicator(group)), ElasticBuffer(group)
        rank = group.rank
        x, ids = INPUTS.x[rank], INPUTS.topk_idx[rank]
        *_, handle, _ = send(gone, INPUTS, rank)
        *_, good, _ = send(buffer, INPUTS, rank)
        rows, _, low, _, hook = gone.low_latency_dispatch(x, ids, 9, 6, use_fp8=False, return_recv_hook=True)
        rows, _, low_here, _, _ = buffer.low_latency_dispatch(x, ids, 9, 6, use_fp8=False)
        old = elastic.dispatch(x, ids, num_experts=6, num_max_tokens_per_rank=9)[3]
        recv_x, _, _, new, _ = here.dispatch(x, ids, num_experts=6, num_max_tokens_per_rank=9)
        group.barrier()
        gone.destroy()
        elastic.destroy()
        with pytest.raises(ferry.Closed, match="the Buffer of this hook was destroyed"):
            hook()
        mine, weights = rank == 1, torch.ones(ids.shape)
        calls = [("Buffer", lambda: buffer.dispatch(x, handle if mine else good)),
                 ("Buffer", lambda: buffer.combine(outputs_of(INPUTS)[rank], handle if mine else good)),
                 ("Buffer", lambda: buffer.low_latency_combine(rows, ids, weights, low if mine else low_here)),
                 ("ElasticBuffer", lambda: here.dispatch(x, handle=old if mine else new)),
                 ("ElasticBuffer", lambda: here.combine(recv_x, old if mine else new))]
        for name, call in calls:
            with pytest.raises(ferry.Closed if mine else ferry.PeerRejected, match=f"the {name} of this handle was"):
                call()
        with pytest.raises(ferry.Closed, match="the Buffer of this handle was destroyed"):
            buffer.get_next_low_latency_combine_buffer(low)
        check_combine(buffer, INPUTS, rank, good)

    ferry.run_threads(3, body, deadline=30.0)
