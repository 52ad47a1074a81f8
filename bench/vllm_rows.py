#!/usr/bin/env python3
"""What ferry.vllm would gain from one row for each (token, rank) instead of one for each (token, expert).

    python bench/vllm_rows.py [--ranks 2] [--hidden 512] [--experts 16] [--batches 1 8 64] [--top-k 2 8] [--rounds 15]
    FERRY_TOPOLOGY=host:2 python bench/vllm_rows.py ...     # the ranks are on two hosts that this machine plays

Both ways move the tokens of a layer, in turns, in one process per rank; the experts do nothing. By experts: a row for
each expert, and combine weighs and adds them. By ranks: a rank gets a token once. It copies the token for each of its
experts, as those of vLLM on CPU take no ids of other ranks, then weighs and adds their rows, and combine adds the sums
of the ranks. A time is that of the slowest rank."""

import argparse
import statistics
import struct
import time

import torch

import ferry

WARMUP, PAIRS = 3, 20


def by_experts(exchange, x, ids, weights):
    received = exchange.dispatch(x, ids)
    return exchange.combine(received.rows, received.handle, weights)


def by_ranks(exchange, x, ids, weights):
    received = exchange.dispatch(x, ids, weights)
    entries = (received.topk_ids.flatten() >= 0).nonzero().squeeze(1)
    tokens = entries // ids.size(1)
    rows = received.rows.index_select(0, tokens)  # what the experts would compute
    rows *= received.weights.flatten().index_select(0, entries).unsqueeze(1)
    sums = torch.zeros_like(received.rows).index_add_(0, tokens, rows)
    return exchange.combine(sums, received.handle)


WAYS = {"expert_major": by_experts, "rank_major": by_ranks}


def seconds_of(group, call):
    group.barrier()
    begin = time.perf_counter()
    for _ in range(PAIRS):
        call()
    took = (time.perf_counter() - begin) / PAIRS
    return max(struct.unpack("d", each)[0] for each in group.all_gather(struct.pack("d", took)))


def times_of(group, options, batch, top_k):
    """{layout: [seconds of each round]}"""
    generator = torch.Generator().manual_seed(group.rank)
    x = torch.randn(batch, options.hidden, generator=generator)
    ids = torch.rand(batch, options.experts, generator=generator).argsort(1)[:, :top_k].contiguous()
    weights = torch.rand(batch, top_k, generator=generator)
    calls, results = {}, []
    for layout, way in WAYS.items():
        exchange = group.exchange(max_tokens=batch, hidden=options.hidden, num_experts=options.experts, top_k=top_k,
                                  dtype="float32", layout=layout)
        calls[layout] = lambda way=way, exchange=exchange: way(exchange, x, ids, weights)
        results.append(calls[layout]().clone())
    assert torch.allclose(*results, rtol=1e-4, atol=1e-4), "both ways give the same sums"
    rounds = [{layout: seconds_of(group, call) for layout, call in calls.items()}
              for _ in range(WARMUP + options.rounds)]  # fmt: skip
    return {layout: [times[layout] for times in rounds[WARMUP:]] for layout in WAYS}


def run(group, options):
    torch.set_num_threads(1)
    for top_k in options.top_k:
        for batch in options.batches:
            times = times_of(group, options, batch, top_k)
            ratios = sorted(b / a for a, b in zip(*times.values()))
            if group.rank == 0:
                experts, ranks = (statistics.median(each) * 1e6 for each in times.values())
                print(f"top-k {top_k}, {batch} tokens a rank: by experts {experts:.0f} us, by ranks {ranks:.0f} us, "
                      f"{statistics.median(ratios):.2f} times as long ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--hidden", type=int, default=512, help="(%(default)s)")
    parser.add_argument("--experts", type=int, default=16, help="(%(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64], help="tokens of a rank %(default)s")
    parser.add_argument("--top-k", type=int, nargs="+", default=[2, 8], help="%(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="(%(default)s)")
    options = parser.parse_args()
    ferry.spawn(options.ranks, run, options)


if __name__ == "__main__":
    main()
