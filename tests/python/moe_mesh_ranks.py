"""Functions that the ranks of test_moe_mesh.py run: a small model with a layer of ferry, under torch's wrappers and in
checkpoints."""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import ferry
from ferry.moe import MoE, SwiGLU
from ferry.placement import Placement

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, TOKENS, STEPS, MAX_NORM = 16, 24, 4, 2, 6, 3, 0.5
SHAPE = dict(hidden=HIDDEN, num_experts=EXPERTS, top_k=TOP_K, max_tokens=TOKENS, dtype=torch.float32)


@contextlib.contextmanager
def torch_distributed(group, folder, name="store"):
    """gloo between the ranks of ferry.spawn, found through a file of the folder."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(group.rank), LOCAL_RANK=str(group.rank), WORLD_SIZE=str(group.size))
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=group.rank, world_size=group.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def batch(rank, step):
    """(x [T, H], number of experts, from 0, among which a token may choose): half of them in step 0, so that the other
    half gets no row."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(TOKENS, HIDDEN, generator=generator), EXPERTS // 2 if step == 0 else EXPERTS


def layer_of(group, **more):
    return MoE(group, **{**SHAPE, "intermediate": INTERMEDIATE, **more})


class Dense(torch.nn.Module):
    """All experts in one process."""

    def __init__(self):
        super().__init__()
        self.experts = SwiGLU(EXPERTS, HIDDEN, INTERMEDIATE, torch.float32)

    def forward(self, tokens, ids, weights):
        gate, up = torch.einsum("th,tkoh->tko", tokens, self.experts.gate_up[ids]).chunk(2, -1)
        outputs = torch.einsum("tki,tkhi->tkh", torch.nn.functional.silu(gate) * up, self.experts.down[ids])
        return (outputs * weights.unsqueeze(-1)).sum(1)


class Model(torch.nn.Module):
    """A router, a shared expert, and the layer."""

    def __init__(self, layer):
        super().__init__()
        self.router, self.shared = torch.nn.Linear(HIDDEN, EXPERTS), torch.nn.Linear(HIDDEN, HIDDEN)
        self.layer = layer

    def forward(self, x, reached):
        weights, ids = self.router(x)[:, :reached].softmax(-1).topk(TOP_K)
        return self.shared(x) + self.layer(x, ids, weights)


def seeded(layer):
    """The model, whose weights are the same on every mesh."""
    model = Model(layer)
    generator = torch.Generator().manual_seed(5)
    for weight in model.parameters():
        whole = torch.randn(weight.shape, generator=generator) / 4
        with torch.no_grad():
            if isinstance(weight, DTensor):
                rank, local = weight.device_mesh.get_local_rank(), len(weight.to_local())
                weight.to_local().copy_(whole[rank * local : (rank + 1) * local])
            else:
                weight.copy_(whole)
    return model


def full(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def dense_training(size):
    """(norms of the gradients, parameters) of a process that has the tokens of all ranks."""
    model = seeded(Dense())
    optimizer, norms = torch.optim.AdamW(model.parameters(), lr=0.05), []
    for step in range(STEPS):
        sum(model(*batch(rank, step)).square().mean() / size for rank in range(size)).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM))
        optimizer.step()
        optimizer.zero_grad()
    return norms, {name: weight.detach() for name, weight in model.named_parameters()}


