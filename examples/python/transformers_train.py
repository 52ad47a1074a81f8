"""Trains a Mixture-of-Experts model of transformers on CPU ranks, its experts spread over them by ferry.

    torchrun --nproc-per-node 2 transformers_train.py [folder of a model]

Without a folder the model is a tiny random Qwen3-MoE. FSDP2 shards what is not an expert; every rank has its own batch.
"""

import sys
import tempfile

import ferry.transformers  # noqa: F401  it registers ep_implementation="ferry"
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, DistributedConfig, Qwen3MoeConfig

STEPS, SEQUENCES, LENGTH = 8, 4, 32


def make_model(folder):
    config = Qwen3MoeConfig(
        vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, intermediate_size=64,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def main(folder):
    torch.set_num_threads(1)  # one of several processes on this machine
    rank, size = dist.get_rank(), dist.get_world_size()
    parallel = DistributedConfig(fsdp_size=size, ep_size=size, ep_implementation="ferry")
    model = AutoModelForCausalLM.from_pretrained(folder, distributed_config=parallel, dtype=torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(rank)
    begins = torch.randint(model.config.vocab_size, (SEQUENCES, 1), generator=generator)
    text = (begins + torch.arange(LENGTH)) % model.config.vocab_size  # each token is the one before plus 1
    for step in range(STEPS):
        loss = model(input_ids=text, labels=text).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean / size:.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    where = [sys.argv[1] if len(sys.argv) > 1 else None]
    with tempfile.TemporaryDirectory() as scratch:
        if where[0] is None:
            if dist.get_rank() == 0:
                make_model(scratch)
            where = [scratch]
            dist.broadcast_object_list(where)  # after this call the model is there
        main(where[0])
        dist.barrier()  # the others may still read rank 0's folder
    dist.destroy_process_group()
