#!/usr/bin/env python3
"""Measures what the front ferry.deep_ep costs: its calls beside ferry's own exchange with the same promises.

    python bench/deep_ep.py [--ranks 8] [--tokens 128] [--hidden 7168] [--experts 256] [--top-k 8] [--rounds 15] ...

Both take turns, in one process per rank and one run: round by round each makes a few dispatches and combines, and a
time is that of the slowest rank. The experts do nothing. Their rows lie in a tensor of the program, which both sides
copy into the window, except in two cases:
zero copy    The rows are in memory of the window and are not copied (zero_copy of low_latency_combine, Exchange.empty).
given back   The rows are the received rows. Exchange.combine reads them in place. DeepEP's combine copies them, since
             a program may write to them as soon as it has returned.
"""

import argparse
import statistics
import struct
import time

import torch

import ferry
from ferry.deep_ep import Buffer

WARMUP, PAIRS = 3, 4


def seconds_of(group, pair):
    group.barrier()
    begin = time.perf_counter()
    for _ in range(PAIRS):
        pair()
    took = (time.perf_counter() - begin) / PAIRS
    return max(struct.unpack("d", each)[0] for each in group.all_gather(struct.pack("d", took)))


class LowLatency:
    """Rows by expert, each expert with room for all."""

    def __init__(self, group, shape, fp8=False, hooks=False, outputs="own memory"):
        self.shape, self.fp8, self.hooks, self.where = shape, fp8, hooks, outputs
        self.x, self.ids, self.weights = inputs(group, shape)
        self.buffer = Buffer(group, low_latency_mode=True)
        self.exchange = group.exchange(
            max_tokens=shape.tokens, hidden=shape.hidden, num_experts=shape.experts, top_k=shape.top_k,
            dtype="bfloat16", layout="padded", expert_capacity=group.size * shape.tokens, scale_order="column_major",
            wire="fp8" if fp8 else "none")
        local, capacity = self.exchange.num_local_experts, group.size * shape.tokens
        self.outputs = torch.zeros(local, capacity, shape.hidden, dtype=torch.bfloat16)

    def deep_ep(self):
        shape, hooks = self.shape, self.hooks
        received, _, handle, _, hook = self.buffer.low_latency_dispatch(
            self.x, self.ids, shape.tokens, shape.experts, use_fp8=self.fp8, return_recv_hook=hooks)
        if hooks:
            hook()
        outputs = received if self.where == "given back" else self.outputs
        if self.where == "zero copy":
            outputs = self.buffer.get_next_low_latency_combine_buffer(handle)
        _, _, hook = self.buffer.low_latency_combine(
            outputs, self.ids, self.weights, handle, zero_copy=self.where == "zero copy", return_recv_hook=hooks)
        if hooks:
            hook()

    def own(self):
        if self.hooks:
            received = self.exchange.dispatch_send(self.x, self.ids).recv()
        else:
            received = self.exchange.dispatch(self.x, self.ids)
        outputs = received.rows if self.where == "given back" else self.outputs
        if self.where == "zero copy":
            outputs = self.exchange.empty(received.num_rows).view(self.outputs.shape)
        if self.hooks:
            self.exchange.combine_send(outputs, received.handle, self.weights).recv()
        else:
            self.exchange.combine(outputs, received.handle, self.weights)


class Normal:
    """Rows by source rank, one for each rank that a token goes to."""

    def __init__(self, group, shape, fp8=False):
        self.shape = shape
        self.x, self.ids, self.weights = inputs(group, shape)
        self.scales = None
        if fp8:
            self.x, self.scales = self.x.to(torch.float8_e4m3fn), torch.ones(shape.tokens, -(-shape.hidden // 128))
        self.buffer = Buffer(group)
        common = dict(max_tokens=shape.tokens, num_experts=shape.experts, top_k=shape.top_k, layout="rank_major")
        sent = dict(dtype="uint8", scale_bytes=4 * self.scales.shape[1]) if fp8 else dict(dtype="bfloat16")
        self.exchange = group.exchange(hidden=shape.hidden, max_output_row_bytes=2 * shape.hidden, **common, **sent)
        self.outputs = torch.zeros(group.size * shape.tokens, shape.hidden, dtype=torch.bfloat16)

    def deep_ep(self):
        per_rank, _, per_expert, in_rank, _ = self.buffer.get_dispatch_layout(self.ids, self.shape.experts)
        x = self.x if self.scales is None else (self.x, self.scales)
        received, _, _, _, handle, _ = self.buffer.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
            topk_idx=self.ids, topk_weights=self.weights)
        rows = received if self.scales is None else received[0]
        self.buffer.combine(self.outputs[: len(rows)], handle)

    def own(self):
        x = self.x if self.scales is None else self.x.view(torch.uint8)
        received = self.exchange.dispatch(x, self.ids, self.weights, token_scales=self.scales)
        self.exchange.combine(self.outputs[: received.num_rows], received.handle)


def inputs(group, shape):
    generator = torch.Generator().manual_seed(group.rank)
    x = torch.randn(shape.tokens, shape.hidden, generator=generator).to(torch.bfloat16)
    weights, ids = torch.rand(shape.tokens, shape.experts, generator=generator).topk(shape.top_k)
    return x, ids, weights


CASES = {
    "low latency, bf16": (LowLatency, {}),
    "low latency, fp8": (LowLatency, dict(fp8=True)),
    "low latency, bf16, hooks": (LowLatency, dict(hooks=True)),
    "low latency, fp8, hooks": (LowLatency, dict(fp8=True, hooks=True)),
    "low latency, bf16, zero copy": (LowLatency, dict(outputs="zero copy")),
    "low latency, fp8, zero copy": (LowLatency, dict(fp8=True, outputs="zero copy")),
    "low latency, bf16, given back": (LowLatency, dict(outputs="given back")),
    "normal, bf16": (Normal, {}),
    "normal, fp8": (Normal, dict(fp8=True)),
}


def play(group, shape):
    torch.set_num_threads(1)
    for name, (make, options) in CASES.items():
        if shape.only not in name:
            continue
        case = make(group, shape, **options)
        rounds = [(seconds_of(group, case.deep_ep), seconds_of(group, case.own)) for _ in range(WARMUP + shape.rounds)]
        front, own = (statistics.median(each) for each in zip(*rounds[WARMUP:]))
        ratios = sorted(mine / theirs for mine, theirs in rounds[WARMUP:])
        quarter = len(ratios) // 4
        if group.rank == 0:
            print(f"{name:30} {front * 1e3:9.3f} {own * 1e3:9.3f}   {statistics.median(ratios):5.2f}   "
                  f"({ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in dict(ranks=8, tokens=128, hidden=7168, experts=256, top_k=8, rounds=15).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--only", default="", help="cases whose name has this")
    shape = parser.parse_args()
    print(f"{shape.ranks} ranks, {shape.tokens} tokens x {shape.hidden} each, {shape.experts} experts, "
          f"top {shape.top_k}")
    print(f"{'':30} {'deep_ep':>6} ms {'own':>6} ms   ratio   (quartiles)", flush=True)
    ferry.spawn(shape.ranks, play, shape, deadline=600)


if __name__ == "__main__":
    main()