def wrapped(ep, rest):
    """The model with experts over `ep` ranks, in data parallel groups; `rest` names the wrapper of the other
    modules."""
    if dist.get_world_size() == ep and rest == "ddp":  # the layer finds its mesh itself
        group = ferry.init(process_group=dist.group.WORLD, deadline=60)
        return ferry.torch.ddp(seeded(layer_of(group)))
    mesh = init_device_mesh("cpu", (dist.get_world_size() // ep, ep), mesh_dim_names=("dp", "ep"))
    group = ferry.init(process_group=mesh["ep"].get_group(), deadline=60)
    model = seeded(layer_of(group, mesh=mesh["ep"]))
    fully_shard(model.layer, mesh=mesh["dp"])
    return ferry.torch.ddp(model) if rest == "ddp" else fully_shard(model)


def trained(model, steps=range(STEPS), optimizer=None):
    optimizer, norms = optimizer or torch.optim.AdamW(model.parameters(), lr=0.05), []
    for step in steps:
        model(*batch(dist.get_rank(), step)).square().mean().backward()
        assert all(weight.grad is not None for weight in model.parameters())
        norms.append(ferry.torch.clip_grad_norm_(model.parameters(), MAX_NORM))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():  # experts are then called a different number of times on each rank
        model(*batch(dist.get_rank(), 0))
    return norms, {name.removeprefix("module."): full(weight) for name, weight in model.named_parameters()}


def train(group, folder, ways):
    with torch_distributed(group, folder):
        return [trained(wrapped(ep, rest)) for ep, rest in ways]


# ---- checkpoints


def states(model, optimizer):
    """{name: whole tensor} of the model and of its optimizer."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    moments = {f"{name}.{key}": full(value) for name, held in of_optimizer["state"].items()
               for key, value in held.items()}
    return {**{name: full(value) for name, value in of_model.items()}, **moments}


def passed_on(group, folder, chain):
    """For each (way, source, target): loads the checkpoint `source`, or trains for a step where there is none, and
    saves `target`. Returns the state of each way after that."""
    found = []
    with torch_distributed(group, folder, f"store of {chain[0][2]}"):
        for way, source, target in chain:
            model = wrapped(*way)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
            if source is None:
                trained(model, range(1), optimizer)
            else:
                load(model, optimizer, f"{folder}/{source}")
            found.append(states(model, optimizer))
            dcp.save(dict(zip(("model", "optimizer"), get_state_dict(model, optimizer))),
                     checkpoint_id=f"{folder}/{target}")
    return found


def load(model, optimizer, folder):
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


# ---- refusals


def refused(call, *arguments, **more):
    try:
        call(*arguments, **more)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refusals_of_two(group, folder):
    """{the case: the message of its error}"""
    early = seeded(layer_of(group))
    with torch_distributed(group, folder):
        told = {"made early": refused(DistributedDataParallel(early), *batch(0, 1))}
        told["DDP(layer)"] = refused(DistributedDataParallel, layer_of(group))
        model = seeded(layer_of(group))
        told["DDP(model)"] = refused(DistributedDataParallel, model)
        told["DDP without a broadcast"] = refused(DistributedDataParallel(model, init_sync=False), *batch(0, 1))
        told["fully_shard(model)"] = refused(fully_shard, seeded(layer_of(group)))
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "ep"))
        for what, given in (("list", [0, 1]), ("two dimensions", mesh), ("other ranks", mesh["dp"])):
            told[what] = refused(layer_of, group, mesh=given)
        told["mesh on one rank"] = refused(layer_of, group, mesh=mesh["ep"] if group.rank == 0 else None)
        modules = torch.nn.ModuleList([torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(2)])
        told["a module for each expert"] = refused(layer_of, group, experts=modules)
        layer = layer_of(group, mesh=mesh["ep"])
        fully_shard(layer.experts, mesh=mesh["dp"])
        told["fully_shard(experts)"] = refused(layer, *(batch(0, 1)[0], torch.zeros(TOKENS, TOP_K).long()), torch.ones(
            TOKENS, TOP_K))
        told["and then"] = refused(seeded(layer_of(group)), *batch(0, 1))
    return told


def refusals_of_four(group, folder):
    with torch_distributed(group, folder):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
        half = ferry.init(process_group=mesh["ep"].get_group(), deadline=60)
        told = {"no mesh": refused(layer_of, half)}
        model = seeded(layer_of(half, mesh=mesh["ep"]))
        told["ddp without fully_shard"] = refused(ferry.torch.ddp, model)
        held = Placement((*range(EXPERTS), *range(EXPERTS)), 2)
        fully_shard(model.layer, mesh=mesh["dp"])
        told["switch"] = refused(model.layer.switch, held, held)
        told["sum_gradients"] = refused(model.layer.sum_gradients, held)
        told["fully_shard(model)"] = refused(fully_shard, seeded(layer_of(half, mesh=mesh["ep"])), mesh=mesh["ep"])
        told["all at once"] = refused(fully_shard, seeded(layer_of(half, mesh=mesh["ep"])), mesh=mesh._flatten("all"))
    return told


# ---- copies of experts, ranks that are away, modules of the caller


class Scaled(torch.nn.Module):
    """tanh of rows, times a factor of their expert, an entry of a buffer with a part per expert, and one for all."""

    def __init__(self, held):
        super().__init__()
        self.factors = torch.nn.Parameter(torch.tensor([[1.0 + expert] for expert in held]).expand(-1, HIDDEN).clone())
        self.register_buffer("of_expert", torch.tensor([0.5 + expert for expert in held]))
        self.register_buffer("all", torch.tensor([2.0, 1.0, 1.0]))

    def forward(self, rows, counts, out=None):
        assert not any(isinstance(each, DTensor) for each in (self.factors, self.of_expert, self.all))
        each = self.factors * self.of_expert.unsqueeze(1) * self.all[0]
        return torch.tanh(rows) * each.repeat_interleave(torch.tensor(counts), 0)


def steps_with_copies(group, learns_alone):
    """[(experts of this rank, output, weights, buffer)] after each of some steps, with a switch between two of them."""
    held = Placement((0, 1, 2, 3, 2, 3, 0, 1), 2)
    layer = MoE(group, experts=Scaled(held.of_rank(group.rank)), hidden=HIDDEN, top_k=TOP_K, max_tokens=TOKENS,
                dtype=torch.float32, **held.settings("by_table"))
    found = []
    for step, active in enumerate((None, [1], None, None)):
        if step == 2:
            new = Placement((0, 1, 2, 3, 0, 1, 2, 3), 2)
            layer.switch(held, new)
            held = new
        tokens, _ = batch(group.rank, step)
        ids = torch.rand(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(step + group.rank)).argsort(-1)
        out = layer(tokens.requires_grad_(not learns_alone), ids[:, :TOP_K], torch.ones(TOKENS, TOP_K), active)
        out.square().mean().backward()
        layer.sum_gradients(held)
        weight = layer.experts.factors
        with torch.no_grad():
            weight -= weight.grad
        weight.grad = None
        parts = [each.to_local() if isinstance(each, DTensor) else each
                 for each in (weight.detach().clone(), layer.experts.of_expert)]
        found.append((list(held.of_rank(group.rank)), out.detach(), *parts))
    return found


def copies(group, folder):
    """The same steps on plain tensors and on DTensors; and a checkpoint of slots with a buffer of experts."""
    plain = [steps_with_copies(group, alone) for alone in (False, True)]
    with torch_distributed(group, folder):
        meshed = [steps_with_copies(group, alone) for alone in (False, True)]
        layer = MoE(group, experts=Scaled(range(2 * group.rank, 2 * group.rank + 2)), **SHAPE)
        names = {name: isinstance(tensor, DTensor) for name, tensor in layer.state_dict().items()}
        dcp.save(layer.state_dict(), checkpoint_id=f"{folder}/copies")
        state = {name: torch.zeros_like(tensor) for name, tensor in layer.state_dict().items()}
        dcp.load(state, checkpoint_id=f"{folder}/copies")
        whole = {name: full(tensor) for name, tensor in state.items()}
        told = refused(layer.load_state_dict, whole)
        layer.load_state_dict(state)
        set_model_state_dict(layer, dict(whole), options=StateDictOptions(full_state_dict=True))
        again = MoE(group, experts=layer.experts, **SHAPE)
        kept = torch.equal(full(again.experts.factors), whole["experts.factors"])
    return plain, meshed, names, whole, told, kept


def away(group, folder):
    """EP 2 x DP 2 under fully_shard, in which rank 1 of each pair is away for a step, and two batches."""
    held, found = Placement((*range(EXPERTS), *range(EXPERTS)), 2), []
    with torch_distributed(group, folder):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
        half = ferry.init(process_group=mesh["ep"].get_group(), deadline=60)
        for overlap in (None, "batches"):
            layer = MoE(half, mesh=mesh["ep"], overlap=overlap, experts=SwiGLU(EXPERTS, HIDDEN, 8, torch.float32),
                        hidden=HIDDEN, top_k=TOP_K, max_tokens=TOKENS, dtype=torch.float32, **held.settings("by_table"))
            fully_shard(layer, mesh=mesh["dp"])
            for active in (None, [0], None):
                tokens, _ = batch(group.rank, 1)
                ids = torch.arange(TOKENS * TOP_K).view(TOKENS, TOP_K) % EXPERTS
                with torch.no_grad():
                    layer(tokens, ids, torch.ones(TOKENS, TOP_K), active)
                if mesh["dp"].get_local_rank() == 0:  # one pair has a rank that is away, the other has none
                    active = None
                layer(tokens, ids, torch.ones(TOKENS, TOP_K), active).sum().backward()
                found.append([weight.grad is not None for weight in layer.parameters()])
                layer.zero_grad()
    return found
