"""A program for GPUs: DeepEP's low-latency kernels with hooks, streams and timers, as its test program uses them.

Written for CUDA and NCCL; test_map_cuda.py runs it with `python -m ferry.deep_ep --map-cuda`.
"""

import argparse
import itertools

import torch
import torch.distributed as dist

import deep_ep
from deep_ep.utils.envs import init_dist
from deep_ep.utils.math import calc_diff, hash_tensor, per_token_cast_back
from deep_ep.utils.testing import bench, bench_kineto


def simulate_experts(packed, use_fp8):
    if not use_fp8:
        return packed.clone()
    rows, scales = packed
    # As DeepEP's own test calls it: packed scales have a fourth of these columns, so a row of the view spans four rows.
    flat = per_token_cast_back(rows.view(-1, rows.size(2)), scales.contiguous().view(-1, rows.size(2) // 128))
    return flat.view(rows.shape)


def same(values, wanted, exact):
    if exact or values.numel() == 0:
        return torch.equal(values, wanted.to(values.dtype))
    return calc_diff(values, wanted) < 0.007


def check_received(case, group, packed, counts, handle, all_idx, exact):
    """exact: False with round_scale, whose scales are rounded up to powers of two."""
    local = case.num_experts // group.size()
    for i in range(local):
        expert = group.rank() * local + i
        rows = packed[i]
        src_info, layout_range = handle[0][i], handle[1][i]
        mask = (2 ** 32) - 1
        begins, numbers = layout_range >> 32, layout_range & mask
        num_valid = counts[i].item()
        assert num_valid == (all_idx == expert).sum(dim=[1, 2])[:].sum().item() == numbers.sum().item()
        values = rows[:num_valid, :-128]
        assert torch.equal(values.amin(dim=-1), values.amax(dim=-1))
        tokens = (src_info[:num_valid].view(-1, 1) % case.num_tokens).expand(-1, 128)
        assert same(rows[:num_valid, -128:], tokens, exact)
        for source in range(group.size()):
            begin, number = begins[source].item(), numbers[source].item()
            assert same(rows[begin:begin + number, 0], torch.full((number,), source - 128), exact)


def rounds(case, group, buffer):
    rank, num_ranks = group.rank(), group.size()
    x = torch.ones((case.num_tokens, case.hidden), dtype=torch.bfloat16, device="cuda") * (rank - 128)
    x[:, -128:] = torch.arange(case.num_tokens, device="cuda").to(torch.bfloat16).view(-1, 1)
    scores = torch.randn((case.num_tokens, case.num_experts), dtype=torch.float32, device="cuda").abs() + 1
    topk_idx = torch.topk(scores, case.num_topk, dim=-1, largest=True, sorted=True)[1].to(deep_ep.topk_idx_t)
    weights = torch.randn((case.num_tokens, case.num_topk), dtype=torch.float32, device="cuda").abs()
    topk_idx[0, 0] = -1
    all_idx = torch.empty((num_ranks, case.num_tokens, case.num_topk), dtype=topk_idx.dtype, device="cuda")
    dist.all_gather_into_tensor(all_idx, topk_idx, group=group)
    digest = 0
    formats = ({"use_fp8": False}, {"use_fp8": True}, {"use_fp8": True, "round_scale": True, "use_ue8m0": True})
    for use_hook, wire, zero_copy in itertools.product((False, True), formats, (False, True)):
        fp8 = wire["use_fp8"]
        stats = torch.zeros((case.num_experts // num_ranks,), dtype=torch.int, device="cuda")
        packed, counts, handle, event, hook = buffer.low_latency_dispatch(
            x, topk_idx, case.num_tokens, case.num_experts, cumulative_local_expert_recv_stats=stats,
            async_finish=not use_hook, return_recv_hook=use_hook, **wire)
        hook() if use_hook else event.current_stream_wait()
        rows = simulate_experts(packed, fp8)
        check_received(case, group, rows, counts, handle, all_idx, "round_scale" not in wire)
        assert torch.equal(stats, counts)
        if zero_copy:
            buffer.get_next_low_latency_combine_buffer(handle)[:, :, :] = rows
        out = torch.empty((case.num_tokens, case.hidden), dtype=torch.bfloat16, device="cuda")
        combined, event, hook = buffer.low_latency_combine(rows, topk_idx, weights, handle, zero_copy=zero_copy,
                                                           async_finish=not use_hook, return_recv_hook=use_hook,
                                                           out=out)
        hook() if use_hook else event.current_stream_wait()
        expected = x * weights.masked_fill(topk_idx == -1, 0).sum(dim=1).view(-1, 1)
        assert not torch.isnan(combined).any()
        assert calc_diff(expected, combined) < (9e-4 if fp8 else 1e-5)
        digest ^= hash_tensor(combined)
    return x, topk_idx, weights, digest


def overlapped(case, buffer, x, topk_idx, weights):
    """Two batches: the experts compute on one while the other is sent."""
    compute, start, end = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    with torch.cuda.stream(compute):
        compute.wait_stream(torch.cuda.default_stream())
        first = buffer.low_latency_dispatch(x, topk_idx, case.num_tokens, case.num_experts, use_fp8=False,
                                            return_recv_hook=True)
        second = buffer.low_latency_dispatch(x, topk_idx, case.num_tokens, case.num_experts, use_fp8=False,
                                             return_recv_hook=True)
        for packed, _, handle, _, hook in (first, second):
            hook()
            packed.record_stream(compute)
            out, _, hook = buffer.low_latency_combine(packed, topk_idx, weights, handle, return_recv_hook=True)
            hook()
    torch.cuda.current_stream().wait_stream(compute)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0
    return out


def main_of_rank(local_rank, num_local_ranks, case):
    rank, num_ranks, group = init_dist(local_rank, num_local_ranks)
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(case.num_tokens, case.hidden, num_ranks, case.num_experts)
    buffer = deep_ep.Buffer(group, num_rdma_bytes=size, low_latency_mode=True, explicitly_destroy=True,
                            num_qps_per_rank=case.num_experts // num_ranks, allow_mnnvl=False)
    with torch.inference_mode():
        x, topk_idx, weights, digest = rounds(case, group, buffer)
        overlapped(case, buffer, x, topk_idx, weights)

        def both():
            packed, _, handle, event, _ = buffer.low_latency_dispatch(x, topk_idx, case.num_tokens, case.num_experts)
            buffer.low_latency_combine(packed[0].to(torch.bfloat16), topk_idx, weights, handle)

        average, least, most = bench(both)
        assert 0 < least <= average <= most
        dispatch, combine = bench_kineto(both, kernel_names=("dispatch", "combine"), barrier_comm_profiling=True,
                                         suppress_kineto_output=True, num_kernels_per_period=2)
        print(f"[rank {rank}] {average:.1e} s, send {dispatch[0]:.1e} s, recv {combine[1]:.1e} s", flush=True)
    assert isinstance(digest, int)
    buffer.destroy()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-processes", type=int, default=8)
    parser.add_argument("--num-tokens", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--num-topk", type=int, default=8)
    parser.add_argument("--num-experts", type=int, default=288)
    case = parser.parse_args()
    torch.multiprocessing.spawn(main_of_rank, args=(case.num_processes, case), nprocs=case.num_processes)
    print("low latency passed")
