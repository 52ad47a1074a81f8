"""Trains a model with a Mixture-of-Experts layer on CPU ranks. Some ranks share the experts; others have copies.

    torchrun --nproc-per-node 4 train_parallel.py [ddp or fsdp] [ranks that share the experts] [folder of a checkpoint]

Goes on from the checkpoint where there is one, on any number of ranks, and saves one at the end. The batch is the same
for every number of ranks, each of which has a part of it.
"""

import sys
from pathlib import Path

import ferry
import ferry.torch
import ferry.torch_backend  # torch 2.13 only: 2.14 and later find the backend by its name
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, BATCH, HIDDEN, EXPERTS, TOP_K = 8, 64, 32, 8, 2


class Model(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.router, self.predict = torch.nn.Linear(HIDDEN, EXPERTS), torch.nn.Linear(HIDDEN, HIDDEN)
        self.layer = layer

    def forward(self, tokens):
        weights, ids = self.router(tokens).softmax(-1).topk(TOP_K)
        return self.predict(tokens + self.layer(tokens, ids, weights))


def make_model(way, num_sharing) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size() // num_sharing, num_sharing), mesh_dim_names=("dp", "ep"))
    group = ferry.init(process_group=mesh["ep"].get_group())
    layer = ferry.torch.MoE(group, hidden=HIDDEN, intermediate=64, num_experts=EXPERTS, top_k=TOP_K, max_tokens=BATCH,
                            dtype=torch.float32, mesh=mesh["ep"])  # fmt: skip
    fully_shard(layer, mesh=mesh["dp"])  # the experts: over the ranks that hold the same ones
    model = Model(layer)
    if way == "ddp":  # the rest: over all ranks
        return ferry.torch.ddp(model)
    fully_shard(model)
    return model


def state_of(model, optimizer):
    """The states of model and optimizer, by names that no wrapper changes. Each rank has its parts of the tensors."""
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))


def main(way="ddp", num_sharing="2", folder=None):
    torch.set_num_threads(1)  # one of several processes on this machine
    torch.manual_seed(dist.get_rank())  # other experts on each rank; DDP and fully_shard make the rest equal
    rank, size = dist.get_rank(), dist.get_world_size()
    model = make_model(way, int(num_sharing))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = 0
    if folder and (Path(folder) / ".metadata").exists():
        state = {**state_of(model, optimizer), "step": 0}
        load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        first = state["step"]
    for step in range(first, first + STEPS):
        batch = torch.randn(BATCH, HIDDEN, generator=torch.Generator().manual_seed(step))
        tokens = batch[rank * BATCH // size : (rank + 1) * BATCH // size]
        loss = (model(tokens) - tokens.roll(1, -1)).square().mean()
        loss.backward()  # collective: every rank calls it
        norm = ferry.torch.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean / size:.4f}, norm {norm:.4f}", flush=True)
    if folder:
        save({**state_of(model, optimizer), "step": first + STEPS}, checkpoint_id=folder)


if __name__ == "__main__":
    dist.init_process_group("cpu:ferry")
    main(*sys.argv[1:])
    dist.destroy_process_group()
