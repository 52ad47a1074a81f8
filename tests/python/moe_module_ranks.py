"""Functions that the ranks of test_moe_module.py run: the layer in the uses of a torch.nn.Module, compared with a dense
layer of all experts in this process."""

import contextlib
import copy
import functools
import gc
import io
import time

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import ferry
from ferry.moe import MoE, SwiGLU
from ferry.placement import balance
from moe_mesh_ranks import refused, torch_distributed

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, TOKENS = 16, 8, 4, 2, 12
SHAPE = dict(hidden=HIDDEN, intermediate=INTERMEDIATE, num_experts=EXPERTS, top_k=TOP_K, max_tokens=TOKENS)
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
TOLERANCE = {F32: 1e-5, BF16: 0.05, F16: 0.01}


@contextlib.contextmanager
def among(group, folder):
    """torch.distributed between the ranks, if there is a folder."""
    torch.set_num_threads(1)
    with torch_distributed(group, folder) if folder else contextlib.nullcontext():
        yield


def seeded(make, *arguments, **more):
    torch.manual_seed(3)
    return make(*arguments, **more)


def layer_of(group, dtype=F32, **more):
    return seeded(MoE, group, dtype=dtype, **{**SHAPE, **more})


def numbers(rank, shape=(6,), dtype=F32):
    generator = torch.Generator().manual_seed(10 + rank)
    weights, ids = torch.rand(*shape, EXPERTS, generator=generator).softmax(-1).topk(TOP_K, -1)
    return torch.randn(*shape, HIDDEN, generator=generator).to(dtype), ids, weights


class Dense(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = seeded(SwiGLU, EXPERTS, HIDDEN, INTERMEDIATE, F32)

    def forward(self, tokens, ids, weights):
        gate, up = torch.einsum("...h,...koh->...ko", tokens, self.experts.gate_up[ids]).chunk(2, -1)
        outputs = torch.einsum("...ki,...khi->...kh", torch.nn.functional.silu(gate) * up, self.experts.down[ids])
        return torch.einsum("...kh,...k->...h", outputs, weights)


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def held(tensor, group):
    """The part of this rank of [EXPERTS, ..]."""
    return tensor.chunk(group.size)[group.rank]


def near(tensor, wanted, dtype=F32):
    if tensor.shape != wanted.shape or tensor.numel() == 0:
        return tensor.shape == wanted.shape
    difference = (tensor.float() - wanted.float()).abs().max()
    return bool(difference <= TOLERANCE[dtype] * max(1.0, float(wanted.abs().max())))


def seeds(group, folder):
    """Whether weights are those of the dense layer, and whether the random numbers after them are."""
    with among(group, folder):
        layer = layer_of(group)
        mine = [local(weight) for weight in layer.experts.parameters()], torch.rand(3)
        dense = Dense()
        whole = [held(weight, group) for weight in dense.experts.parameters()], torch.rand(3)
        return all(map(torch.equal, mine[0], whole[0])), torch.equal(mine[1], whole[1])


def seeds_of_copies(group):
    """Each slot of a placement with copies has the weights of its expert."""
    placement, dense = balance([9, 1, 1, 1], num_replicas=6, num_ranks=group.size), Dense()
    layer = seeded(MoE, group, dtype=F32, **{**SHAPE, **placement.settings()})
    return [torch.equal(layer.experts.down[slot], dense.experts.down[expert])
            for slot, expert in enumerate(placement.of_rank(group.rank))]


def dtypes(group, folder):
    """{case: (dtype of the output, whether it and the gradients are near)}: autocast and layers that were converted."""
    with among(group, folder):
        found, dense = {}, Dense()
        wanted = dense(*numbers(group.rank))
        wanted.square().sum().backward()
        of_experts = [sum_of_ranks(group, weight.grad) / group.size for weight in dense.experts.parameters()]

        def use(layer, dtype, tokens, ids, weights, context=contextlib.nullcontext):
            layer.zero_grad()
            with torch.no_grad(), context():
                first = layer(tokens, ids, weights)
            with context():
                out = layer(tokens, ids, weights)
            out.float().square().sum().backward()
            grads = [near(local(weight.grad), held(whole, group), dtype)
                     for weight, whole in zip(layer.experts.parameters(), of_experts)]
            return out.dtype == first.dtype == dtype, near(first, wanted, dtype), near(out, wanted, dtype), all(grads)

        layer = layer_of(group)
        tokens, ids, weights = numbers(group.rank)
        for dtype in (BF16, F16):
            cast = functools.partial(torch.autocast, "cpu", dtype=dtype)
            found["autocast", dtype] = use(layer, dtype, tokens, ids, weights, cast)
            found["autocast, tokens cast", dtype] = use(layer, dtype, tokens.to(dtype), ids, weights, cast)
            found["autocast, all cast", dtype] = use(layer, dtype, tokens.to(dtype), ids, weights.to(dtype), cast)
            found["after autocast", dtype] = use(layer, F32, tokens, ids, weights)
            found["to", dtype] = use(layer_of(group).to(dtype), dtype, tokens.to(dtype), ids, weights)
        found["half", F16] = use(layer_of(group).half(), F16, tokens.half(), ids, weights)
        return found


def mixed_precision(group, folder):
    """fully_shard with a policy that casts parameters and all inputs to bfloat16."""
    with among(group, folder):
        mesh = init_device_mesh("cpu", (1, group.size), mesh_dim_names=("dp", "ep"))
        layer = layer_of(group, mesh=mesh["ep"])
        fully_shard(layer, mesh=mesh["dp"], mp_policy=MixedPrecisionPolicy(param_dtype=BF16))
        out, wanted = layer(*numbers(group.rank)), Dense()(*numbers(group.rank))
        out.float().square().sum().backward()
        return out.dtype == BF16, near(out, wanted, BF16), all(p.grad.dtype == F32 for p in layer.parameters())


def sum_of_ranks(group, tensor):
    parts = group.all_gather(tensor.contiguous().numpy().tobytes())
    return sum(torch.frombuffer(bytearray(part), dtype=tensor.dtype).view(tensor.shape) for part in parts)


def another_dtype(group, folder):
    """Rank 1 converts its tokens; then all do."""
    with among(group, folder), torch.no_grad():
        layer, (tokens, ids, weights) = layer_of(group), numbers(group.rank)
        begin = time.monotonic()
        text = refused(layer, tokens.bfloat16() if group.rank == 1 else tokens, ids, weights)
        seconds, again = time.monotonic() - begin, near(layer(tokens, ids, weights), Dense()(*numbers(group.rank)))
        return text, seconds, again


def shapes(group, folder):
    with among(group, folder):
        layer, dense = layer_of(group), Dense()
        found = {}
        for shape in ((2, 3), (2, 1, 3), (), (2, 0), (6,)):
            given = numbers(group.rank, shape)
            found[shape] = near(layer(*given), dense(*given))
        given = numbers(group.rank, (3, 2))
        out = layer(given[0].transpose(0, 1), given[1].transpose(0, 1), given[2].transpose(0, 1))
        found["transposed"] = near(out.transpose(0, 1), dense(*given))
        return found


def copies(group, folder):
    """A deep copy has weights of its own and computes with the same exchange; the original does not change."""
    with among(group, folder):
        layer, given = layer_of(group), numbers(group.rank)
        before = layer(*given)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), layer)
        copied = copy.deepcopy(model)[1]
        assert copied.exchange is layer.exchange and copied.mesh is layer.mesh
        same = torch.equal(copied(*given), before)
        copied(*given).square().sum().backward()
        torch.optim.SGD(copied.parameters(), 0.5).step()
        return same, not torch.equal(copied(*given), before), torch.equal(layer(*given), before), \
            all(weight.grad is None for weight in layer.parameters())


