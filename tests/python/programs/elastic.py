"""A program for GPUs: DeepEP's ElasticBuffer against the references of deep_ep.utils, with a skewed router, all-gather
sessions and barriers, as its test programs use them.

Written for CUDA and NCCL; test_map_cuda.py runs it with `python -m ferry.deep_ep --map-cuda`.
"""

import argparse
import itertools

import torch
import torch.distributed as dist

import deep_ep
from deep_ep.utils.comm import destroy_all_managed_nccl_comm
from deep_ep.utils.envs import check_torch_deterministic, dist_print, get_nvlink_gbs, get_rdma_gbs, init_dist, init_seed
from deep_ep.utils.gate import get_unbalanced_scores
from deep_ep.utils.math import align, calc_diff, count_bytes, per_token_cast_to_fp8
from deep_ep.utils.refs import combine as combine_reference
from deep_ep.utils.refs import dispatch as dispatch_reference
from deep_ep.utils.refs import generate_pre_combine_data
from deep_ep.utils.testing import bench


def same_tokens(have, want, metadata, sources):
    """Rows in any order, told apart by their sources."""
    mine = metadata[:, 0].argsort()
    return torch.equal(have[mine].float(), want[sources.argsort()].float())


def check(args, buffer, x, topk_idx, weights, expand, fp8, cpu_sync):
    rank, num_ranks = buffer.rank_idx, buffer.num_ranks
    sent = per_token_cast_to_fp8(x) if fp8 else x
    ref_x, ref_idx, ref_weights, ref_sources, per_rank = dispatch_reference(
        sent, topk_idx, weights, args.num_tokens, args.num_experts)
    recv_x, recv_idx, recv_weights, handle, event = buffer.dispatch(
        sent, topk_idx=topk_idx, topk_weights=weights, num_experts=args.num_experts, expert_alignment=args.alignment,
        num_max_tokens_per_rank=args.num_tokens, do_expand=expand, do_cpu_sync=cpu_sync,
        async_with_compute_stream=True)
    event.current_stream_wait()
    num_recv = handle.psum_num_recv_tokens_per_scaleup_rank[-1].item()
    assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == per_rank.cumsum(0).tolist()
    metadata = handle.recv_src_metadata[:num_recv]
    y = generate_pre_combine_data(metadata[:, 0], args.num_tokens, args.num_topk, args.hidden)
    if expand:
        places = metadata[:, 2:].long()
        rows = torch.zeros((handle.num_expanded_tokens, args.hidden), dtype=torch.bfloat16, device="cuda")
        rows[places[places >= 0]] = y[places >= 0]
        home = buffer.combine(rows, handle=handle)[0]
        counts = [align(count, args.alignment) for count in handle.num_unaligned_recv_tokens_per_expert.tolist()]
        assert not cpu_sync or handle.num_recv_tokens_per_expert_list == counts
    else:
        first = recv_x[0] if fp8 else recv_x
        assert same_tokens(first[:num_recv], ref_x[0] if fp8 else ref_x, metadata, ref_sources)
        local = recv_idx[:num_recv] >= 0
        assert torch.equal(recv_idx[:num_recv][metadata[:, 0].argsort()], ref_idx[ref_sources.argsort()])
        assert calc_diff(recv_weights[:num_recv].masked_fill(~local, 0),
                         ref_weights.masked_fill(ref_idx < 0, 0)) < 1e-9
        partial = torch.where(local.unsqueeze(2), y.float(), 0.0).sum(1).to(torch.bfloat16)
        rows = torch.zeros((first.size(0), args.hidden), dtype=torch.bfloat16, device="cuda")
        rows[:num_recv] = partial
        home = buffer.combine(rows, handle=handle)[0]
    numbers = rank * args.num_tokens + torch.arange(len(x), device="cuda")
    entries = generate_pre_combine_data(numbers, args.num_tokens, args.num_topk, args.hidden)
    expected = combine_reference(entries, topk_idx, *buffer.get_logical_domain_size(), args.num_experts, None, True,
                                 False)
    assert torch.equal(home, expected) if expand else calc_diff(home, expected) < 1e-5
    cached = buffer.dispatch(sent, handle=handle, do_expand=expand, num_sms=handle.num_sms)
    assert cached[3] is handle
    assert count_bytes(recv_x, recv_idx, None) > 0 or num_recv == 0
    assert num_ranks == dist.get_world_size()


def sessions(group, buffer):
    shapes = [(4, 8), (16,)]
    num_bytes = deep_ep.ElasticBuffer.get_agrs_num_max_session_bytes(group, shapes, torch.bfloat16)
    buffer.agrs_set_config(num_bytes, len(shapes))
    with buffer.agrs_new_session():
        mine = [torch.full(shape, float(group.rank()), dtype=torch.bfloat16, device="cuda") for shape in shapes]
        *gathered, wait = buffer.all_gather(mine)
        wait()
    for rank, part in itertools.product(range(group.size()), gathered):
        assert part[rank].eq(rank).all()
    buffer.barrier(use_comm_stream=False, with_cpu_sync=True)


def main_of_rank(local_rank, num_local_ranks, args):
    rank, num_ranks, group = init_dist(local_rank, num_local_ranks, seed=1)
    torch.set_default_device("cuda")
    check_torch_deterministic()
    buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=args.num_tokens, hidden=args.hidden,
                                   num_topk=args.num_topk, allow_hybrid_mode=False, explicitly_destroy=True,
                                   deterministic=True)
    assert buffer.num_bytes > 0 and buffer.get_theoretical_num_sms(args.num_experts, args.num_topk) > 0
    for seed, ratio in enumerate((1.0, 2.0)):
        init_seed(seed)
        scores = get_unbalanced_scores(args.num_tokens, args.num_experts, num_ranks, args.num_topk, ratio, ratio > 1)
        topk_idx = scores.topk(args.num_topk, dim=-1)[1].to(deep_ep.topk_idx_t)
        topk_idx.masked_fill_(torch.rand(topk_idx.shape, dtype=torch.float32) < 0.1, -1)
        x = torch.randn((args.num_tokens - rank, args.hidden), dtype=torch.bfloat16, device=torch.device("cuda", rank))
        weights = torch.rand((len(x), args.num_topk), dtype=torch.float32)
        for form in itertools.product((False, True), repeat=3):
            check(args, buffer, x, topk_idx[:len(x)].contiguous(), weights, *form)
        dist_print(f"[testing] ratio {ratio} passed", once_in_node=True)
    sessions(group, buffer)
    average = bench(lambda: buffer.barrier(), num_tests=3)[0]
    assert average / get_nvlink_gbs() / get_rdma_gbs("mlx5_0") > 0
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        torch.cuda._sleep(1000)
    buffer.destroy()
    destroy_all_managed_nccl_comm()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-processes", type=int, default=8)
    parser.add_argument("--num-tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--num-topk", type=int, default=6)
    parser.add_argument("--num-experts", type=int, default=256)
    parser.add_argument("--alignment", type=int, default=128)
    args = parser.parse_args()
    torch.multiprocessing.spawn(main_of_rank, args=(args.num_processes, args), nprocs=args.num_processes)
    print("elastic passed")
