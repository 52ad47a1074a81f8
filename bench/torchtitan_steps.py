"""One rank of bench/frameworks.py: torchtitan's Trainer trains its DeepSeek-V3 debug model on CPU, with FSDP2 and
expert parallelism.

torchtitan has no CPU device, so this program gives it one, and random tokens in place of a data set. Between runs only
the name of the backend differs.
"""

import tempfile
import types
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

import frameworks

VOCABULARY = 2048
TOKENS = 128

args = frameworks.rank_arguments()

# torchtitan takes an accelerator for granted, asks for its memory, and finds the backend by the kind of device.
torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda *_: "cpu"
torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 34)
torch.cpu.memory_stats = lambda *_: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None
torch.cpu.current_device = lambda: 0
dist.Backend.default_device_backend_map["cpu"] = frameworks.select(args.backend)
if not hasattr(dist, "set_timeout"):  # the name in torch 2.13
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout

from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_debugmodel  # noqa: E402


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **_):
        self.eos_id = 0

    def encode(self, *_, **__):
        return []

    def decode(self, *_, **__):
        return ""

    def get_vocab_size(self):
        return VOCABULARY


class RandomTokens(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, dp_rank, **_):
        self.generator = torch.Generator().manual_seed(dp_rank)

    def __iter__(self):
        while True:
            tokens = torch.randint(VOCABULARY, (1, TOKENS + 1), generator=self.generator)
            yield ({"input": tokens[:, :-1].contiguous(), "positions": torch.arange(TOKENS)[None]},
                   tokens[:, 1:].contiguous())

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


config = deepseek_v3_debugmodel()
for layer in config.model_spec.model.layers:  # FlexAttention has no backward on CPU
    layer.attention.inner_attention = ScaledDotProductAttention.Config()
config.tokenizer, config.dataloader = NoTokenizer.Config(), RandomTokens.Config()
config.training.local_batch_size, config.training.seq_len, config.training.steps = 1, TOKENS, args.steps
config.training.disable_cuda_graphs = True
config.parallelism.expert_parallel_degree = args.expert_ranks
config.parallelism.spmd_backend = "partial_dtensor"  # fully_shard of torch 2.13 refuses spmd_types
config.debug.seed = 7
config.comm.trace_buf_size = 0
config.dump_folder = tempfile.mkdtemp()

trainer = config.build()
model = trainer.model_parts[0]
for module in model.modules():
    if isinstance(module, FSDPModule):  # torchtitan's factor of 1 asks for PREMUL_SUM, which is NCCL's
        module.set_force_sum_reduction_for_comms(True)
steps = frameworks.Steps()
train_step = trainer.train_step
trainer.train_step = lambda data: steps.run(train_step, data)
trainer.metrics_processor.log = lambda step, loss, _max_loss, norm, **_: steps.losses.append((loss, norm))
trainer.train()
tensors = [parameter for _, parameter in sorted(model.named_parameters())]
steps.write(args.results, [tensor.to_local() for parameter in tensors for tensor in (parameter, parameter.grad)])
trainer.close()
dist.destroy_process_group()
