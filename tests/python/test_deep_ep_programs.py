"""Programs as people write them for DeepEP, in independent code: its test loops, an engine's prepare and finalize, and
Megatron's fused all-to-all as autograd functions."""

import gc

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist

import ferry
from ferry.conformance.deep_ep_oracle import Inputs, same_bits
from ferry.deep_ep import Buffer, EventOverlap
from test_deep_ep_buffer import check_combine, send


def quantise(x):
    """float8 rows and a float32 scale for each 128 channels."""
    blocks = x.float().unflatten(1, (-1, 128))
    amax = blocks.abs().amax(2).clamp(1e-4)
    return (blocks * (448 / amax).unsqueeze(2)).view(x.shape).to(torch.float8_e4m3fn), amax / 448


def dequantise(pair):
    rows, scales = pair
    return (rows.float().unflatten(1, (-1, 128)) * scales.unsqueeze(2)).view(rows.shape).bfloat16()


def gathered(group, tensor):
    """The tensors of all ranks, which may have different numbers of rows."""
    sizes = [int.from_bytes(part, "little") for part in group.all_gather(len(tensor).to_bytes(8, "little"))]
    padded = tensor.new_zeros((max(sizes + [1]), *tensor.shape[1:]))
    padded[:len(tensor)] = tensor
    parts = group.all_gather(padded.view(torch.uint8).numpy().tobytes())
    return [torch.frombuffer(bytearray(part), dtype=torch.uint8).view(tensor.dtype).view(padded.shape)[:size]
            for part, size in zip(parts, sizes)]


def check_by_source(recv_x, prefix):
    """Rows whose values name their source rank, in blocks that the prefix sums bound."""
    assert torch.equal(recv_x.amin(1), recv_x.amax(1))
    start = 0
    for source, end in enumerate(prefix.tolist()):
        assert bool((recv_x[start:end].int() == source).all())
        start = end
    assert start == len(recv_x)


