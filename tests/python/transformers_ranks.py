"""Functions that the ranks of test_transformers*.py run: experts modules and tiny random models, by ferry and by
transformers."""

import contextlib
import gc
import os
import signal
import time
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DistributedConfig,
    GptOssConfig,
    MixtralConfig,
    Qwen3MoeConfig,
)
from transformers.distributed.expert_parallel import EPImplementationInterface, apply_expert_parallelism
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

import ferry.transformers  # it registers the names
from ferry.transformers import exchanges

EXPERTS, HIDDEN, TOP_K, VOCABULARY = 8, 32, 3, 64


@contextlib.contextmanager
def process_group(group, folder):
    """gloo between the ranks of ferry.spawn, found through a file of the folder."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(group.rank), LOCAL_RANK=str(group.rank), WORLD_SIZE=str(group.size))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=group.rank, world_size=group.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def meshes(size):
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("ep", "tp"))
    return mesh["ep"], mesh["tp"]


# ---- one experts module


class Batch:
    """Tokens, ids, weights and output gradients of one rank; every rank can make those of all."""

    def __init__(self, rank, num_tokens, dtype=torch.float32, num_reached=EXPERTS, top_k=TOP_K):
        generator = torch.Generator().manual_seed(rank)
        self.tokens = torch.randn(num_tokens, HIDDEN, generator=generator).to(dtype)
        scores = torch.rand(num_tokens, num_reached, generator=generator)
        weights, self.ids = scores.softmax(-1).topk(top_k, dim=-1)
        self.weights = weights.to(dtype)
        self.grads = torch.randn(num_tokens, HIDDEN, generator=generator).to(dtype)


def make_experts(size, rank, dtype, implementation):
    """The module of this rank: its block of the EXPERTS, the same for every number of ranks."""
    config = Qwen3MoeConfig(hidden_size=HIDDEN, moe_intermediate_size=16, num_experts=EXPERTS)
    config._experts_implementation = implementation
    module, local = Qwen3MoeExperts(config), EXPERTS // size
    generator = torch.Generator().manual_seed(7)
    for name, parameter in module.named_parameters(recurse=False):
        whole = torch.randn(parameter.shape, generator=generator).to(dtype) / HIDDEN**0.5
        setattr(module, name, torch.nn.Parameter(whole[rank * local : (rank + 1) * local].clone()))
    module.num_experts, module._is_expert_parallel = local, True
    return module


def forward_and_backward(move, experts, batch):
    """Output, and the gradients of tokens, weights and parameters."""
    tokens, weights = batch.tokens.clone().requires_grad_(), batch.weights.clone().requires_grad_()
    experts.zero_grad()
    out = move(tokens, batch.ids, weights).to(tokens.dtype)
    out.backward(batch.grads)
    return [out.detach(), tokens.grad, weights.grad, *(p.grad.clone() for p in experts.parameters())]


def compare_modules(group, folder, cases):
    """For each case {way: results}; a case: (tokens by rank, more of Batch, dtype, experts implementation)."""
    with process_group(group, folder):
        ep_mesh, tp_mesh = meshes(group.size)
        found = []
        for num_tokens, more, dtype, implementation in cases:
            experts = make_experts(group.size, group.rank, dtype, implementation)
            batch = Batch(group.rank, num_tokens[group.rank], dtype, **more)
            ways = {}
            for name in ("all_to_all", "ferry", "ferry_rank_major"):
                move = EPImplementationInterface()[name](experts, ep_mesh, tp_mesh)
                ways[name] = forward_and_backward(move, experts, batch)
            found.append(ways)
        return found


def use_exchanges(group, folder):
    """What layers share, how an exchange grows, and what a call without gradients copies."""
    with process_group(group, folder):
        ep_mesh, tp_mesh = meshes(group.size)
        experts = make_experts(group.size, group.rank, torch.float32, "grouped_mm")
        layers = [ferry.transformers.ExpertMajor(experts, ep_mesh, tp_mesh) for _ in range(3)]
        rooms, said = [], {}
        for num_tokens in ((3, 0), (1, 20), (4, 4)):
            batch = Batch(group.rank, num_tokens[group.rank])
            for layer in layers:
                layer(batch.tokens, batch.ids, batch.weights)
            exchange = exchanges.of(ep_mesh.get_group()).meeting
            rooms.append(exchange.config["max_tokens"])
        said["rooms"], said["shared"] = rooms, len(exchanges.of(ep_mesh.get_group())._by_config)
        with torch.no_grad():
            before = exchange.stats()
            for _ in range(10):  # more than there are buffers
                out = layers[0](batch.tokens, batch.ids, batch.weights)
        after, received = exchange.stats(), exchange.stats().rows_received - before.rows_received
        said["copied in rows"] = (after.bytes_copied - before.bytes_copied) / (HIDDEN * 4 * received)
        said["graph"] = out.requires_grad
        said["refused"] = refuse(group, layers[0], batch)
        said["usable"] = torch.equal(layers[0](batch.tokens, batch.ids, batch.weights), out)
        found = weakref.ref(exchanges.of(ep_mesh.get_group()))
        del layers, layer, exchange
        said["kept"] = [found() is not None]
        del ep_mesh, tp_mesh, experts
    gc.collect()
    said["kept"].append(found() is not None)
    return said


def refuse(group, layer, batch):
    """Rank 1 names an expert that does not exist."""
    ids = batch.ids + (EXPERTS if group.rank == 1 else 0)
    try:
        layer(batch.tokens, ids, batch.weights)
    except ferry.Error as error:
        return type(error).__name__, str(error)


def call_differently(group, folder, deadline):
    """{case: (error of each call, seconds)}: rank 1 calls an experts module with another dtype, top-k or way."""
    exchanges.DEADLINE = deadline
    with process_group(group, folder):
        ep_mesh, tp_mesh = meshes(group.size)
        experts = {dtype: make_experts(group.size, group.rank, dtype, "grouped_mm")
                   for dtype in (torch.float32, torch.bfloat16)}

        def call(dtype=torch.float32, top_k=TOP_K, way=ferry.transformers.ExpertMajor):
            batch = Batch(group.rank, 4, dtype, top_k=top_k)
            way(experts[dtype], ep_mesh, tp_mesh)(batch.tokens, batch.ids, batch.weights)

        cases = {"dtype": dict(dtype=torch.bfloat16), "top_k": dict(top_k=2),
                 "layout": dict(way=ferry.transformers.RankMajor)}
        found = {}
        call()
        for name, other in cases.items():
            for again in (False, True):  # the second time all ranks have an exchange for both
                begin = time.monotonic()
                try:
                    call(**(other if group.rank == 1 else {}))
                except ferry.Error as error:
                    text = f"{type(error).__name__}: {error}"
                    found[name, again] = text, time.monotonic() - begin
                call()
                call(**other)
        return found


# ---- whole models

_SIZES = dict(vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, num_experts_per_tok=2)  # fmt: skip
_WIDE = dict(intermediate_size=32, num_local_experts=EXPERTS)
CONFIGS = {
    "mixtral": lambda: MixtralConfig(**_SIZES, **_WIDE),
    "qwen3_moe": lambda: Qwen3MoeConfig(**_SIZES, num_experts=EXPERTS, moe_intermediate_size=16, head_dim=8,
                                        intermediate_size=32),
    "deepseek_v3": lambda: DeepseekV3Config(
        **dict(_SIZES, num_key_value_heads=4), n_routed_experts=EXPERTS, n_shared_experts=1, moe_intermediate_size=16,
        intermediate_size=32, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8,
        first_k_dense_replace=1, n_group=4, topk_group=2),
    "gpt_oss": lambda: GptOssConfig(**_SIZES, **_WIDE, head_dim=8, sliding_window=16,
                                    layer_types=["sliding_attention", "full_attention"]),
}  # fmt: skip


def save_models(folder, names):
    """Random models as from_pretrained finds them, with biases and routers that are not zero."""
    for name in names:
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(CONFIGS[name]())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.2)
        model.save_pretrained(f"{folder}/{name}")


def loaded(path, sizes, implementation, **more):
    config = DistributedConfig(**sizes, ep_implementation=implementation)
    return AutoModelForCausalLM.from_pretrained(path, distributed_config=config, dtype=torch.float32, **more)


def by_hand(path, ep_mesh, tp_mesh, implementation):
    """The model, whole on every rank except for its experts."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    whole = dict(model.named_parameters())
    plan = {}
    for pattern, style in model.config.base_model_ep_plan.items():
        names = [name for name, _ in (*model.named_modules(), *model.named_parameters())]
        layers = {name.split(".")[2]: name for name in names if name.startswith("model.layers.")}
        for layer in layers:
            name = "model." + pattern.replace("*", layer)
            if name in names:
                plan[name] = style
    apply_expert_parallelism(model, ep_mesh, tp_mesh, plan, implementation)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter is not whole[name]:
                mine = whole[name].chunk(ep_mesh.size())[ep_mesh.get_local_rank()]
                parameter.to_local().copy_(mine)
    return model


