"""The baseline of a comparison: the usual expert parallelism over an all-to-all of rows, by Gloo or MPI. Dispatch
groups the rows by expert, sends them, and groups the received rows by local expert. Combine sends the rows back and
adds them in float32."""

from dataclasses import dataclass
from typing import List

import torch
import torch.nn.functional


@dataclass
class Received:
    rows: torch.Tensor          # [N, H], by local expert, source, token, k
    tokens_per_expert: torch.Tensor
    order: torch.Tensor         # [T * K]: the entry that was sent first, second, ..
    to_expert: torch.Tensor     # [N]: the received row for each place by expert
    sent: List[int]             # rows to each rank
    received: List[int]         # rows from each rank

    def release(self):
        self.rows = None


class Pipeline:
    """The pipeline over a `network`, which has barrier(), all_to_all(out, into) for equal parts, and
    all_to_all_rows(out, received, into, sent) for `sent` rows to each rank. `into` is sent, and `out` receives the
    result."""

    def __init__(self, shape, network):
        self.shape, self.network = shape, network
        self.barrier = network.barrier

    def dispatch(self, tokens, topk_ids, topk_weights):
        ranks, local = self.shape.ranks, self.shape.local_experts
        expert_of = topk_ids.flatten()
        counts = torch.bincount(expert_of, minlength=self.shape.experts)
        from_ranks = torch.empty_like(counts)  # [R, L]
        self.network.all_to_all(from_ranks, counts)
        order = expert_of.argsort(stable=True)
        rows = tokens.index_select(0, order // self.shape.top_k)
        sent, received = counts.view(ranks, local).sum(1).tolist(), from_ranks.view(ranks, local).sum(1).tolist()
        came = rows.new_empty(sum(received), self.shape.hidden)
        self.network.all_to_all_rows(came, received, rows, sent)
        experts = torch.arange(local).repeat(ranks).repeat_interleave(from_ranks)
        to_expert = experts.argsort(stable=True)
        return Received(came.index_select(0, to_expert), from_ranks.view(ranks, local).sum(0), order, to_expert, sent,
                        received)

    def combine(self, rows, received, topk_weights):
        outgoing = rows.index_select(0, received.to_expert.argsort())
        back = rows.new_empty(received.order.numel(), self.shape.hidden)
        self.network.all_to_all_rows(back, received.sent, outgoing, received.received)
        place = received.order.argsort().view(topk_weights.shape)
        # Gathers and sums in one go: the fastest of torch's ways on a CPU that keep float32 weights and sums.
        total = torch.nn.functional.embedding_bag(place, back.float(), per_sample_weights=topk_weights, mode="sum")
        return total.to(rows.dtype)


class Gloo:
    """The all-to-all of torch.distributed with Gloo. The ranks find each other by a file."""

    def __init__(self, folder, rank, size):
        import torch.distributed as dist

        self.dist, self.rank = dist, rank
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
        self.barrier = dist.barrier
        self.all_to_all = dist.all_to_all_single

    def all_to_all_rows(self, out, received, into, sent):
        # Gloo knows no bf16.
        self.dist.all_to_all_single(out.view(torch.uint8), into.view(torch.uint8), received, sent)

    def close(self):
        self.dist.destroy_process_group()


class Mpi:
    """The all-to-all of mpi4py over the world communicator."""

    def __init__(self, row_bytes):
        from mpi4py import MPI

        self.world = MPI.COMM_WORLD
        self.rank = self.world.Get_rank()
        self.row = MPI.BYTE.Create_contiguous(row_bytes).Commit()
        self.barrier = self.world.Barrier

    def all_to_all(self, out, into):
        self.world.Alltoall(into.numpy(), out.numpy())

    def all_to_all_rows(self, out, received, into, sent):
        self.world.Alltoallv([into.view(torch.uint8).numpy(), sent, self.row],
                             [out.view(torch.uint8).numpy(), received, self.row])

    def close(self):
        self.row.Free()