def one_round_of_a_loop(group, buffer, form, num_experts=16, top_k=4, hidden=256):
    """Routing by groups of experts as in a router, then every check that such loops make."""
    rank, num_ranks, generator = group.rank, group.size, torch.Generator().manual_seed(group.rank + 1)
    num_tokens = 20 + 3 * rank
    scores = torch.randn((num_tokens, num_experts), generator=generator).abs() + 1
    topk_idx = scores.topk(top_k, dim=-1).indices
    topk_idx.masked_fill_(torch.rand(topk_idx.shape, generator=generator) < 0.1, -1)
    topk_weights = torch.full(topk_idx.shape, float(rank + 1))
    x = torch.full((num_tokens, hidden), float(rank), dtype=torch.bfloat16)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, num_experts)
    all_counts = torch.stack(gathered(group, per_expert)).sum(0).view(num_ranks, -1)
    arguments = dict(x=quantise(x) if form["fp8"] else x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
                     num_tokens_per_expert=per_expert, async_finish=form["async"])
    if form["topk"]:
        arguments.update(topk_idx=topk_idx, topk_weights=topk_weights)
    if form["async"]:
        arguments.update(previous_event=Buffer.capture(), allocate_on_comm_stream=True)
    recv_x, recv_idx, recv_weights, counts, handle, event = buffer.dispatch(**arguments)
    event.current_stream_wait()
    recv_x = dequantise(recv_x) if form["fp8"] else recv_x
    prefix = handle[0]
    assert torch.equal(prefix[-1], torch.stack(gathered(group, per_rank)).sum(0))
    assert counts == all_counts[rank].tolist() and len(recv_x) == int(prefix[-1, rank])
    check_by_source(recv_x, prefix[:, rank])
    if form["topk"]:
        assert bool(((recv_idx == -1) | ((recv_idx >= 0) & (recv_idx < num_experts // num_ranks))).all())
        assert counts == [int((recv_idx == local).sum()) for local in range(num_experts // num_ranks)]
        recv_weights[recv_idx == -1] = recv_weights.amax(1, True).expand_as(recv_weights)[recv_idx == -1]
        check_by_source(recv_weights - 1, prefix[:, rank])
    cached = buffer.dispatch(x=arguments["x"], handle=handle)[0]
    check_by_source(dequantise(cached) if form["fp8"] else cached, prefix[:, rank])
    bias = torch.randn((num_tokens, hidden), generator=generator).bfloat16()
    combined, home, event = buffer.combine(recv_x, handle, topk_weights=recv_weights, bias=bias,
                                           async_finish=form["async"])
    event.current_stream_wait()
    copies = in_rank.sum(1, keepdim=True)
    assert same_bits(combined, (bias.float() + x.float() * copies).bfloat16())
    if form["topk"]:
        sent = copies > 0
        assert torch.equal(home[sent.view(-1)] / copies[sent].view(-1, 1), topk_weights[sent.view(-1)])


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_a_loop_that_gathers_everybodys_inputs(num_ranks):
    def body(group):
        buffer = Buffer(group, int(1e8))
        for fp8 in (False, True):
            for topk in (False, True):
                for later in (False, True):
                    one_round_of_a_loop(group, buffer, {"fp8": fp8, "topk": topk, "async": later})

    ferry.run_threads(num_ranks, body)


class HighThroughput:
    """An engine's half of a layer around its experts: quantise, send, and later weight, reduce and send back."""

    def __init__(self, buffer, num_experts):
        self.buffer, self.num_experts, self.handle = buffer, num_experts, None

    def prepare(self, x, topk_idx, topk_weights):
        rows, scales = quantise(x)
        per_rank, per_node, per_expert, in_rank, event = self.buffer.get_dispatch_layout(
            topk_idx=topk_idx, num_experts=self.num_experts, previous_event=None, async_finish=False,
            allocate_on_comm_stream=False)
        received, idx, weights, per_local, self.handle, event = self.buffer.dispatch(
            x=(rows, scales), handle=None, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=topk_idx, topk_weights=topk_weights,
            expert_alignment=1, config=None, previous_event=event, async_finish=True, allocate_on_comm_stream=False)
        if event.event is not None:
            event.current_stream_wait()
        return dequantise(received), idx, weights, per_local

    def finalize(self, rows):
        combined, _, event = self.buffer.combine(x=rows, handle=self.handle, topk_weights=None, config=None,
                                                 previous_event=None, async_finish=True, allocate_on_comm_stream=False)
        event.current_stream_wait()
        return combined


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_an_engine_between_prepare_and_finalize(num_ranks):
    inputs = Inputs(71, [13, 8, 0][:num_ranks], hidden=128, num_experts=6, top_k=3, unused=0.1)
    experts = torch.randn(6, 128, 128, generator=torch.Generator().manual_seed(2)) / 12

    def run_experts(rank, rows, idx, weights):
        out = torch.zeros(rows.shape)
        for local, expert in enumerate(inputs.experts_of(rank)):
            mine = torch.where(idx == local, weights, 0.0).sum(1, keepdim=True)
            out += mine * (rows.float() @ experts[expert])
        return out.bfloat16()

    def body(group):
        rank, engine = group.rank, HighThroughput(Buffer(group), 6)
        for _ in range(3):
            rows, idx, weights, counts = engine.prepare(
                inputs.x[rank], inputs.topk_idx[rank], inputs.topk_weights[rank])
            assert same_bits(rows, inputs.received(rank, [dequantise(quantise(x)) for x in inputs.x]))
            assert counts == inputs.expert_list(rank)
            result = engine.finalize(run_experts(rank, rows, idx, weights))
        here = dequantise(quantise(inputs.x[rank])).float()
        whole = torch.zeros(here.shape)
        for k in range(3):
            ids, factors = inputs.topk_idx[rank][:, k], inputs.topk_weights[rank][:, k:k + 1]
            product = torch.bmm(here.unsqueeze(1), experts[ids.clamp(0)]).squeeze(1)
            whole += torch.where(ids.unsqueeze(1) >= 0, factors * product, 0.0)
        torch.testing.assert_close(result.float(), whole, rtol=2e-2, atol=2e-2)

    ferry.run_threads(num_ranks, body)


class FusedDispatch(torch.autograd.Function):
    """Forward sends tokens and their probabilities, backward sends both gradients back along the handle."""

    @staticmethod
    def forward(ctx, x, ids, probabilities, num_experts, buffer):
        event = EventOverlap(Buffer.capture().event)
        per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(
            ids, num_experts, previous_event=event, async_finish=True, allocate_on_comm_stream=True)
        recv_x, recv_ids, recv_probabilities, counts, handle, event = buffer.dispatch(
            x, topk_idx=ids, topk_weights=probabilities, num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
            previous_event=event, async_finish=True, allocate_on_comm_stream=True)
        event.current_stream_wait()
        ctx.buffer, ctx.handle = buffer, handle
        return recv_x, recv_ids, recv_probabilities, torch.tensor(counts), handle

    @staticmethod
    def backward(ctx, grad_x, grad_ids, grad_probabilities, grad_counts, grad_handle):
        grad_x, grad_probabilities, event = ctx.buffer.combine(
            grad_x.contiguous(), ctx.handle, topk_weights=grad_probabilities.float(),
            previous_event=EventOverlap(Buffer.capture().event), async_finish=True, allocate_on_comm_stream=True)
        event.current_stream_wait()
        return grad_x, None, grad_probabilities, None, None


class FusedCombine(torch.autograd.Function):
    """Forward combines rows; backward dispatches the gradient to the experts with the same handle."""

    @staticmethod
    def forward(ctx, x, handle, buffer):
        combined, _, event = buffer.combine(x, handle=handle, async_finish=True,
                                            previous_event=EventOverlap(Buffer.capture().event))
        event.current_stream_wait()
        ctx.save_for_backward(*handle)
        ctx.buffer = buffer
        return combined

    @staticmethod
    def backward(ctx, grad):
        grad_x, *_, event = ctx.buffer.dispatch(grad.contiguous(), handle=ctx.saved_tensors, async_finish=True,
                                                previous_event=EventOverlap(Buffer.capture().event))
        event.current_stream_wait()
        return grad_x, None, None


def dense_layer(x, ids, probabilities, experts):
    """The same layer on one rank, without any dispatch."""
    out = torch.zeros_like(x)
    for k in range(ids.shape[1]):
        product = torch.bmm(x.unsqueeze(1), experts[ids[:, k].clamp(0)]).squeeze(1)
        out = out + torch.where(ids[:, k:k + 1] >= 0, probabilities[:, k:k + 1] * product, torch.zeros(()))
    return out


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("layers", [1, 6])
def test_fused_functions_of_a_trainer(num_ranks, layers):
    inputs = Inputs(73, [11, 7, 0, 5][:num_ranks], hidden=8, num_experts=8, top_k=3, dtype=torch.float32)
    weights = torch.randn(8, 8, 8, generator=torch.Generator().manual_seed(3)) / 3
    targets = [torch.randn(x.shape, generator=torch.Generator().manual_seed(4)) for x in inputs.x]

    def parallel(group):
        rank, buffer = group.rank, Buffer(group)
        x = inputs.x[rank].clone().requires_grad_()
        probabilities = inputs.topk_weights[rank].clone().requires_grad_()
        experts = weights.clone().requires_grad_()
        hidden = x
        for _ in range(layers):
            rows, ids, factors, _, handle = FusedDispatch.apply(hidden, inputs.topk_idx[rank], probabilities, 8, buffer)
            out = torch.zeros_like(rows)
            for local, expert in enumerate(inputs.experts_of(rank)):
                mine = torch.where(ids == local, factors, torch.zeros(())).sum(1, keepdim=True)
                out = out + mine * (rows @ experts[expert])
            hidden = hidden + FusedCombine.apply(out, handle, buffer)
        (hidden * targets[rank]).sum().backward()
        return hidden.detach(), x.grad, probabilities.grad, experts.grad

    results = ferry.run_threads(num_ranks, parallel)
    experts = weights.clone().requires_grad_()
    for rank, (hidden, grad_x, grad_probabilities, _) in enumerate(results):
        x = inputs.x[rank].clone().requires_grad_()
        probabilities = inputs.topk_weights[rank].clone().requires_grad_()
        whole = x
        for _ in range(layers):
            whole = whole + dense_layer(whole, inputs.topk_idx[rank], probabilities, experts)
        (whole * targets[rank]).sum().backward()
        torch.testing.assert_close(hidden, whole.detach())
        torch.testing.assert_close(grad_x, x.grad)
        torch.testing.assert_close(grad_probabilities, probabilities.grad)
    torch.testing.assert_close(sum(result[3] for result in results), experts.grad, rtol=1e-5, atol=1e-4)


class Communicator:
    """The part of an mpi4py communicator that is used, implemented by torch.distributed."""

    Get_rank = staticmethod(dist.get_rank)
    Get_size = staticmethod(dist.get_world_size)

    @staticmethod
    def Allgather(mine, everything):
        parts = torch.frombuffer(everything, dtype=torch.uint8).view(dist.get_world_size(), -1)
        dist.all_gather(list(parts), torch.frombuffer(mine, dtype=torch.uint8))


def with_a_process_group(group, path):
    """A rank in a separate process that uses torch.distributed only."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=group.rank, world_size=group.size)
    buffer = Buffer(dist.group.WORLD, int(1e6), low_latency_mode=False, num_qps_per_rank=1)
    assert buffer.group is dist.group.WORLD and (buffer.rank, buffer.group_size) == (group.rank, group.size)
    one_round_of_a_loop(group, buffer, {"fp8": True, "topk": True, "async": False}, num_experts=6)
    second = Buffer(dist.group.WORLD)
    one_round_of_a_loop(group, second, {"fp8": False, "topk": True, "async": True}, num_experts=6)
    inputs = Inputs(79, [5, 8])
    handle = send(buffer, inputs, group.rank)[4]
    check_combine(second, inputs, group.rank, handle)  # a trainer that has made a larger buffer since
    buffer.destroy()
    with pytest.raises(ferry.Closed):
        second.combine(inputs.received(group.rank, inputs.x), handle)
    handle = send(Buffer(dist.group.WORLD), inputs, group.rank)[4]
    gc.collect()
    check_combine(second, inputs, group.rank, handle)  # the handle keeps the memory of the buffer, which is gone
    one_round_of_a_loop(group, second, {"fp8": False, "topk": False, "async": True}, num_experts=6)
    third = Buffer(None, comm=Communicator())
    one_round_of_a_loop(group, third, {"fp8": False, "topk": True, "async": False}, num_experts=6)
    dist.barrier()
    dist.destroy_process_group()
    return True


def test_ranks_that_are_processes_of_a_process_group(tmp_path):
    assert ferry.spawn(2, with_a_process_group, str(tmp_path / "store")) == [True] * 2
