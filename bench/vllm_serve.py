#!/usr/bin/env python3
"""vLLM's server on a CPU: two expert parallel ranks by ferry, data parallel or tensor parallel, against two tensor
parallel ranks and one rank with all cores, without ferry.

    vllm-env/bin/python bench/vllm_serve.py [--compiled] [--batches 1 8 64] [--tokens 32] [--rounds 5] ...

The servers run a random Mixture-of-Experts model and reply in turns, round by round, over HTTP; the others are stopped
meanwhile. A round which other programs disturbed is repeated, up to three times the rounds in all; the least disturbed
rounds count. docs/lab/vllm.md has figures. The environment is that of scripts/check_with.sh vllm. --part: only ferry's
server, and which part of a step its calls of ferry take (vllm_part/sitecustomize.py).
"""

import argparse
import contextlib
import itertools
import os
import signal
import statistics
import struct
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "vllm"))

from server import prompts, save_model, serve

from ferry.bench.measure import DISTURBED, processor_seconds
from ferry.bench.page import when_and_where

CORES = len(os.sched_getaffinity(0))
HALF = str(max(CORES // 2, 1))
# One API server, as the other servers have: by default vLLM starts one for each data parallel rank.
EXPERT_PARALLEL = ("-dp", "2", "--enable-expert-parallel", "--api-server-count", "1")
BY_FERRY = {  # arguments of vllm serve, and those of tests/vllm/server.py
    "ferry -dp 2": (EXPERT_PARALLEL, dict(ferry=True, OMP_NUM_THREADS=HALF)),
    "ferry -tp 2": (("-tp", "2", "--enable-expert-parallel"), dict(ferry=True, OMP_NUM_THREADS=HALF)),
}
OTHERS = {
    "tensor parallel": (("-tp", "2"), dict(ferry=False, OMP_NUM_THREADS=HALF)),
    "one rank": ((), dict(ferry=False, OMP_NUM_THREADS=str(CORES))),
}
WAYS = {**BY_FERRY, **OTHERS}


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64], help="requests at a time %(default)s")
    parser.add_argument("--tokens", type=int, default=32, help="of a reply (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each batch (%(default)s)")
    parser.add_argument("--hidden", type=int, default=512, help="a multiple of 128 (%(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--experts", type=int, default=16, help="(%(default)s)")
    parser.add_argument("--compiled", action="store_true", help="without --enforce-eager")
    parser.add_argument("--part", action="store_true", help="what ferry's part of a step is")
    return parser.parse_args()


def seconds_of_session(leader):
    """Processor time of the processes of a server, and of this one."""
    ticks, spent = os.sysconf("SC_CLK_TCK"), sum(os.times()[:2])
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            spent += (int(fields[11]) + int(fields[12])) / ticks if int(fields[3]) == leader else 0
    return spent


def measure(server, batch, num_tokens):
    """(seconds, part of the processors that other programs took)"""
    os.killpg(server.process.pid, signal.SIGCONT)
    before, mine, begin = processor_seconds(), seconds_of_session(server.process.pid), time.perf_counter()
    server.complete_all(prompts(batch), num_tokens)
    took = time.perf_counter() - begin
    after, mine = processor_seconds(), seconds_of_session(server.process.pid) - mine
    os.killpg(server.process.pid, signal.SIGSTOP)
    return took, max(0.0, (after[0] - before[0] - mine) / (after[1] - before[1]))


def rounds_of(servers, batch, options):
    """([{way: seconds}], the largest part of the processors that other programs took in them)"""
    rounds = []
    while len(rounds) < 3 * options.rounds + 1:
        measured = {way: measure(server, batch, options.tokens) for way, server in servers.items()}
        others = max(part for _, part in measured.values())
        rounds.append((others, {way: took for way, (took, _) in measured.items()}))
        if sum(others <= DISTURBED for others, _ in rounds[1:]) == options.rounds:
            break
    kept = sorted(rounds[1:], key=lambda each: each[0])[:options.rounds]  # the first one warms up
    return [times for _, times in kept], kept[-1][0]


def save(options, folder):
    save_model(folder, "moe", options.experts, hidden_size=options.hidden, num_hidden_layers=options.layers,
               head_dim=options.hidden // 4, moe_intermediate_size=options.hidden // 2)  # fmt: skip


def print_rounds(rounds, batch, num_tokens):
    for way in WAYS:
        each = sorted(times[way] for times in rounds)
        print(f"batch {batch}, {way}: {batch * num_tokens / statistics.median(each):.0f} tokens/s, "
              f"{statistics.median(each) / num_tokens * 1e3:.1f} ms a token ({each[0] / num_tokens * 1e3:.1f} to "
              f"{each[-1] / num_tokens * 1e3:.1f})")
    for way, other in itertools.product(BY_FERRY, OTHERS):
        ratios = sorted(times[other] / times[way] for times in rounds)
        print(f"batch {batch}: {way} is {statistics.median(ratios):.2f} times as fast as {other} ({ratios[0]:.2f} to "
              f"{ratios[-1]:.2f})", flush=True)


def compare(options, folder, stack):
    started = {way: serve(f"{folder}/model", f"{folder}/{way}.log", *arguments, compiled=options.compiled, **settings)
               for way, (arguments, settings) in WAYS.items()}  # fmt: skip
    with ThreadPoolExecutor(len(started)) as pool:
        servers = dict(zip(started, pool.map(stack.enter_context, started.values())))
    for server in servers.values():
        stack.callback(os.killpg, server.process.pid, signal.SIGCONT)
        measure(server, 2, 2)
    print(when_and_where(), flush=True)
    for batch in options.batches:
        rounds, others = rounds_of(servers, batch, options)
        print_rounds(rounds, batch, options.tokens)
        print(f"batch {batch}: {len(rounds)} rounds; other programs took at most {others:.0%} of the processors in any "
              "of them", flush=True)


def totals_of(folder):
    """{process: (seconds in calls of ferry, those of them in which it waited for other ranks, dispatches)}"""
    return {path.name: struct.unpack("ddd", path.read_bytes()) for path in folder.iterdir() if path.stat().st_size}


def part(options, folder, stack):
    """The mean of the ranks, of each round."""
    times = Path(folder, "times")
    times.mkdir()
    here = Path(__file__).resolve().parent / "vllm_part"
    server = stack.enter_context(serve(f"{folder}/model", f"{folder}/log", *EXPERT_PARALLEL, PYTHONPATH=str(here),
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
