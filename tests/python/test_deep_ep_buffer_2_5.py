"""DeepEP 2.5's names: EPBuffer with deferred halves, weights and gradients of redundant experts, BufferAllocator."""

import inspect

import pytest

torch = pytest.importorskip("torch")

import ferry.conformance.elastic_oracle as oracle
import ferry
from ferry.conformance.deep_ep_oracle import Inputs, same_bits
from ferry import deep_ep
from ferry.deep_ep import BufferAllocator, EPBuffer, EventOverlap

TOKENS, M = [9, 0, 12, 5], 13


def dispatch(buffer, inputs, rank, **more):
    return buffer.dispatch(inputs.x[rank], topk_idx=inputs.topk_idx[rank], topk_weights=inputs.topk_weights[rank],
                           num_experts=inputs.num_experts, **more)


@pytest.mark.parametrize("num_ranks", [1, 3, 4])
@pytest.mark.parametrize("expand", [False, True])
def test_deferred_halves(num_ranks, expand):
    inputs = [Inputs(seed, TOKENS[:num_ranks], num_experts=12, top_k=3) for seed in (1, 2)]

    def body(group):
        buffer, rank = EPBuffer(group, num_max_tokens_per_rank=M), group.rank
        options = dict(do_expand=expand, async_with_compute_stream=True, defer_epilogue=True)
        events = [dispatch(buffer, inputs[0], rank, **options)]
        for step, given in enumerate(inputs):
            assert isinstance(events[step], EventOverlap)
            recv_x, idx, weights, handle = events[step].wait()
            assert events[step].wait() is None
            want = oracle.expanded(given, rank, 1, given.x) if expand else given.received(rank, given.x)
            assert same_bits(recv_x, want) and handle.topk_idx is given.topk_idx[rank]
            event = buffer.combine(recv_x, handle, async_with_compute_stream=True, defer_epilogue=True)
            out, home = event.current_stream_wait()
            rows = [oracle.expanded(given, r, 1, given.x) if expand else given.received(r, given.x)
                    for r in range(num_ranks)]
            assert home is None and same_bits(out, oracle.combined(given, rank, rows, expand=expand))
            again = buffer.dispatch(given.x[rank], handle=handle, do_expand=expand, async_with_compute_stream=True,
                                    defer_epilogue=True).wait()
            assert same_bits(again[0], want) and again[3] is handle
            events.append(dispatch(buffer, inputs[1], rank, **options) if step == 0 else None)

    ferry.run_threads(num_ranks, body)


def test_topk_idx_may_not_change_under_a_handle():
    inputs = Inputs(3, TOKENS[:2])

    def body(group):
        buffer = EPBuffer(group, num_max_tokens_per_rank=M)
        recv_x, _, _, handle, _ = dispatch(buffer, inputs, group.rank)
        with torch.inference_mode():
            ids = inputs.topk_idx[group.rank].clone()
            inner = buffer.dispatch(inputs.x[group.rank], topk_idx=ids, num_experts=8)[3]
            buffer.combine(recv_x, inner)
        handle.topk_idx.add_(0)
        with pytest.raises(ferry.InvalidArgument, match="topk_idx was written to"):
            buffer.combine(recv_x, handle)

    ferry.run_threads(2, body)


@pytest.mark.parametrize("arguments, match", [(dict(defer_epilogue=True), "needs async_with_compute_stream"),
                                              (dict(do_handle_copy=True), "do_handle_copy is True")])
def test_what_a_dispatch_refuses(arguments, match):
    inputs = Inputs(4, TOKENS[:2])

    def body(group):
        buffer = EPBuffer(group, num_max_tokens_per_rank=M)
        with pytest.raises(ferry.InvalidArgument if group.rank == 0 else ferry.PeerRejected, match=match):
            dispatch(buffer, inputs, group.rank, **(arguments if group.rank == 0 else {}))
        dispatch(buffer, inputs, group.rank)

    ferry.run_threads(2, body)


def mapping_of(num_ranks, num_slots, num_owned, seed):
    generator = torch.Generator().manual_seed(seed)
    mapping = torch.randint(-1, num_ranks * num_owned, (num_ranks, num_slots), generator=generator, dtype=torch.int32)
    own = mapping.div(num_owned, rounding_mode="floor") == torch.arange(num_ranks)[:, None]
    return mapping.masked_fill(own, -1)


