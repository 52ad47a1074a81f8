"""A whole Mixture-of-Experts layer, forward and backward: `python -m ferry.bench.layer [--json]`.

    layer       ferry.torch.MoE: one call
    batches     the same with overlap="batches"
    three       dispatch, experts, combine by hand
    all_to_all  transformers' grouped_mm experts behind its all_to_all over gloo, where transformers is installed
    dense       as many tokens as all ranks have, and all experts, in one process on all cores

The ways take turns in every round, each round in another order. They run in the same ranks and with the same weights;
dense has weights of its own, and the tokens of rank 0 once for each rank. A time is that of the slowest rank; the table
has medians. Ranks are processes, or with --launched those of a launcher. Needs torch; docs/moe.md has figures.
"""

import argparse
import json
import os
import random
import statistics
import struct
import sys
import tempfile
import time

import torch

import ferry
from ferry.moe import MoE, SwiGLU

from .page import when_and_where

# hidden, intermediate, experts, top-k. DeepSeek-V3 has 256 experts; here it has as many as one machine can hold.
SHAPES = {"deepseek-v3": (7168, 2048, 32, 8), "qwen3-30b-a3b": (2048, 768, 128, 8)}
WAYS = ("layer", "batches", "three", "all_to_all", "dense")
PASSES = ("forward", "backward")  # backward: with forward before it


