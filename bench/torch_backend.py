#!/usr/bin/env python3
"""Collectives of torch.distributed on CPU: the backend ferry against Gloo, and Open MPI beside them.

    python bench/torch_backend.py [--ranks 2 4] [--rounds 11] [--only all_reduce] [--mpi]
    torchrun .. bench/torch_backend.py, or ferry launch --hosts a:1,b:1 -- python bench/torch_backend.py

The backends take turns in the same processes, round by round; a time is that of the slowest rank in one call of a
round's many, the table has medians of the rounds. "copies" is the time of the copies that shared memory needs: each
byte into a window and out of it once, by memcpy in all ranks at the same time. "Collectives" is the engine's call from
Python without torch.distributed around it. --mpi runs the same sizes by mpi4py, in processes of their own afterwards.
Under a launcher the ranks are those of the job.
docs/lab/torch_backend.md has figures.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import ferry
import ferry.torch_backend

HIDDEN = 2048
ROWS = (8, 128, 1024, 4096)
BYTES = (4, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="%(default)s")
    parser.add_argument("--rounds", type=int, default=11, help="of each size (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.05, help="of one backend in a round (%(default)s)")
    parser.add_argument("--only", default="", help="calls whose name begins so")
    parser.add_argument("--mpi", action="store_true", help="Open MPI too, by mpi4py")
    parser.add_argument("--largest", type=int, default=BYTES[-1], help="bytes (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each number of ranks")
    return parser.parse_args()


def uneven(rows, rank, size):
    """Rows of this rank for each rank: the next rank's share is twice that of the others."""
    parts = [rows * (2 if peer == (rank + 1) % size else 1) // (size + 1) for peer in range(size)]
    parts[rank] += rows - sum(parts)
    return parts


def cases(rank, size, largest):
    """{(name, size in words): (call of a group, the same of ferry.Collectives, bytes of this rank)}"""
    found = {("barrier", ""): (dist.barrier, lambda engine: engine.barrier(), 0)}
    for rows in ROWS:
        if rows * HIDDEN * 2 > largest:
            continue
        sent = uneven(rows, rank, size)
        received = [uneven(rows, peer, size)[rank] for peer in range(size)]
        source = torch.ones(rows, HIDDEN, dtype=torch.bfloat16)
        target = torch.empty(sum(received), HIDDEN, dtype=torch.bfloat16)
        counts = [[HIDDEN * part for part in parts] for parts in (received, sent)]
        found["all_to_all_single", f"{rows} rows"] = (
            lambda group, t=target, s=source, r=received, c=sent: dist.all_to_all_single(t, s, r, c, group=group),
            lambda engine, t=target, s=source, c=counts: engine.all_to_all_v(t, s, *c), 2 * source.numel())
    for size_bytes in BYTES:
        if size_bytes > largest:
            continue
        whole, part = torch.ones(max(size_bytes // 4, size)), torch.ones(max(size_bytes // 4 // size, 1))
        rows, counts = torch.ones(part.numel() * size), [part.numel()] * size
        text = f"{size_bytes} B" if size_bytes < 1024 else f"{size_bytes >> 10} KiB"
        for name, call, direct in (
                ("all_reduce", lambda group, w=whole: dist.all_reduce(w, group=group),
                 lambda engine, w=whole: engine.all_reduce(w, w)),
                ("broadcast", lambda group, w=whole: dist.broadcast(w, 0, group=group),
                 lambda engine, w=whole: engine.broadcast(w, 0)),
                ("all_gather", lambda group, w=rows, p=part: dist.all_gather_into_tensor(w, p, group=group),
                 lambda engine, w=rows, p=part, c=counts: engine.all_gather_v(w, p, c)),
                ("reduce_scatter", lambda group, w=rows, p=part: dist.reduce_scatter_tensor(p, w, group=group),
                 lambda engine, w=rows, p=part, c=counts: engine.reduce_scatter_v(p, w, c))):
            found[name, text] = call, direct, 4 * rows.numel()
    return found


def timed(group, call, seconds, repeats=0):
    """(microseconds of one call on the slowest rank, number of calls timed). `repeats`: that number; 0: as many as take
    about `seconds`, at least 3 and at most 2000."""
    if not repeats:
        begin = time.perf_counter()
        for _ in range(3):
            call()
        one = torch.tensor([(time.perf_counter() - begin) / 3])
        dist.all_reduce(one, dist.ReduceOp.MAX, group=group)
        repeats = max(3, min(2000, int(seconds / max(one.item(), 1e-6))))
    dist.barrier(group)
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    took = torch.tensor([(time.perf_counter() - begin) / repeats * 1e6], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX, group=group)
    return took.item(), repeats


def measure(group, meeting, options):
    """`meeting`: the init_method of torch.distributed."""
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo", init_method=meeting, rank=group.rank, world_size=group.size,
                            timeout=timedelta(seconds=120))
    gloo, by_ferry, rows = dist.group.WORLD, dist.new_group(backend="cpu:ferry"), []
    engine = ferry.Collectives(group)
    for (name, text), (call, direct, num_bytes) in cases(group.rank, group.size, options.largest).items():
        if not name.startswith(options.only):
            continue
        source, window = torch.ones(max(num_bytes, 1), dtype=torch.uint8), torch.ones(max(num_bytes, 1),
                                                                                      dtype=torch.uint8)
        ways = {"ferry": lambda: call(by_ferry), "gloo": lambda: call(gloo), "engine": lambda: direct(engine),
                "copies": lambda: (window.copy_(source), source.copy_(window))}
        repeats, times = dict.fromkeys(ways, 0), {way: [] for way in ways}
        for _ in range(options.rounds + 1):
            for way in ways:
                took, repeats[way] = timed(gloo, ways[way], options.seconds, repeats[way])
                times[way].append(took)
        rows.append((name, text, {way: statistics.median(all_times[1:]) for way, all_times in times.items()}))
    dist.destroy_process_group()
    return rows


def by_mpi(num_ranks, options):
    """{(name, size): microseconds} of the same calls by mpi4py."""
    done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n",
                           str(num_ranks), sys.executable, __file__, "--mpi-rank", json.dumps(vars(options))],
                          capture_output=True, text=True, check=True)
    return {tuple(key): took for key, took in json.loads(done.stdout.splitlines()[-1])}


