"""A program for GPUs: DeepEP's normal kernels, inside a node and between nodes, as their test programs use them.

    WORLD_SIZE=nodes RANK=node python normal_kernels.py --num-processes 4

Written for CUDA and NCCL; test_map_cuda.py runs it with `python -m ferry.deep_ep --map-cuda`.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

import deep_ep
from deep_ep.utils.envs import dist_print, init_dist
from deep_ep.utils.math import calc_diff, inplace_unique, per_token_cast_back, per_token_cast_to_fp8
from deep_ep.utils.testing import bench


def make_inputs(args, rank, num_ranks):
    x = torch.ones((args.num_tokens, args.hidden), dtype=torch.bfloat16, device="cuda") * rank
    noise = torch.randn((args.num_tokens, args.hidden), dtype=torch.bfloat16, device="cuda")
    scores = torch.randn((args.num_tokens, args.num_experts), dtype=torch.float32, device="cuda").abs() + 1
    topk_idx = torch.topk(scores, args.num_topk, dim=-1, largest=True, sorted=False)[1].to(deep_ep.topk_idx_t)
    weights = torch.ones((args.num_tokens, args.num_topk), dtype=torch.float32, device="cuda") * rank
    rank_idx = topk_idx // (args.num_experts // num_ranks)
    inplace_unique(rank_idx, num_ranks)
    return x, noise, topk_idx, weights, rank_idx


def check_layout(buffer, args, topk_idx, rank_idx, group):
    num_ranks = group.size()
    per_expert = torch.zeros((args.num_experts,), dtype=torch.int, device="cuda")
    for expert in range(args.num_experts):
        per_expert[expert] = (topk_idx == expert).sum()
    in_rank = torch.stack([(rank_idx == rank).any(dim=1) for rank in range(num_ranks)], dim=1)
    in_node = in_rank.view(args.num_tokens, args.num_nodes, -1).any(dim=2)
    got_rank, got_node, got_expert, got_in_rank, _ = buffer.get_dispatch_layout(topk_idx, args.num_experts)
    assert torch.allclose(got_rank, in_rank.sum(0).int()) and torch.allclose(got_expert, per_expert)
    assert torch.allclose(got_in_rank, in_rank)
    assert (got_node is None) == (args.num_nodes == 1)
    assert got_node is None or torch.allclose(got_node, in_node.sum(0).int())
    seconds = bench(lambda: buffer.get_dispatch_layout(topk_idx, args.num_experts))[0]
    dist_print(f"[layout] {seconds * 1e6:.1f} us", once_in_node=True)
    total = got_rank.clone()
    dist.all_reduce(total, group=group)
    expert_total = per_expert.clone()
    dist.all_reduce(expert_total, group=group)
    return got_rank, got_node, got_expert, got_in_rank, total, expert_total


def check_rows(rows, prefix):
    assert torch.allclose(rows.amin(dim=1), rows.amax(dim=1))
    begin = 0
    for source, end in enumerate(prefix.tolist()):
        assert (rows[begin:end, :].int() - source).sum().item() == 0
        begin = end


def one_round(buffer, args, inputs, layout, group, use_fp8, with_topk, async_mode):
    x, noise, topk_idx, weights, _ = inputs
    per_rank, per_node, per_expert, in_rank, total, expert_total = layout
    rank, num_ranks = group.rank(), group.size()
    sent = per_token_cast_to_fp8(x) if use_fp8 else x
    arguments = {"x": sent, "num_tokens_per_rank": per_rank, "num_tokens_per_rdma_rank": per_node,
                 "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert,
                 "config": deep_ep.Buffer.get_dispatch_config(num_ranks), "async_finish": async_mode}
    if with_topk:
        arguments.update({"topk_idx": topk_idx, "topk_weights": weights})
    if async_mode:
        arguments.update({"previous_event": buffer.capture(), "allocate_on_comm_stream": True})
    recv_x, recv_idx, recv_weights, counts, handle, event = buffer.dispatch(**arguments)
    event.current_stream_wait() if async_mode else ()
    rows = per_token_cast_back(*recv_x) if isinstance(recv_x, tuple) else recv_x
    prefix = handle[-4] if args.num_nodes > 1 else handle[0][:, rank]
    mine = expert_total.view(num_ranks, -1)[rank].tolist()
    assert rows.size(0) == total[rank].item() and mine == counts
    assert rows.is_cuda and rows.device == torch.device("cuda", rank % torch.cuda.device_count())
    check_rows(rows, prefix)
    if with_topk:
        local = args.num_experts // num_ranks
        assert (recv_idx.eq(-1) | ((recv_idx >= 0) & (recv_idx < local))).sum().item() == recv_idx.numel()
        for expert, count in enumerate(counts):
            assert recv_idx.eq(expert).sum().item() == count
        recv_weights[recv_idx.eq(-1)] = recv_weights.amax(dim=1, keepdim=True).expand_as(recv_weights)[recv_idx.eq(-1)]
        check_rows(recv_weights, prefix)
    again = buffer.dispatch(x=sent, handle=handle, config=arguments["config"])[0]
    check_rows(per_token_cast_back(*again) if isinstance(again, tuple) else again, prefix)
    combine = {"x": rows, "handle": handle, "bias": (noise, noise), "async_finish": async_mode,
               "config": deep_ep.Buffer.get_combine_config(num_ranks)}
    if with_topk:
        combine["topk_weights"] = recv_weights
    combined, home, event = buffer.combine(**combine)
    event.current_stream_wait() if async_mode else ()
    copies = in_rank.sum(dim=1).unsqueeze(1)
    assert calc_diff((combined.float() - noise.float() - noise.float()) / copies, x) < (5e-4 if rank == 0 else 5e-6)
    if with_topk:
        assert calc_diff(home / copies, weights) < 1e-9


def main_of_rank(local_rank, num_local_ranks, args):
    rank, num_ranks, group = init_dist(local_rank, num_local_ranks)
    assert torch.cuda.is_available() and torch.get_default_dtype() == torch.bfloat16
    args.num_nodes = num_ranks // num_local_ranks
    torch.cuda.set_device(local_rank)
    torch.manual_seed(rank)
    buffer = deep_ep.Buffer(group, int(2e9), int(1e9), low_latency_mode=False, num_qps_per_rank=24,
                            explicitly_destroy=True)
    inputs = make_inputs(args, rank, num_ranks)
    layout = check_layout(buffer, args, inputs[2], inputs[4], group)
    group.barrier()
    time.sleep(0.01)
    for form in ((fp8, topk, later) for fp8 in (0, 1) for topk in (0, 1) for later in (0, 1)):
        one_round(buffer, args, inputs, layout, group, *form)
        dist_print(f"[testing] {form} passed", once_in_node=True)
    tuned = deep_ep.Config(24, 8, 256, 16, 128)
    seconds = bench(lambda: buffer.get_dispatch_layout(inputs[2], args.num_experts))[0]
    torch.cuda.synchronize()
    gathered = torch.zeros((num_ranks, 3), dtype=torch.int32, device="cuda")
    best = torch.tensor([tuned.num_sms, 8, 16], dtype=torch.int32, device="cuda")
    dist.all_gather_into_tensor(gathered, best, group=group)
    assert seconds > 0 and gathered[:, 0].eq(24).all()
    buffer.destroy()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-processes", type=int, default=8)
    parser.add_argument("--num-tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--num-topk", type=int, default=8)
    parser.add_argument("--num-experts", type=int, default=256)
    args = parser.parse_args()
    torch.multiprocessing.spawn(main_of_rank, args=(args.num_processes, args), nprocs=args.num_processes)
    print(f"normal kernels passed on node {os.getenv('RANK', '0')}")