def train_once(model, rank, length=11):
    """Logits, and the gradients by name, as this rank has them."""
    generator = torch.Generator().manual_seed(100 + rank)
    characters = torch.randint(VOCABULARY, (2, length), generator=generator)
    out = model(input_ids=characters, labels=characters, use_cache=False)
    out.loss.backward()
    grads = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        if grad is not None:
            grads[name] = grad.to_local().clone() if hasattr(grad, "to_local") else grad.clone()
    return out.logits.detach(), grads


def compare_models(group, folder, names, sizes, ways):
    """{model: {way: (logits, gradients)}}; a way: (implementation, checkpointing, experts implementation)."""
    with process_group(group, folder):
        found = {}
        for name in names:
            for way in ways:
                implementation, recompute, experts = way
                model = loaded(f"{folder}/{name}", sizes, implementation, experts_implementation=experts)
                if recompute:
                    model.gradient_checkpointing_enable(dict(use_reentrant=False))
                model.train()
                batch = group.rank // sizes.get("tp_size", 1)  # ranks of a tensor parallel group share theirs
                found.setdefault(name, {})[way] = train_once(model, batch)
        return found


def compare_by_hand(group, folder, names):
    with process_group(group, folder):
        found = {}
        for name in names:
            for implementation in ("all_to_all", "ferry"):
                model = by_hand(f"{folder}/{name}", *meshes(group.size), implementation)
                length = 5 + 8 * group.rank  # another number of tokens on each rank
                found.setdefault(name, {})[implementation] = train_once(model, group.rank, length)
        return found


def one_model_after_the_other(group, folder, name):
    """Rank 0 collects its garbage at once, rank 1 never: the second model must find the same exchanges on both."""
    with process_group(group, folder):
        gc.disable()
        for _ in range(2):
            model = by_hand(f"{folder}/{name}", *meshes(group.size), "ferry")
            train_once(model, group.rank)
            garbage = [model]
            garbage.append(garbage)
            del model, garbage
            if group.rank == 0:
                gc.collect()
    return "trained twice"


def die_in_training(group, folder, name):
    """Rank 1 is killed by the second step's backward; rank 0 writes its error, and the time until it."""
    with process_group(group, folder):
        model = by_hand(f"{folder}/{name}", *meshes(group.size), "ferry")
        train_once(model, group.rank)
        if group.rank == 1:
            last = model.model.layers[-1].mlp.experts.down_proj
            last.register_hook(lambda grad: os.kill(os.getpid(), signal.SIGKILL))
        begin = time.monotonic()
        try:
            train_once(model, group.rank)
        except ferry.Error as error:
            Path(folder, "told").write_text(f"{type(error).__name__}|{time.monotonic() - begin}|{error}")
            raise
