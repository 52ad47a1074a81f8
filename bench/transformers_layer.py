#!/usr/bin/env python3
"""One MoE layer of transformers on several ranks: ferry against transformers' own all_to_all over gloo.

    python bench/transformers_layer.py [--ranks 2] [--tokens 512] [--hidden 1024] [--experts 32] [--top-k 8] ...

The ways take turns, in one process per rank and one run: round by round each runs once, forward and then forward with
backward. A time is that of the slowest rank; the table has medians, and how many times as fast as all_to_all. Experts
that do nothing return their rows (rank_major: times the sum of their weights). docs/transformers.md has figures.
"""

import argparse
import itertools
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import Qwen3MoeConfig
from transformers.distributed.expert_parallel import EPImplementationInterface
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

import ferry
import ferry.transformers

WAYS = ("all_to_all", "ferry", "ferry_rank_major")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WARMUP = 2


class Nothing(torch.nn.Module):
    """Experts whose output is their input."""

    def __init__(self, num_experts):
        super().__init__()
        self.num_experts = num_experts

    def forward(self, rows, ids, weights):
        if ids.size(1) == 1:
            return rows
        return (rows * (weights * (ids < self.num_experts)).sum(1, keepdim=True)).to(rows.dtype)


def make_experts(kind, shape, num_experts, dtype):
    if kind == "nothing":
        return Nothing(num_experts)
    config = Qwen3MoeConfig(hidden_size=shape.hidden, moe_intermediate_size=shape.intermediate,
                            num_experts=num_experts)
    config._experts_implementation = kind
    experts = Qwen3MoeExperts(config).to(dtype)
    experts._is_expert_parallel = True
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, 0, 0.02)
    return experts


def make_batch(shape, group, dtype, routing):
    """tokens, ids, weights and output gradients of this rank; skewed: every token goes to experts of rank 0."""
    generator = torch.Generator().manual_seed(group.rank)
    tokens, grads = (torch.randn(shape.tokens, shape.hidden, generator=generator).to(dtype) for _ in range(2))
    scores = torch.randn(shape.tokens, shape.experts, generator=generator)
    if routing == "skewed":
        scores[:, shape.experts // group.size :] -= 100
    weights, ids = scores.softmax(-1).topk(shape.top_k)
    return tokens, ids, (weights / weights.sum(1, keepdim=True)).to(dtype), grads


def forward(way, experts, tokens, ids, weights, grads):
    with torch.no_grad():
        way(tokens, ids, weights)


def forward_and_backward(way, experts, tokens, ids, weights, grads):
    experts.zero_grad()
    way(tokens.clone().requires_grad_(), ids, weights.clone().requires_grad_()).backward(grads)


def measure(shape, ways, experts, batch):
    """{(way, pass): seconds of each round}"""
    passes = {"forward": forward, "and backward": forward_and_backward}
    times = {key: [] for key in itertools.product(ways, passes)}
    for _ in range(WARMUP + shape.rounds):
        for name, run in times:
            dist.barrier()
            begin = time.perf_counter()
            passes[run](ways[name], experts, *batch)
            took = torch.tensor(time.perf_counter() - begin)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            times[name, run].append(float(took))
    return {key: statistics.median(each[WARMUP:]) for key, each in times.items()}


def play(group, shape, folder):
    """Rank 0 prints a line for each case as soon as it has it."""
    torch.set_num_threads(1)
    torch.manual_seed(group.rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=group.rank, world_size=group.size)
    mesh = init_device_mesh("cpu", (group.size, 1), mesh_dim_names=("ep", "tp"))
    for kind, dtype, routing in itertools.product(shape.kinds, shape.dtypes, ("spread", "skewed")):
        experts = make_experts(kind, shape, shape.experts // group.size, DTYPES[dtype])
        implementations = EPImplementationInterface()
        ways = {name: implementations[name](experts, mesh["ep"], mesh["tp"]) for name in WAYS}
        found = measure(shape, ways, experts, make_batch(shape, group, DTYPES[dtype], routing))
        for run in ("forward", "and backward"):
            reference = found["all_to_all", run]
            each = [f"{found[name, run] * 1e3:9.2f} {reference / found[name, run]:6.2f}x" for name in WAYS]
            if group.rank == 0:
                print(f"{kind:11} {dtype:9} {routing:7} {run:13}", *each, flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    sizes = dict(ranks=2, tokens=512, hidden=1024, experts=32, top_k=8, intermediate=128, rounds=11)
    for name, default in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--kinds", nargs="+", default=["nothing", "grouped_mm", "eager"], help="of experts")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    shape = parser.parse_args()
    print(f"{shape.ranks} ranks, {shape.tokens} tokens x {shape.hidden} each, {shape.experts} experts, "
          f"top {shape.top_k}; milliseconds, and times as fast as all_to_all")
    print(f"{'experts':11} {'type':9} {'routing':7} {'pass':13}", *(f"{name:>17}" for name in WAYS), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        ferry.spawn(shape.ranks, play, shape, folder, deadline=600)


if __name__ == "__main__":
    main()
