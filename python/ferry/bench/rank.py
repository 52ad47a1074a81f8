"""One rank of one program of a comparison: `python -m ferry.bench.rank JSON`, started by `ferry launch` or mpirun
(programs.py). Each rank writes its times and the results of its checks to a file in the task's folder. Rank 0 then
prints the summary of all ranks, with the keys of `ferry bench --json`."""

import json
import os
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from .work import Shape, Work

WARMUP, MOST_BATCHES = 20, 10  # as in `ferry bench`


class Ferry:
    """The exchange as a layer uses it: received rows are not copied, and combine writes to a tensor of the caller."""

    def __init__(self, shape):
        import ferry

        self.group = ferry.init()
        self.rank = self.group.rank
        self.exchange = self.group.exchange(max_tokens=max(1, shape.tokens), hidden=shape.hidden,
                                            num_experts=shape.experts, top_k=shape.top_k)
        self.out = torch.zeros(shape.tokens, shape.hidden, dtype=torch.bfloat16)
        self.barrier, self.dispatch = self.group.barrier, self.exchange.dispatch

    def combine(self, rows, received, topk_weights):
        return self.exchange.combine(rows, received.handle, topk_weights, out=self.out)

    def close(self):
        self.exchange.close()
        self.group.destroy()


def make_program(name, shape, folder):
    """Returns (the object with dispatch and combine, the object to close)."""
    if name == "ferry":
        program = Ferry(shape)
        return program, program
    from .pipeline import Gloo, Mpi, Pipeline
    if name == "gloo":
        network = Gloo(folder, int(os.environ["RANK"]), shape.ranks)
    elif name == "mpi":
        network = Mpi(row_bytes=shape.hidden * 2)
    return Pipeline(shape, network), network


def now():
    """Returns nanoseconds of CLOCK_MONOTONIC, which is the same clock in all processes of a host."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def measure(program, work, iterations):
    """Measures dispatches and combines, each after a barrier, and batches of pairs without barriers. Returns the begin
    and end of each, in nanoseconds, and the number of pairs of a batch."""
    tokens, ids, weights = work.tokens, work.topk_ids, work.topk_weights

    def run_pair():
        received = program.dispatch(tokens, ids, weights)
        program.combine(received.rows, received, weights)
        received.release()

    for _ in range(WARMUP):
        run_pair()
    dispatches, combines, batches = [], [], []
    for _ in range(iterations):
        program.barrier()
        begin = now()
        received = program.dispatch(tokens, ids, weights)
        dispatches.append((begin, now()))
        program.barrier()
        begin = now()
        program.combine(received.rows, received, weights)
        combines.append((begin, now()))
        received.release()
    num_batches = min(iterations, MOST_BATCHES)
    pairs = -(-iterations // num_batches)
    for _ in range(num_batches):
        program.barrier()
        begin = now()
        for _ in range(pairs):
            run_pair()
        batches.append((begin, now()))
    return {"dispatch": dispatches, "combine": combines, "batches": batches, "pairs_per_batch": pairs}


def check(program, work):
    """Makes one more dispatch and combine, in which each expert gives a different result. Returns (elements compared,
    wrong elements)."""
    received = program.dispatch(work.tokens, work.topk_ids, work.topk_weights)
    counts = getattr(received, "handle", received).tokens_per_expert
    wrong = work.wrong_received(received.rows, counts)
    compared = received.rows.numel() + work.tokens.numel()
    out = program.combine(work.scale(received.rows, counts), received, work.topk_weights)
    wrong += work.wrong_combined(out)
    received.release()
    return compared, wrong


def summary(ranks):
    """Returns the times of all ranks together. An operation lasts from its beginning on the first rank to its end on
    the last rank."""

    def spans_us(name, share=1):
        return [(max(end for _, end in times) - min(begin for begin, _ in times)) / 1000 / share
                for times in zip(*(rank[name] for rank in ranks))]

    return {"dispatch_us": quantiles(spans_us("dispatch")), "combine_us": quantiles(spans_us("combine")),
            "pair_us": quantiles(spans_us("batches", ranks[0]["pairs_per_batch"])),
            "compared": sum(rank["compared"] for rank in ranks), "wrong": sum(rank["wrong"] for rank in ranks)}


def quantiles(values):
    return {"min": min(values), "median": statistics.median(values),
            "p99": sorted(values)[int(0.99 * (len(values) - 1) + 0.5)]}


def main(arguments):
    task = json.loads(arguments)
    torch.set_num_threads(1)
    shape = Shape(**task["shape"])
    program, owner = make_program(task["program"], shape, task["folder"])
    work = Work(shape, task["seed"], owner.rank)
    found = measure(program, work, task["iterations"])
    found["compared"], found["wrong"] = check(program, work)
    files = [Path(task["folder"], f"{rank}.json") for rank in range(shape.ranks)]
    files[owner.rank].write_text(json.dumps(found))
    program.barrier()
    if owner.rank == 0:
        ranks = [json.loads(file.read_text()) for file in files]
        print(json.dumps({"options": {**asdict(shape), "dtype": "bf16"}, **summary(ranks)}), flush=True)
    program.barrier()  # the folder is removed when the command ends
    owner.close()


if __name__ == "__main__":
    main(sys.argv[1])
