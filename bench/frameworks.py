#!/usr/bin/env python3
"""Training steps of MoE models of other frameworks, over Gloo and over ferry in turns.

    python bench/frameworks.py torchtitan|deepspeed|megatron [--ranks 2] [--expert-ranks 2] [--rounds 5] [--steps 6]

Each round runs bench/<framework>_steps.py by torchrun, once for each backend: the first step of a run is not counted,
and a step takes as long as on its slowest rank. The table has the median step of each backend, the median of the
rounds' ratios, and whether losses, norms of gradients, gradients and weights have equal bits on all ranks. A further
run, `ordered`, gathers all summands and adds them by torch in ascending rank: the oracle of ferry's sums.
docs/lab/torch_backend.md has figures.
"""

import argparse
import hashlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

BACKENDS = ("gloo", "ferry")
ORACLE = "ordered"


def rank_arguments():
    """The arguments of a program of one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=(*BACKENDS, ORACLE), default="ferry")
    parser.add_argument("--expert-ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--results", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    return args


def select(backend):
    """Returns the name of the backend for torch.distributed."""
    if backend == "gloo":
        return "cpu:gloo"
    import ferry.torch_backend  # registers the name with torch 2.13
    if backend == ORACLE:
        _add_by_torch()
    return "cpu:ferry"


def _add_by_torch():
    from ferry import _core

    class Ordered(_core.Collectives):
        def _sum(self, rows, op, deadline):
            ranks = self.size
            every = rows.new_empty((ranks, rows.numel()))
            super().all_gather_v(every, rows.reshape(-1), [rows.numel()] * ranks, deadline=deadline)
            if op == "max":
                return every.amax(0)
            total = every[0].float() if every.dtype in (torch.bfloat16, torch.float16) else every[0].clone()
            for row in every[1:]:
                total += row
            return (total / ranks if op == "avg" else total).to(rows.dtype)

        def all_reduce(self, out, rows, op, deadline):
            out.view(-1).copy_(self._sum(rows, op, deadline))

        def reduce_scatter_v(self, out, rows, counts, op, deadline):
            out.view(-1).copy_(self._sum(rows, op, deadline).split(counts)[self.rank])

    _core.Collectives = Ordered


class Steps:
    """Measures the steps of one rank."""

    def __init__(self):
        self.seconds, self.losses = [], []

    def run(self, step, *args):
        dist.barrier()
        begin = time.perf_counter()
        step(*args)
        self.seconds.append(time.perf_counter() - begin)

    def write(self, folder, tensors):
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
        found = {"seconds": self.seconds, "losses": self.losses, "digest": digest.hexdigest()}
        if folder:
            pathlib.Path(folder, str(dist.get_rank())).write_text(json.dumps(found))


def run(args, backend):
    """Returns what each rank wrote."""
    program = pathlib.Path(__file__).with_name(f"{args.framework}_steps.py")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks),
             program, "--backend", backend, "--expert-ranks", str(args.expert_ranks), "--steps", str(args.steps),
             "--results", folder], capture_output=True, text=True, timeout=300)
        if done.returncode:
            sys.exit(f"{program.name} over {backend} failed:\n{done.stderr[-3000:]}")
        return [json.loads(pathlib.Path(folder, str(rank)).read_text()) for rank in range(args.ranks)]


def step_seconds(ranks):
    return statistics.median(max(times) for times in list(zip(*(rank["seconds"] for rank in ranks)))[1:])


def bits(ranks):
    return [(rank["losses"], rank["digest"]) for rank in ranks]


def farthest(some, others):
    """The largest relative difference of a loss or a norm."""
    pairs = [(x, y) for one, other in zip(some, others) for a, b in zip(one["losses"], other["losses"])
             for x, y in zip(a, b)]
    return max(abs(x - y) / abs(y) for x, y in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=("torchtitan", "deepspeed", "megatron"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--expert-ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    rounds = [{backend: run(args, backend) for backend in BACKENDS} for _ in range(args.rounds)]
    oracle = run(args, ORACLE)
    last = rounds[-1]
    times = {backend: [step_seconds(each[backend]) for each in rounds] for backend in BACKENDS}
    ratios = [ferry / gloo for ferry, gloo in zip(times["ferry"], times["gloo"])]
    print("| framework | ranks | expert ranks | ferry | ferry / Gloo | from, to | bits of every run of ferry "
          "| of Gloo | of the oracle | largest difference from Gloo |")
    print("| --- " * 10 + "|")
    print(f"| {args.framework} | {args.ranks} | {args.expert_ranks} | {statistics.median(times['ferry']):.3f} s "
          f"| {statistics.median(ratios):.2f} | {min(ratios):.2f}, {max(ratios):.2f} "
          f"| {all(bits(each['ferry']) == bits(last['ferry']) for each in rounds)} "
          f"| {bits(last['gloo']) == bits(last['ferry'])} | {bits(oracle) == bits(last['ferry'])} "
          f"| {farthest(last['ferry'], last['gloo']):.1e} |")


if __name__ == "__main__":
    main()