def shape_of(text):
    """Reads a shape: a name in SHAPES, or the numbers H,I,E,K."""
    try:
        hidden, intermediate, experts, top_k = SHAPES.get(text) or map(int, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is none of {', '.join(SHAPES)}, and not H,I,E,K") from None
    return text, hidden, intermediate, experts, top_k


class Ways:
    """The ways to compute the layer on one rank. Each is a function of (tokens, ids, weights)."""

    def __init__(self, group, shape, tokens, wanted):
        _, self.hidden, self.intermediate, self.experts, self.top_k = shape
        self.group, self.threads = group, max(1, len(os.sched_getaffinity(0)) // group.size)
        self.moe = MoE(group, hidden=self.hidden, intermediate=self.intermediate, num_experts=self.experts,
                       top_k=self.top_k, max_tokens=max(tokens), layout="expert_major")
        self.calls = {}
        for name in wanted:
            call = getattr(self, name)
            self.calls[name] = call() if name in ("all_to_all", "dense") else call
        if self.calls.get("all_to_all", self) is None:
            del self.calls["all_to_all"]

    def layer(self, *batch):
        self.moe.overlap = None
        return self.moe(*batch)

    def batches(self, *batch):
        self.moe.overlap = "batches"
        return self.moe(*batch)

    def three(self, tokens, ids, weights):
        exchange, experts = self.moe.exchange, self.moe.experts
        dispatch, combine = exchange.dispatch, exchange.combine
        if torch.is_grad_enabled():
            def dispatch(*arguments):
                return ferry.torch.dispatch(exchange, *arguments)

            def combine(*arguments):
                return ferry.torch.combine(exchange, *arguments)

        received = dispatch(tokens, ids)
        outputs = experts(received.rows, received.handle.tokens_per_expert.tolist())
        return combine(outputs, received.handle, weights)

    def all_to_all(self):
        """Returns the function for transformers' all_to_all, or None if transformers 5.23 or later is not installed."""
        try:
            from torch.distributed.device_mesh import init_device_mesh
            from transformers import Qwen3MoeConfig
            from transformers.distributed.expert_parallel import EPImplementationInterface
            from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts
        except ImportError:
            return None
        mesh = init_device_mesh("cpu", (self.group.size, 1), mesh_dim_names=("ep", "tp"))
        config = Qwen3MoeConfig(hidden_size=self.hidden, moe_intermediate_size=self.intermediate,
                                num_experts=self.experts // self.group.size)
        config._experts_implementation = "grouped_mm"
        with torch.device("meta"):
            experts = Qwen3MoeExperts(config)
        experts.gate_up_proj, experts.down_proj = self.moe.experts.gate_up, self.moe.experts.down
        experts._is_expert_parallel = True
        way = EPImplementationInterface()["all_to_all"](experts, mesh["ep"], mesh["tp"])
        return lambda tokens, ids, weights: way(tokens, ids, weights.to(tokens.dtype))

    def dense(self):
        """Measures the dense layer on rank 0 while the other ranks wait."""
        whole = SwiGLU(self.experts, self.hidden, self.intermediate) if self.group.rank == 0 else None
        self.whole = whole

        def run(tokens, ids, weights):
            if whole is None:
                return None
            tokens, ids, weights = (each.repeat(self.group.size, 1) for each in (tokens, ids, weights))
            torch.set_num_threads(len(os.sched_getaffinity(0)))
            order = ids.flatten().argsort(stable=True)
            counts = ids.flatten().bincount(minlength=self.experts).tolist()
            outputs = whole(tokens[order // self.top_k], counts).float() * weights.flatten()[order].unsqueeze(1)
            sums = torch.zeros(tokens.shape, dtype=torch.float32).index_add(0, order // self.top_k, outputs)
            return sums.to(tokens.dtype)

        return run

    def batch(self, num_tokens, needs_gradient):
        generator = torch.Generator().manual_seed(self.group.rank)
        tokens = torch.randn(num_tokens, self.hidden, generator=generator).to(torch.bfloat16)
        scores = torch.randn(num_tokens, self.experts, generator=generator)
        weights, ids = scores.softmax(-1).topk(self.top_k)
        return tokens.requires_grad_(needs_gradient), ids, weights.requires_grad_(needs_gradient)

    def time(self, name, num_tokens, which):
        """Returns the seconds of the slowest rank."""
        batch = self.batch(num_tokens, which == "backward")
        for module in (self.moe, getattr(self, "whole", None)):
            if module is not None:
                module.zero_grad(set_to_none=True)
        time.sleep(0.25)  # threads of earlier products spin for a while, on other cores too
        self.group.barrier()
        begin = time.perf_counter()
        with torch.set_grad_enabled(which == "backward"):
            out = self.calls[name](*batch)
            if which == "backward" and out is not None:
                out.sum().backward()
        took = time.perf_counter() - begin
        torch.set_num_threads(self.threads)
        return max(struct.unpack("d", each)[0] for each in self.group.all_gather(struct.pack("d", took)))


def play(group, options, folder=None):
    """Measures all cases on one rank, and returns the cases with times, which are equal on all ranks. Collective."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // group.size))
    torch.manual_seed(group.rank)
    if folder and "all_to_all" in options.ways:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store{group.size}",
                                             rank=group.rank, world_size=group.size)
    cases = []
    if group.rank == 0 and not options.json:
        print(f"# {when_and_where()}\n# milliseconds, medians of {options.rounds} rounds\n"
              f"{'# shape':16} {'ranks':5} {'tokens':6} {'pass':9}" + "".join(f"{way:>11}" for way in WAYS), flush=True)
    for shape in options.shapes:
        ways = Ways(group, shape, options.tokens, options.ways)
        for num_tokens in options.tokens:
            for which in options.passes:
                names = list(ways.calls)
                times = {name: [] for name in names}
                for turn in range(options.rounds + 1):  # the first turn is not used
                    for name in random.Random(turn).sample(names, len(names)):  # the same order on all ranks
                        times[name].append(ways.time(name, num_tokens, which))
                medians = {name: statistics.median(each[1:]) * 1e3 for name, each in times.items()}
                cases.append({"shape": shape[0], "ranks": group.size, "tokens": num_tokens, "pass": which,
                              "median_ms": medians, "all_ms": {n: [t * 1e3 for t in e[1:]] for n, e in times.items()}})
                if group.rank == 0 and not options.json:
                    print(line_of(cases[-1]), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return cases


def line_of(case):
    cells = [f"{case['median_ms'][way]:11.2f}" if way in case["median_ms"] else f"{'-':>11}" for way in WAYS]
    return f"{case['shape']:16} {case['ranks']:5} {case['tokens']:6} {case['pass']:9}" + "".join(cells)


def main():
    parser = argparse.ArgumentParser(prog="python -m ferry.bench.layer", description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", type=shape_of, default=[shape_of(name) for name in SHAPES],
                        metavar="NAME|H,I,E,K", help=f"of {', '.join(SHAPES)}, or any (default: those)")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 16, 128, 1024], help="of each rank")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=list(PASSES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--launched", action="store_true", help="this process is a rank that a launcher started")
    parser.add_argument("--json", action="store_true", help="print one JSON object, and nothing else")
    options = parser.parse_args()
    cases = []
    if options.launched:
        group = ferry.init()
        cases = play(group, options)
        if group.rank:
            return
    else:
        for ranks in options.ranks:
            with tempfile.TemporaryDirectory() as folder:
                cases += ferry.spawn(ranks, play, options, folder, deadline=600)[0]
    if options.json:
        json.dump({"machine": when_and_where(), "cases": cases}, sys.stdout)
        print()


if __name__ == "__main__":
    main()
