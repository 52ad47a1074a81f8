"""One rank of bench/frameworks.py: DeepSpeed's AutoEP and ZeRO-1 train a small Qwen3-MoE of transformers on CPU.

Only the name of the backend differs between runs.
"""

import deepspeed
import torch
import torch.distributed as dist
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils import output_capturing

import frameworks

TOKENS = 128

args = frameworks.rank_arguments()
# DeepSpeed 0.19.8 passes a default to get() of a dict that transformers 5.24 lets take none.
registry = output_capturing._CanRecordRegistry
get = registry.get
registry.get = lambda self, key, default=None: get(self, key)

deepspeed.init_distributed(dist_backend=frameworks.select(args.backend))
torch.manual_seed(7)
model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
    vocab_size=2048, hidden_size=256, intermediate_size=1024, moe_intermediate_size=256, num_hidden_layers=6,
    num_attention_heads=8, num_key_value_heads=4, head_dim=32, num_experts=8, num_experts_per_tok=3))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "gradient_clipping": 1.0,
    "expert_parallel": {"enabled": True, "autoep_size": args.expert_ranks, "preset_model": "qwen3_moe"},
})
generator = torch.Generator().manual_seed(dist.get_rank())
steps = frameworks.Steps()


def step():
    tokens = torch.randint(2048, (1, TOKENS), generator=generator)
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
    steps.losses.append((loss.item(), float(engine.get_global_grad_norm())))


for _ in range(args.steps):
    steps.run(step)
steps.write(args.results, [parameter for _, parameter in sorted(model.named_parameters())])
dist.destroy_process_group()
