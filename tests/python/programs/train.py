"""A program for GPUs: a layer of experts trained through DeepEP's normal kernels and through ElasticBuffer, backward by
calls with the handle of forward. Started by torchrun, one process a GPU.

Written for CUDA and NCCL; test_map_cuda.py runs it with `torchrun ... -m ferry.deep_ep --map-cuda`.
"""

import inspect
import os
import sys

import torch
import torch.distributed as dist

from deep_ep import Buffer, ElasticBuffer
from deep_ep.utils import EventHandle, EventOverlap

TOKENS, HIDDEN, EXPERTS, TOPK = 24, 64, 8, 2
_buffers = {}


def get_buffer(group):
    if "normal" not in _buffers:
        sizes = [0, 0]
        for config in (Buffer.get_dispatch_config(group.size()), Buffer.get_combine_config(group.size())):
            sizes = [max(sizes[0], config.get_nvl_buffer_size_hint(HIDDEN * 2, group.size())),
                     max(sizes[1], config.get_rdma_buffer_size_hint(HIDDEN * 2, group.size()))]
        _buffers["normal"] = Buffer(group, *sizes)
    return _buffers["normal"]


class FusedDispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, idx, probs, group):
        buffer, event = get_buffer(group), EventOverlap(EventHandle())
        per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(
            idx, EXPERTS, previous_event=event, async_finish=True, allocate_on_comm_stream=True)
        rows, ids, weights, counts, handle, event = buffer.dispatch(
            x, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert, topk_idx=idx, topk_weights=probs, previous_event=event, async_finish=True,
            allocate_on_comm_stream=True)
        event.current_stream_wait()
        ctx.handle, ctx.group = handle, group
        return rows, ids, weights, torch.tensor(counts, device="cuda"), handle

    @staticmethod
    def backward(ctx, grad_rows, _, grad_weights, *__):
        grad, grad_probs, event = get_buffer(ctx.group).combine(
            grad_rows.contiguous(), ctx.handle, topk_weights=grad_weights.float(), previous_event=Buffer.capture(),
            async_finish=True, allocate_on_comm_stream=True)
        event.current_stream_wait()
        return grad, None, grad_probs * torch.ones((), device="cuda").cuda(), None


class FusedCombine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, handle, group):
        ctx.handle, ctx.group = handle, group
        return get_buffer(group).combine(rows, handle)[0]

    @staticmethod
    def backward(ctx, grad):
        return get_buffer(ctx.group).dispatch(grad.contiguous(), handle=ctx.handle)[0], None, None


class ElasticLayer(torch.autograd.Function):
    """Sends rows to their experts and back; the experts are the identity: each token times the sum of its weights."""

    @staticmethod
    def forward(ctx, x, idx, probs, buffer):
        rows, _, weights, handle, event = buffer.dispatch(
            x, topk_idx=idx, topk_weights=probs, num_experts=EXPERTS, num_max_tokens_per_rank=TOKENS, do_expand=True,
            async_with_compute_stream=True)
        event.current_stream_wait()
        ctx.buffer, ctx.handle = buffer, handle
        ctx.save_for_backward(handle.recv_src_metadata, weights)
        return buffer.combine(rows * weights.unsqueeze(1).to(rows.dtype), handle=handle)[0]

    @staticmethod
    def backward(ctx, grad):
        metadata, weights = ctx.saved_tensors
        ctx.handle.recv_src_metadata = metadata
        rows = ctx.buffer.dispatch(grad.contiguous(), handle=ctx.handle, do_expand=True, num_sms=ctx.handle.num_sms)[0]
        return ctx.buffer.combine(rows * weights.unsqueeze(1).to(rows.dtype), handle=ctx.handle)[0], None, None, None


@torch.compile(dynamic=True)
def weighted(rows, ids, weights, experts):
    out = torch.zeros_like(rows)
    for local in range(len(experts)):
        share = torch.where(ids == local, weights, torch.zeros((), device="cuda")).sum(1, keepdim=True)
        out = out + share.to(rows.dtype) * (rows @ experts[local])
    return out


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", local_rank))
    group, rank = dist.group.WORLD, dist.get_rank()
    assert "allocate_on_comm_stream" in inspect.signature(Buffer.dispatch).parameters
    assert torch.cuda.current_device() == local_rank < torch.cuda.device_count() == dist.get_world_size()
    torch.cuda.manual_seed(rank)
    x = torch.randn(TOKENS, HIDDEN, device="cuda", requires_grad=True)
    probs, idx = torch.rand(TOKENS, EXPERTS, device=f"cuda:{local_rank}").topk(TOPK, dim=1)
    probs = probs.clone().requires_grad_()
    torch.cuda.manual_seed(7)
    every_expert = (torch.randn(EXPERTS, HIDDEN, HIDDEN, device="cuda") / 8).requires_grad_()
    local = EXPERTS // group.size()
    experts = torch.nn.Parameter(every_expert.detach()[rank * local:(rank + 1) * local].clone()).cuda()
    rows, ids, weights, counts, handle = FusedDispatch.apply(x, idx, probs, group)
    assert rows.is_cuda and int(counts.sum()) == int((ids >= 0).sum())
    FusedCombine.apply(weighted(rows, ids, weights, experts), handle, group).square().sum().backward()
    x2, probs2 = x.detach().clone().requires_grad_(), probs.detach().clone().requires_grad_()
    dense = sum(probs2[:, k:k + 1] * torch.einsum("th,thj->tj", x2, every_expert[idx[:, k]]) for k in range(TOPK))
    dense.square().sum().backward()
    dist.all_reduce(every_expert.grad)
    torch.testing.assert_close(x.grad, x2.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(probs.grad, probs2.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(experts.grad, every_expert.grad[rank * local:(rank + 1) * local], rtol=1e-4, atol=1e-3)
    elastic = ElasticBuffer(group, num_max_tokens_per_rank=TOKENS, hidden=HIDDEN, num_topk=TOPK)
    x3 = x.detach().clone().requires_grad_()
    y = ElasticLayer.apply(x3, idx, probs.detach(), elastic)
    share = probs.detach().sum(1, keepdim=True)
    torch.testing.assert_close(y, x3 * share)
    y.sum().backward()
    torch.testing.assert_close(x3.grad, share.expand_as(x3))
    x.data.record_stream(torch.cuda.current_stream())
    dist.barrier(device_ids=[local_rank])
    dist.destroy_process_group()
    sys.stdout.write(f"trained on rank {rank}\n")  # one write: the other rank prints at the same time
    sys.stdout.flush()


if __name__ == "__main__":
    main()
