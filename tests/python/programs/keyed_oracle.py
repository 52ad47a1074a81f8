"""A program for GPUs: an independent harness that times dispatch, stage and combine with CUDA events and checks them
with an oracle of its own, before and after the timed periods.

Written for CUDA and NCCL; test_map_cuda.py runs it under torchrun with `python -m ferry.deep_ep --map-cuda`. Each row
begins with a key of its source token, so the oracle finds the source of a received row by the row alone. What was
received is compared bit for bit. A result may differ from that of the oracle by one unit in the last place of bfloat16
for each of 8 roundings: each rank rounds the sum of its experts, and each node rounds the sum of its ranks.
"""

import argparse
import itertools
import os
import sys
import types

import torch
import torch.distributed as dist

import deep_ep
from deep_ep.utils.math import per_token_cast_back, per_token_cast_to_fp8

TOLERANCE, FLOOR = 8 * 2.0**-8, 2e-2
KEY_DIGITS = 4  # elements of a row, each a digit of the key in base 16: exact in bfloat16 and in fp8


def keyed_rows(keys, hidden):
    """Rows [tokens, hidden] bfloat16 that follow from their keys alone, wherever they are computed."""
    columns = torch.arange(hidden, device=keys.device)
    mixed = (keys.unsqueeze(1) * 7919 + columns * 104729) % 251
    rows = (mixed.float() - 125) / 128
    for digit in range(KEY_DIGITS):
        rows[:, digit] = (keys >> (4 * digit) & 15).float()
    return rows.to(torch.bfloat16)


def keys_of(rows):
    digits = rows[:, :KEY_DIGITS].float().round().long()
    return sum(digits[:, digit] << (4 * digit) for digit in range(KEY_DIGITS))


def expert_of(rows, experts):
    """What an expert makes of a row, in float32; experts [tokens]."""
    scale = ((experts * 17 + 5) % 31 + 1).float() / 32
    shift = ((experts * 29 + 7) % 37 - 18).float() / 64
    return rows.float() * scale.unsqueeze(1) + shift.unsqueeze(1)


def routing(args, rank, tokens):
    """Ids and weights of a rank's tokens: equal wherever they are computed."""
    made = torch.Generator(device="cuda").manual_seed(1000 * args.seed + rank)
    ids = torch.rand((args.max_tokens, args.experts), generator=made, device="cuda").topk(args.topk)[1][:tokens]
    weights = torch.rand((args.max_tokens, args.topk), generator=made, device="cuda")[:tokens]
    return ids, weights / weights.sum(1, keepdim=True)


