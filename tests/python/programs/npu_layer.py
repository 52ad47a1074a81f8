"""A program for NPUs: an MoE layer by torch_npu's operators, its group found by the name of the HCCL communicator.
Started by torchrun; test_map_cuda.py runs it. Only its first two lines name ferry."""

import ferry.torch_npu

ferry.torch_npu.install(map_npu=True)

import os
import sys

import torch
import torch.distributed as dist
import torch_npu

TOKENS, HIDDEN, EXPERTS, TOPK = 6, 32, 8, 3


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.npu.set_device(local_rank)
    dist.init_process_group("hccl", device_id=torch.device("npu", local_rank))
    rank, size = dist.get_rank(), dist.get_world_size()
    assert torch.npu.is_available() and torch.npu.current_device() == local_rank and torch_npu.npu is torch.npu
    group = dist.new_group(list(range(size)), backend="hccl")
    name = group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    assert name == group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    torch.npu.manual_seed(rank)
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16).npu()
    logits = torch.randn(TOKENS, EXPERTS, device=f"npu:{local_rank}")
    weights, ids, _ = torch_npu.npu_moe_gating_top_k(logits, TOPK)
    assert x.is_npu and weights.device == torch.device("npu") and ids.to("npu").dtype == torch.int32
    stream, start, end = torch.npu.Stream(), torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    with torch.npu.stream(stream):
        rows, _, assist, counts, ep_counts, tp_counts, _ = torch_npu.npu_moe_distribute_dispatch_v2(
            x, ids, name, size, rank, EXPERTS, expert_scales=weights)
        back = torch_npu.npu_moe_distribute_combine_v2(rows * 2, ids, assist, ep_counts, weights, name, size, rank,
                                                       EXPERTS, tp_send_counts=tp_counts)
    end.record()
    torch.npu.synchronize()
    assert start.elapsed_time(end) > 0
    total = counts.sum()
    dist.all_reduce(total)
    assert int(total) == TOKENS * TOPK * size
    torch.testing.assert_close(back.float(), x.float() * 2 * weights.sum(1, keepdim=True), rtol=2e-2, atol=2e-2)
    try:
        torch.npu.no_such_call
    except AttributeError as error:
        assert "no 'no_such_call'" in str(error)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(f"layer on rank {rank}\n")  # one write: the other rank prints at the same time
    sys.stdout.flush()


if __name__ == "__main__":
    main()