@pytest.mark.parametrize("num_ranks, num_slots, num_owned", [(1, 2, 2), (2, 1, 1), (3, 4, 2), (4, 3, 3), (34, 2, 1)])
def test_weights_come_and_gradients_go_back(num_ranks, num_slots, num_owned):
    everybodys = torch.randn(num_ranks * num_owned, 4, 8)
    scales = torch.randint(0, 99, (num_ranks * num_owned, 32), dtype=torch.uint8)
    slot_grads = torch.randn(num_ranks, num_slots, 6)

    def body(group):
        mine = slice(group.rank * num_owned, (group.rank + 1) * num_owned)
        buffer = EPBuffer(group, lb_allocation_plan_or_num_bytes=1 << 20)
        assert buffer.num_lb_bytes == 1 << 20 and buffer.lb_get_theoretical_num_sms() > 0
        for seed in range(2):
            mapping = mapping_of(num_ranks, num_slots, num_owned, seed)
            slots, slot_scales = torch.full((num_slots, 4, 8), -1.0), torch.zeros(num_slots, 32, dtype=torch.uint8)
            buffer.lb_prefetch_weights([slots, slot_scales], [everybodys[mine].clone(), scales[mine].clone()],
                                       mapping).wait()
            for slot, expert in enumerate(mapping[group.rank].tolist()):
                assert torch.equal(slots[slot], everybodys[expert] if expert >= 0 else torch.full((4, 8), -1.0))
                assert expert < 0 or torch.equal(slot_scales[slot], scales[expert])
            grads, want = torch.ones(num_owned, 6), torch.ones(num_owned, 6)
            buffer.lb_reduce_grads(slot_grads[group.rank].clone(), grads, mapping).wait()
            for rank in range(num_ranks):
                for slot, expert in enumerate(mapping[rank].tolist()):
                    if expert // num_owned == group.rank and expert >= 0:
                        want[expert - mine.start] += slot_grads[rank, slot]
            assert torch.equal(grads, want)

    ferry.run_threads(num_ranks, body)


@pytest.mark.parametrize("change, error, match", [
    (dict(mapping=torch.tensor([[0], [0]], dtype=torch.int32)), ferry.InvalidArgument, "expert 0 in slot 0 of rank 0"),
    (dict(mapping=torch.tensor([[9], [0]], dtype=torch.int32)), ferry.InvalidArgument, "from 0 to 9, need -1 to 1"),
    (dict(mapping=torch.tensor([[1, 1]], dtype=torch.int32)), ferry.InvalidArgument, "redundancy_mapping is int32"),
    (dict(mapping=torch.tensor([[-1], [0]], dtype=torch.int32)), ferry.Mismatch, "redundancy_mapping="),
    (dict(owned=torch.zeros(1, 3)), ferry.InvalidArgument, "12 bytes and a slot 32"),
    (dict(owned=[torch.zeros(1, 8)] * 2), ferry.InvalidArgument, "not 1 and 2")])
def test_what_redundant_experts_refuse(change, error, match):
    good = dict(mapping=torch.tensor([[1], [0]], dtype=torch.int32), owned=torch.zeros(1, 8))

    def body(group):
        buffer = EPBuffer(group)

        def call(mapping, owned):
            buffer.lb_prefetch_weights(torch.zeros(1, 8), owned, mapping)

        with pytest.raises(error if group.rank == 0 else (ferry.PeerRejected, ferry.Mismatch), match=match):
            call(**{**good, **(change if group.rank == 0 else {})})
        call(**good)

    ferry.run_threads(2, body)


def test_planned_tensors_get_memory_from_the_buffer():
    def body(group):
        plan = BufferAllocator()
        weights, scales = plan.allocate((3, 8), torch.bfloat16), plan.allocate((5,), torch.uint8)
        assert weights.device.type == "meta" and (plan.num_bytes, plan.materialized) == (96, False)
        assert EPBuffer(group, lb_allocation_plan_or_num_bytes=plan).num_lb_bytes == 96 and plan.materialized
        weights.fill_(2)
        scales.fill_(3)
        assert weights.sum() == 48 and scales.sum() == 15 and weights.data_ptr() + 64 == scales.data_ptr()
        for again in (lambda: plan.allocate((1,), torch.uint8), lambda: EPBuffer(
                group, lb_allocation_plan_or_num_bytes=plan)):
            with pytest.raises(ferry.InvalidArgument, match="BufferAllocator was given"):
                again()

    ferry.run_threads(1, body)


def test_names():
    assert list(inspect.signature(EPBuffer.combine).parameters)[-1] == "defer_epilogue"
    assert deep_ep.get_num_tma_alignment() == 32 and deep_ep.get_num_allocation_alignment() == 2 << 20
    for name in ("BucketBuffer", "BucketSession", "EngramBuffer", "PPBuffer"):
        with pytest.raises(NotImplementedError, match=f"{name} is not built"):
            getattr(deep_ep, name)(None, 1)