def play_mpi(options):
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, size, found = world.Get_rank(), world.Get_size(), []

    def measured(name, text, call):
        times = []
        if not name.startswith(options["only"]):
            return
        for _ in range(options["rounds"] + 1):
            begin, repeats = time.perf_counter(), 0
            while world.bcast(time.perf_counter() - begin < options["seconds"] / 2):
                world.Barrier()
                start = time.perf_counter()
                for _ in range(10):
                    call()
                times.append(world.allreduce((time.perf_counter() - start) / 10 * 1e6, MPI.MAX))
                repeats += 1
        found.append(((name, text), statistics.median(times)))

    measured("barrier", "", world.Barrier)
    for rows in ROWS:
        if rows * HIDDEN * 2 > options["largest"]:
            continue
        sent = [part * HIDDEN * 2 for part in uneven(rows, rank, size)]
        received = [uneven(rows, peer, size)[rank] * HIDDEN * 2 for peer in range(size)]
        source, target = bytearray(sum(sent)), bytearray(sum(received))
        measured("all_to_all_single", f"{rows} rows", lambda: world.Alltoallv([source, sent, MPI.BYTE],
                                                                              [target, received, MPI.BYTE]))
    import numpy as np

    for size_bytes in BYTES:
        if size_bytes > options["largest"]:
            continue
        count = size_bytes // 4
        text = f"{size_bytes} B" if size_bytes < 1024 else f"{size_bytes >> 10} KiB"
        whole, part = np.ones(max(count, size), np.float32), np.ones(max(count // size, 1), np.float32)
        out, rows = np.empty(part.size * size, np.float32), np.ones(part.size * size, np.float32)
        measured("all_reduce", text, lambda: world.Allreduce(MPI.IN_PLACE, whole))
        measured("broadcast", text, lambda: world.Bcast(whole))
        measured("all_gather", text, lambda: world.Allgather(part, out))
        measured("reduce_scatter", text, lambda: world.Reduce_scatter_block(rows, part))
    if rank == 0:
        print(json.dumps(found))


def duration(microseconds):
    return f"{microseconds:.1f} us" if microseconds < 1000 else f"{microseconds / 1000:.2f} ms"


def main():
    if sys.argv[1:2] == ["--mpi-rank"]:
        return play_mpi(json.loads(sys.argv[2]))
    options = read_options()
    if "WORLD_SIZE" in os.environ:
        group = ferry.init()
        rows = measure(group, "env://", options)
        if group.rank == 0:
            print_table(group.size, rows, {})
        return
    for num_ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            rows = ferry.spawn(num_ranks, measure, f"file://{folder}/store", options)[0]
        if options.json:
            names = {"ferry": "ferry", "gloo": "Gloo"}
            print(json.dumps({"times": [[name, text, {names[way]: times[way] for way in names}]
                                        for name, text, times in rows]}))
        else:
            print_table(num_ranks, rows, by_mpi(num_ranks, options) if options.mpi else {})


def print_table(num_ranks, rows, mpi):
    columns = ["ranks", "call", "size", "ferry", "ferry / Gloo", "ferry / copies", "Collectives"]
    columns += ["Collectives / Open MPI"] if mpi else []
    print("|", " | ".join(columns), "|")
    print("|", " | ".join(["---"] * len(columns)), "|")
    for name, text, times in rows:
        took = times["ferry"]
        line = [num_ranks, name, text, duration(took), f"{took / times['gloo']:.2f}",
                f"{took / times['copies']:.2f}" if text else "", duration(times["engine"])]
        if mpi:
            line.append(f"{times['engine'] / mpi[name, text]:.2f}")
        print("|", " | ".join(map(str, line)), "|", flush=True)


if __name__ == "__main__":
    main()
