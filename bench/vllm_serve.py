#!/usr/bin/env python3
"""vLLM's server on two ranks of a CPU: data and expert parallel by ferry against tensor parallel, without ferry.

    vllm-env/bin/python bench/vllm_serve.py [--batches 1 8 64] [--tokens 32] [--rounds 5] [--hidden 512] ...

Both servers run a random Mixture-of-Experts model and reply in turns, round by round, over HTTP; the other one is
stopped meanwhile. docs/vllm.md has figures. The environment is that of scripts/check_vllm.sh. --part: only ferry's
server, and which part of a step its calls of ferry take (vllm_part/sitecustomize.py).
"""

import argparse
import contextlib
import os
import signal
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "vllm"))

from server import prompts, save_model, serve

WAYS = {"ferry": (True, ("-dp", "2", "--enable-expert-parallel")), "tensor parallel": (False, ("-tp", "2"))}


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64], help="requests at a time %(default)s")
    parser.add_argument("--tokens", type=int, default=32, help="of a reply (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each batch (%(default)s)")
    parser.add_argument("--hidden", type=int, default=512, help="a multiple of 128 (%(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--experts", type=int, default=16, help="(%(default)s)")
    parser.add_argument("--part", action="store_true", help="what ferry's part of a step is")
    return parser.parse_args()


def seconds_of(server, batch, num_tokens):
    os.killpg(server.process.pid, signal.SIGCONT)
    begin = time.perf_counter()
    server.complete_all(prompts(batch), num_tokens)
    took = time.perf_counter() - begin
    os.killpg(server.process.pid, signal.SIGSTOP)
    return took


def save(options, folder):
    save_model(folder, "moe", options.experts, hidden_size=options.hidden, num_hidden_layers=options.layers,
               head_dim=options.hidden // 4, moe_intermediate_size=options.hidden // 2)  # fmt: skip


def compare(options, folder, stack):
    servers = {}
    for way, (ferry, arguments) in WAYS.items():
        servers[way] = stack.enter_context(serve(f"{folder}/model", f"{folder}/{way}.log", *arguments, ferry=ferry))
        stack.callback(os.killpg, servers[way].process.pid, signal.SIGCONT)
        seconds_of(servers[way], 2, 2)
    for batch in options.batches:
        times = {way: [] for way in WAYS}
        for _ in range(options.rounds + 1):  # the first one warms up
            for way, server in servers.items():
                times[way].append(seconds_of(server, batch, options.tokens))
        for way, took in times.items():
            median = statistics.median(took[1:])
            print(f"batch {batch}, {way}: {batch * options.tokens / median:.0f} tokens/s, "
                  f"{median / options.tokens * 1e3:.1f} ms a token", flush=True)
        ratios = [theirs / ours for ours, theirs in zip(*(took[1:] for took in times.values()))]
        print(f"batch {batch}: ferry is {statistics.median(ratios):.2f} times as fast "
              f"({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def totals_of(folder):
    """{process: (seconds in calls of ferry, those of them in which it waited for other ranks, dispatches)}"""
    return {path.name: struct.unpack("ddd", path.read_bytes()) for path in folder.iterdir() if path.stat().st_size}


def part(options, folder, stack):
    """The mean of the ranks, of each round."""
    times = Path(folder, "times")
    times.mkdir()
    here = Path(__file__).resolve().parent / "vllm_part"
    server = stack.enter_context(serve(f"{folder}/model", f"{folder}/log", *WAYS["ferry"][1], PYTHONPATH=str(here),
                                       FERRY_VLLM_PART=str(times)))  # fmt: skip
    for batch in options.batches:
        rounds = []
        for _ in range(options.rounds + 1):
            before, begin = totals_of(times), time.perf_counter()
            server.complete_all(prompts(batch), options.tokens)
            took, after = time.perf_counter() - begin, totals_of(times)
            spent = [[now - then for now, then in zip(after[rank], before.get(rank, (0, 0, 0)))] for rank in after]
            steps = max(calls for _, _, calls in spent) / options.layers
            calls, waits = (statistics.mean(each) for each in list(zip(*spent))[:2])
            rounds.append((took / steps * 1e3, (calls - waits) / steps * 1e3, waits / steps * 1e3, calls / took))
        step, moves, waits, share = (statistics.median(each) for each in zip(*rounds[1:]))
        print(f"batch {batch}: a step takes {step:.2f} ms; ferry moves rows for {moves:.3f} ms of it and waits for the "
              f"other rank for {waits:.3f} ms, together {share:.1%} ({min(r[3] for r in rounds[1:]):.1%} to "
              f"{max(r[3] for r in rounds[1:]):.1%})", flush=True)


def main():
    options = read_options()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        save(options, f"{folder}/model")
        (part if options.part else compare)(options, folder, stack)


if __name__ == "__main__":
    main()
