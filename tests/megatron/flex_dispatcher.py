"""Megatron-Core's flex dispatcher with its deepep back end, forward and backward, against Megatron's own all-gather
dispatcher on the same ranks. Started by test_flex_dispatcher.py: torchrun ... -m ferry.deep_ep --map-cuda this TP TYPE.

Nothing here knows ferry: Megatron imports deep_ep. With expert tensor parallelism a token's output is the sum of two
shards, which the two dispatchers add in different order; in float32 inputs of few bits make every order give the same
sum, in bfloat16 one rounding may differ.
"""

import os
import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe import fused_a2a, token_dispatcher
from megatron.core.transformer.transformer_config import TransformerConfig

SEQUENCE, HIDDEN, INNER, EXPERTS, TOPK = 12, 64, 32, 8, 2


def groups(tp):
    """Expert parallel, expert tensor parallel and both, of all ranks; tensor parallel ranks are neighbours."""
    size, rank = dist.get_world_size(), dist.get_rank()
    made = ProcessGroupCollection()
    for first in range(tp):
        ranks = list(range(first, size, tp))
        group = dist.new_group(ranks)
        made.ep = group if rank in ranks else getattr(made, "ep", None)
    for first in range(0, size, tp):
        ranks = list(range(first, first + tp))
        group = dist.new_group(ranks)
        made.expt_tp = group if rank in ranks else getattr(made, "expt_tp", None)
    made.tp_ep = dist.group.WORLD
    return made


def dispatcher(kind, tp, dtype, pgs):
    ep = dist.get_world_size() // tp
    flex = {"moe_flex_dispatcher_backend": "deepep"} if kind == "flex" else {}
    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=4, num_moe_experts=EXPERTS, moe_router_topk=TOPK,
        moe_token_dispatcher_type=kind, moe_router_dtype="fp32", add_bias_linear=False, params_dtype=dtype,
        expert_model_parallel_size=ep, expert_tensor_parallel_size=tp, tensor_model_parallel_size=tp,
        sequence_parallel=tp > 1, **flex)
    local = EXPERTS // ep
    first = dist.get_rank() // tp * local
    made = {"flex": token_dispatcher.MoEFlexTokenDispatcher, "allgather": token_dispatcher.MoEAllGatherTokenDispatcher}
    return made[kind](local, list(range(first, first + local)), config, pgs)


def few_bits(shape, seed, dtype, values=4):
    """Numbers whose sums and products are exact in every order."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-values, values + 1, shape, generator=generator).float() / values).to(dtype)


def any_bits(shape, seed, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def routing(seed, skewed):
    """(bool [T, E], float32 [T, E]): the choices of each token and their probabilities, powers of two."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(SEQUENCE, EXPERTS, generator=generator) + (torch.arange(EXPERTS) < 2) * skewed * 10.0
    chosen = torch.zeros(SEQUENCE, EXPERTS, dtype=torch.bool).scatter_(1, scores.topk(TOPK, dim=1).indices, True)
    return chosen, torch.where(chosen, 0.5, 0.0) * (1 + torch.randint(0, 2, chosen.shape, generator=generator))


def layer(made, tp, dtype, skewed, draw):
    """(output, gradients of tokens, probabilities, experts) of one layer through a dispatcher."""
    rank = dist.get_rank()
    x = draw((SEQUENCE, 1, HIDDEN), 10 + rank, dtype).requires_grad_()
    chosen, probs = routing(20 + rank, skewed)
    probs.requires_grad_()
    shard = slice(rank % tp * INNER // tp, (rank % tp + 1) * INNER // tp)
    up = [draw((HIDDEN, INNER), 100 + e, dtype)[:, shard].clone().requires_grad_() for e in made.local_expert_indices]
    down = [draw((INNER, HIDDEN), 200 + e, dtype)[shard].clone().requires_grad_() for e in made.local_expert_indices]
    hidden, scores = made.dispatch_preprocess(x, chosen, probs)
    hidden, scores = made.token_dispatch(hidden, scores)
    rows, counts, weights = made.dispatch_postprocess(hidden, scores)
    parts = zip(rows.split(counts.tolist()), weights.split(counts.tolist()), up, down)
    rows = torch.cat([(part @ a @ b) * weight.unsqueeze(1).to(part.dtype) for part, weight, a, b in parts])
    out = made.combine_postprocess(made.token_combine(made.combine_preprocess(rows)))
    (out.float() * few_bits(out.shape, 30 + rank, torch.float32)).sum().backward()
    return [out.detach(), x.grad, probs.grad, *(weight.grad for weight in up + down)]


def same(have, want, rounded):
    """Equal bits; rounded: but for the last bit of the largest, in bfloat16."""
    if have is None or want is None or not rounded:
        return have is want or torch.equal(have, want)
    return bool(((have - want).abs() <= want.abs().max() / 128).all())


def main():
    tp, dtype = int(sys.argv[1]), getattr(torch, sys.argv[2])
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    assert fused_a2a.HAVE_DEEP_EP
    parallel_state._set_global_memory_buffer()
    pgs = groups(tp)
    draws = [few_bits] if tp > 1 else [few_bits, any_bits]
    for skewed in (False, True):
        for draw in draws:
            ours, theirs = (layer(dispatcher(kind, tp, dtype, pgs), tp, dtype, skewed, draw)
                            for kind in ("flex", "allgather"))
            for number, (have, want) in enumerate(zip(ours, theirs)):
                assert same(have, want, tp > 1 and dtype == torch.bfloat16), (
                    skewed, draw.__name__, number, (have - want).abs().max(), want.abs().max())
    dist.barrier()
    sys.stdout.write(f"rank {dist.get_rank()}: same bits\n")  # one write: other ranks print at the same time
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
