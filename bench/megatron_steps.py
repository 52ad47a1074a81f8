"""One rank of bench/frameworks.py: Megatron-Core trains a small GPT with experts on CPU: expert parallelism by its
all-to-all dispatcher, and its DistributedDataParallel.

Megatron-Core knows no device but CUDA, so this program gives it stand-ins of the calls about it, and the optimizer of
torch: Megatron's own take tensors of CUDA only. Between runs only the name of the backend differs.
"""

import contextlib

import torch
import torch.distributed as dist

import frameworks

VOCABULARY, TOKENS = 2048, 128

args = frameworks.rank_arguments()


class Stream:
    """The stand-in of a stream: what is issued to it is done at once."""

    def wait_stream(self, _):
        pass

    def synchronize(self):
        pass

    def record_event(self):
        return self


torch.cuda.Stream, torch.cuda.current_stream = Stream, Stream
torch.cuda.stream = lambda _: contextlib.nullcontext()
torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
torch.cuda.manual_seed = torch.manual_seed

from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.distributed import finalize_model_grads  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.tensor_parallel import random as megatron_random  # noqa: E402
from megatron.core.transformer.moe import moe_utils, token_dispatcher  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

megatron_random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
megatron_random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)

if not hasattr(moe_utils, "te_general_gemm"):  # without Transformer Engine the name is read all the same
    moe_utils.te_general_gemm = None
# The counts of rows go to the all-to-all as arrays of numpy if they come from a GPU only.
token_dispatcher.maybe_move_tensor_to_cpu = lambda tensor, as_numpy=False, **_: (
    tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor)

dist.init_process_group(frameworks.select(args.backend))
parallel_state.initialize_model_parallel(expert_model_parallel_size=args.expert_ranks, create_gloo_process_groups=False)
megatron_random.model_parallel_cuda_manual_seed(7)
torch.manual_seed(7)
config = TransformerConfig(
    num_layers=4, hidden_size=256, num_attention_heads=8, ffn_hidden_size=1024, num_moe_experts=8, moe_router_topk=2,
    moe_ffn_hidden_size=256, moe_token_dispatcher_type="alltoall", moe_router_load_balancing_type="aux_loss",
    moe_aux_loss_coeff=1e-2, add_bias_linear=False, expert_model_parallel_size=args.expert_ranks,
    use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0, bf16=True, params_dtype=torch.bfloat16)
model = GPTModel(config, get_gpt_layer_local_spec(num_experts=8, moe_grouped_gemm=False), vocab_size=VOCABULARY,
                 max_sequence_length=TOKENS, position_embedding_type="rope").bfloat16()
model = DistributedDataParallel(
    config, DistributedDataParallelConfig(overlap_grad_reduce=True, grad_reduce_in_fp32=True), model)
model.broadcast_params()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
generator = torch.Generator().manual_seed(dist.get_rank())
mask = torch.ones(1, 1, TOKENS, TOKENS).tril() < 0.5
steps = frameworks.Steps()


def step():
    tokens = torch.randint(VOCABULARY, (1, TOKENS + 1), generator=generator)
    model.zero_grad_buffer()
    loss = model(tokens[:, :-1], torch.arange(TOKENS)[None], mask, labels=tokens[:, 1:]).mean()
    loss.backward()
    finalize_model_grads([model])
    for parameter in model.parameters():
        parameter.grad = parameter.main_grad.to(parameter.dtype)
    optimizer.step()
    norm = torch.nn.utils.get_total_norm([parameter.main_grad for parameter in model.parameters()])
    steps.losses.append((loss.item(), norm.item()))


for _ in range(args.steps):
    steps.run(step)
steps.write(args.results, [parameter for _, parameter in sorted(model.named_parameters())])
dist.destroy_process_group()