class Adapter:
    """The calls of one of DeepEP's interfaces. `fp8`: of dispatch; combine is always bfloat16."""

    def __init__(self, args, fp8, device):
        self.args, self.fp8, self.device = args, fp8, device
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        self.num_local = args.experts // self.num_ranks

    def semantic(self, x):
        """The rows that a dispatch of x delivers."""
        return per_token_cast_back(*per_token_cast_to_fp8(x)) if self.fp8 else x

    def decoded(self, rows):
        if not self.fp8:
            return rows
        values, scales = rows
        flat = per_token_cast_back(values.reshape(-1, self.args.hidden), scales.reshape(-1, self.args.hidden // 128))
        return flat.view(values.shape)


class Normal(Adapter):
    """ElasticBuffer: a row for each (token, rank), and a combine that adds the rows of the ranks."""

    def __init__(self, args, fp8, device):
        super().__init__(args, fp8, device)
        self.buffer = deep_ep.ElasticBuffer(
            dist.group.WORLD, num_max_tokens_per_rank=args.max_tokens, hidden=args.hidden, num_topk=args.topk,
            use_fp8_dispatch=fp8, deterministic=False, allow_hybrid_mode=False, allow_multiple_reduction=True,
            prefer_overlap_with_compute=True, num_gpu_timeout_secs=100, explicitly_destroy=True, num_allocated_qps=0)
        self.num_sms = int(self.buffer.get_theoretical_num_sms(args.experts, args.topk))
        self.num_qps = int(self.buffer.get_theoretical_num_qps(self.num_sms))

    def dispatch(self, p):
        x = per_token_cast_to_fp8(p.x) if self.fp8 else p.x
        rows, ids, weights, handle, _ = self.buffer.dispatch(
            x, topk_idx=p.ids, topk_weights=p.weights, num_experts=self.args.experts,
            num_max_tokens_per_rank=self.args.max_tokens, expert_alignment=1, num_sms=self.num_sms,
            num_qps=self.num_qps, async_with_compute_stream=False, do_handle_copy=True, do_cpu_sync=True,
            do_expand=False)
        return types.SimpleNamespace(rows=rows, ids=ids, weights=weights, handle=handle)

    def stage(self, p, h):
        h.staged = self.decoded(h.rows)

    def combine(self, p, h):
        return self.buffer.combine(h.staged, handle=h.handle, num_sms=self.num_sms, num_qps=self.num_qps,
                                   async_with_compute_stream=False)[0]

    def transform(self, p, h):
        """Puts the weighted sum of this rank's experts in the place of each row, rounded once."""
        rows, own = self.decoded(h.rows), torch.zeros((len(h.ids), self.args.hidden), device="cuda")
        for k in range(self.args.topk):
            local = h.ids[:, k] >= 0
            expert = h.ids[:, k].clamp(min=0) + self.rank * self.num_local
            weight = h.weights[:, k].masked_fill(~local, 0).unsqueeze(1)
            own += weight * expert_of(rows, expert)
        h.staged = own.to(torch.bfloat16)

    def check_received(self, p, h, everything):
        keys, ids, weights = everything
        rows = self.decoded(h.rows)
        sources = keys_of(rows)
        local = ids // self.num_local == self.rank
        wanted = local.any(1).nonzero().flatten()
        assert torch.equal(sources.sort()[0], keys[wanted].sort()[0])  # each source once, and no other
        at = torch.searchsorted(keys, sources)
        assert torch.equal(rows, self.semantic(keyed_rows(sources, self.args.hidden)))
        here = local[at]
        assert torch.equal(h.ids.long(), torch.where(here, ids[at] - self.rank * self.num_local, -1))
        assert torch.equal(h.weights.masked_fill(~here, 0), weights[at].masked_fill(~here, 0))

    def expected(self, p):
        """Each rank rounds the sum of its experts, and each node the sum of its ranks, which is added in float32."""
        x = self.semantic(p.x)
        num_nodes, node_ranks = self.buffer.get_physical_domain_size()
        nodes = torch.zeros((num_nodes, *p.x.shape), device="cuda")
        for rank in range(self.num_ranks):
            gate = p.weights * (p.ids // self.num_local == rank)
            own = sum(gate[:, k, None] * expert_of(x, p.ids[:, k]) for k in range(self.args.topk))
            nodes[rank // node_ranks] += own.to(torch.bfloat16).float()
        return nodes.to(torch.bfloat16).float().sum(0)


class LowLatency(Adapter):
    """Buffer's low-latency calls: a row for each (token, expert), and a combine that weighs them."""

    def __init__(self, args, fp8, device):
        super().__init__(args, fp8, device)
        size = deep_ep.Buffer.get_low_latency_rdma_size_hint(args.max_tokens, args.hidden, self.num_ranks, args.experts)
        self.buffer = deep_ep.Buffer(dist.group.WORLD, num_rdma_bytes=size, low_latency_mode=True,
                                     num_qps_per_rank=self.num_local, allow_nvlink_for_low_latency_mode=True,
                                     explicitly_destroy=True)

    def dispatch(self, p):
        rows, counts, handle, _, _ = self.buffer.low_latency_dispatch(p.x, p.ids, self.args.max_tokens,
                                                                     self.args.experts, use_fp8=self.fp8)
        return types.SimpleNamespace(rows=rows, counts=counts, handle=handle)

    def stage(self, p, h):
        h.staged = self.decoded(h.rows)

    def combine(self, p, h):
        return self.buffer.low_latency_combine(h.staged, p.ids, p.weights, h.handle)[0][:len(p.x)]

    def places(self, h):
        slots = (h.rows[0] if self.fp8 else h.rows).size(1)
        return (torch.arange(slots, device="cuda").unsqueeze(0) < h.counts.long().unsqueeze(1)).nonzero(as_tuple=True)

    def transform(self, p, h):
        expert, slot = self.places(h)
        rows = self.decoded(h.rows)
        h.staged = torch.zeros(rows.shape, dtype=torch.bfloat16, device="cuda")
        made = expert_of(rows[expert, slot], expert + self.rank * self.num_local)
        h.staged[expert, slot] = made.to(torch.bfloat16)

    def check_received(self, p, h, everything):
        keys, ids, _ = everything
        expert, slot = self.places(h)
        rows = self.decoded(h.rows)[expert, slot]
        sources = keys_of(rows)
        assert torch.equal(rows, self.semantic(keyed_rows(sources, self.args.hidden)))
        token, k = (ids // self.num_local == self.rank).nonzero(as_tuple=True)
        wanted = keys[token] * self.args.experts + ids[token, k]
        found = sources * self.args.experts + expert + self.rank * self.num_local
        assert torch.equal(found.sort()[0], wanted.sort()[0])  # each (source, expert) once, and no other

    def expected(self, p):
        x = self.semantic(p.x)
        return sum(p.weights[:, k, None] * expert_of(x, p.ids[:, k]).to(torch.bfloat16).float()
                   for k in range(self.args.topk))


def elapsed_us(call, rounds, before=None, after=None):
    """Microseconds of each call, by events. before(): not timed, gives what call takes; after(result): not timed."""
    times = []
    for _ in range(rounds):
        given = [before()] if before else []
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        result = call(*given)
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * start.elapsed_time(end))
        if after:
            after(result)
            torch.cuda.synchronize()
    slowest = torch.tensor(times, dtype=torch.float64, device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest


def problem(args, rank, tokens):
    ids, weights = routing(args, rank, tokens)
    keys = rank * args.max_tokens + torch.arange(tokens, device="cuda")
    return types.SimpleNamespace(x=keyed_rows(keys, args.hidden), ids=ids.to(deep_ep.topk_idx_t), weights=weights,
                                 keys=keys)


def check(adapter, p, tokens):
    """One dispatch, experts and combine against the oracle."""
    parts = [problem(adapter.args, rank, tokens) for rank in range(adapter.num_ranks)]
    everything = [torch.cat([getattr(part, name) for part in parts]) for name in ("keys", "ids", "weights")]
    h = adapter.dispatch(p)
    torch.cuda.synchronize()
    adapter.check_received(p, h, everything)
    adapter.transform(p, h)
    combined, expected = adapter.combine(p, h), adapter.expected(p)
    torch.cuda.synchronize()
    error = ((combined.float() - expected).abs() / expected.abs().clamp(min=FLOOR)).max().item()
    passed = torch.tensor([int(combined.shape == expected.shape and error < TOLERANCE)], device="cuda")
    dist.all_reduce(passed, op=dist.ReduceOp.MIN)
    assert passed.item() == 1, error


def measure(adapter, p, tokens, rounds):
    def dispatched():
        h = adapter.dispatch(p)
        adapter.stage(p, h)
        return h

    def finish(h):
        adapter.stage(p, h)
        adapter.combine(p, h)

    def round_trip():
        return adapter.combine(p, dispatched())

    check(adapter, p, tokens)
    times = {"dispatch": elapsed_us(lambda: adapter.dispatch(p), rounds, after=finish),
             "stage": elapsed_us(lambda h: adapter.stage(p, h), rounds, before=lambda: adapter.dispatch(p),
                                 after=lambda _: None),
             "combine": elapsed_us(lambda h: adapter.combine(p, h), rounds, before=dispatched),
             "round trip": elapsed_us(round_trip, rounds)}
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()  # a chained period: round trips one after the other, without a wait between them
    for _ in range(rounds):
        round_trip()
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0 and all(bool((each > 0).all()) for each in times.values())
    check(adapter, p, tokens)  # on the state that the period leaves


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--modes", nargs="+", choices=["normal", "low-latency"], default=["normal", "low-latency"])
    parser.add_argument("--precisions", nargs="+", choices=["bf16", "fp8"], default=["bf16", "fp8"])
    for name, default in (("hidden", 512), ("topk", 4), ("experts", 16), ("seed", 3), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 24])
    args = parser.parse_args()
    args.max_tokens = max(args.tokens)
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device(f"cuda:{local_rank}")
    properties = torch.cuda.get_device_properties(device)
    realized = [torch.cuda.get_device_name(device), *torch.cuda.get_device_capability(device),
                properties.multi_processor_count, properties.shared_memory_per_block_optin, properties.clock_rate]
    assert torch.version.cuda and not torch.version.hip and torch.cuda.device_count() >= 1
    dist.init_process_group("nccl", device_id=device)
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, realized)
    assert all(each == realized for each in gathered)
    for mode, precision in itertools.product(args.modes, args.precisions):
        adapter = (Normal if mode == "normal" else LowLatency)(args, precision == "fp8", device)
        for tokens in (*args.tokens, *reversed(args.tokens)):
            p = problem(args, dist.get_rank(), tokens)
            reference = p.x.clone() if dist.get_rank() == 0 else torch.empty_like(p.x)
            dist.broadcast(reference, src=0)
            measure(adapter, p, tokens, args.rounds)
        dist.barrier()
        adapter.buffer.destroy()
        # one write: other ranks print at the same time
        sys.stdout.write(f"{mode} {precision} passed on rank {dist.get_rank()}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