def saved(group, folder):
    """torch.save of a model, and a layer that torch.load returns."""
    with among(group, folder):
        layer, given, file = layer_of(group), numbers(group.rank), io.BytesIO()
        before = layer(*given)
        torch.save(torch.nn.Sequential(layer), file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)[0]
        errors = refused(loaded, *given), refused(layer.join, group)
        loaded.join(group)
        return (torch.equal(loaded(*given), before), loaded.exchange is layer.exchange,
                type(loaded.experts.down) is type(layer.experts.down), *errors)


def sharing(group, folder):
    """Layers of equal settings share an exchange, also where a rank has collected a layer that another has not; their
    gradients are those of a layer each."""
    with among(group, folder):
        first, second, other = layer_of(group), layer_of(group), layer_of(group, max_tokens=TOKENS + 1)
        shared = first.exchange is second.exchange, first.exchange is other.exchange
        given, dense = numbers(group.rank), Dense()
        out, wanted = given[0], given[0]
        for layer in (first, second):
            out, wanted = layer(out, *given[1:]), dense(wanted, *given[1:])
        (out.square().sum() * 1e-2).backward()
        (wanted.square().sum() * 1e-2).backward()
        mine = [local(a.grad) + local(b.grad) for a, b in zip(first.experts.parameters(), second.experts.parameters())]
        whole = [held(sum_of_ranks(group, weight.grad) / group.size, group) for weight in dense.experts.parameters()]
        exact = all(map(near, mine, whole))
        kept = other if group.rank == 0 else None
        del other, layer
        gc.collect()
        again = layer_of(group, max_tokens=TOKENS + 1)
        return (*shared, exact, near(again(*given), dense(*given)), kept is None or kept.exchange is not again.exchange)


def compiled(group, folder, dtype):
    """Output and gradient of the tokens, compiled and not."""
    with among(group, folder):
        layer, (tokens, ids, weights) = layer_of(group, dtype), numbers(group.rank, (2, 3), dtype)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def forward(self, tokens):
                return torch.nn.functional.gelu(self.layer(tokens * 2, ids, weights)) + tokens

        def run(model):
            leaf = tokens.clone().requires_grad_()
            out = model(leaf)
            out.float().sum().backward()
            return out.detach(), leaf.grad

        model = Model()
        step = torch.compile(model, backend="aot_eager")  # Inductor needs a C++ compiler and half a minute
        with torch.no_grad():
            same = torch.equal(step(tokens), model(tokens))
        return same, all(map(near, run(step), run(model)))


def gradients(group, folder):
    """Gradients of experts over those of the sum of the losses, by the setting."""
    with among(group, folder):
        dense = Dense()
        dense(*numbers(group.rank)).square().sum().backward()
        whole = [held(sum_of_ranks(group, weight.grad), group) for weight in dense.experts.parameters()]
        found = {}
        for name, more in {"mean": {}, "sum": dict(gradients="sum")}.items():
            layer = layer_of(group, **more)
            layer(*numbers(group.rank)).square().sum().backward()
            parts = [local(weight.grad) for weight in layer.experts.parameters()]
            found[name] = [float((part * whole_part).sum() / whole_part.square().sum())
                           for part, whole_part in zip(parts, whole)]
        found["wrong"] = refused(layer_of, group, gradients="none")
        return found
