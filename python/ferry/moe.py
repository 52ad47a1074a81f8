"""A Mixture-of-Experts layer in one call: dispatch, experts, combine, with gradients, in one or two batches.

    layer = ferry.torch.MoE(group, hidden=2048, intermediate=768, num_experts=128, top_k=8, max_tokens=1024)
    out = layer(tokens, topk_ids, topk_weights)                        # [T, H]; the gate is the caller's

    out = ferry.moe.moe(exchange, tokens, topk_ids, topk_weights, experts)   # experts of the caller

T tokens of this rank, H hidden, I intermediate, K top-k, L experts of this rank, N rows received. Without gradients
the schedule is ferry::Layer's (src/layer), with them the calls are those of ferry.torch or ferry.batches.
"""

from functools import partial

import torch
import torch.nn.functional as F

import ferry
import ferry.batches
import ferry.placement
import ferry.torch
from ferry import expert_mesh
from ferry.experts_backward import ExpertsBackward, reaching
from ferry.refusing import Refusing
from ferry.turns import pair, paired, take

__all__ = ["MoE", "SwiGLU", "each", "moe", "pair", "swiglu"]


def each(expert):
    """The experts argument of moe() from a function of one expert: expert(e, rows [n, H]) gives [n, H] for the local
    expert e, and is called for experts that have rows only."""

    def experts(rows, counts, out=None):
        parts = [_made(expert(e, part), part, f"expert {e}") for e, part in _shares(rows, counts)]
        return torch.cat(parts or [rows], out=out)

    return experts


def _made(outputs, rows, who="experts"):
    """The outputs, if they are of the shape and dtype of the rows."""
    if not torch.is_tensor(outputs):
        raise ferry.InvalidArgument(f"moe: {who} returned {type(outputs).__name__}, not a tensor {list(rows.shape)}")
    if outputs.shape != rows.shape or outputs.dtype != rows.dtype:
        raise ferry.InvalidArgument(f"moe: {who} returned {outputs.dtype} {list(outputs.shape)}, not {rows.dtype} "
                                    f"{list(rows.shape)}, as the rows are")
    return outputs


def _writing(experts):
    """The experts; what they return is copied into `out`, unless it is `out` or None: then they wrote there."""

    def call(rows, counts, out):
        made = experts(rows, counts, out)
        if made is not None and made is not out:
            out.copy_(_made(made, out))

    return call


# Of the gate and up products of a block of experts. From 32 MiB on the C library maps new pages for every tensor.
_BLOCK_BYTES = 8 * 2**20


def swiglu(gate_up, down):
    """The experts argument of moe(): down[e](silu(gate(x)) * up(x)), of gate_up[e] [2 I, H], the gate's rows first, and
    down[e] [H, I]. Every product is torch's: a grouped_mm of many experts where torch has one for these weights
    (docs/moe.md), else one for each expert that has rows."""

    def one(gate_up, down, rows):
        gate, up = (rows @ gate_up.t()).chunk(2, -1)
        return (F.silu(gate) * up) @ down.t()

    def experts(rows, counts, out=None):
        if not _fit_grouped_mm(rows, gate_up, down):  # indexing would make a gradient of all experts for each
            weights = list(zip(gate_up, down))
            return each(lambda e, part: one(*weights[e], part))(rows, counts, out)
        if out is None:
            return _grouped(gate_up, down, rows, counts)
        most = max(1, _BLOCK_BYTES // (gate_up.shape[1] * gate_up.element_size()))
        for block, part in _blocks(counts, most):
            out[part] = _grouped(gate_up[block], down[block], rows[part], counts[block])
        return out

    experts.parameters = lambda: [*_listed(gate_up), *_listed(down)]
    return experts


def _listed(weights):
    return [weights] if torch.is_tensor(weights) else weights


def _blocks(counts, most):
    """(experts, their rows) as slices, of as many experts with rows as have at most `most` rows, or of one."""
    first = begin = end = 0
    for e, count in enumerate(counts):
        if begin < end and end + count - begin > most:
            yield slice(first, e), slice(begin, end)
            first, begin = e, end
        end += count
    if begin < end:
        yield slice(first, len(counts)), slice(begin, end)


def _fit_grouped_mm(rows, *weights):
    """It takes tensors of one dtype whose rows are multiples of 16 bytes, and does not know autocast. An empty gradient
    is contiguous with any strides, and its backward wants others."""
    return (hasattr(F, "grouped_mm") and len(rows) > 0 and not torch.is_autocast_enabled("cpu")
            and all(torch.is_tensor(each) and each.dtype == rows.dtype and each.is_contiguous()
                    and each.shape[-1] * each.element_size() % 16 == 0 for each in weights))


def _grouped(gate_up, down, rows, counts):
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    gate, up = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    out = F.grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
    if out.requires_grad:  # its backward takes no gradient that is one number, expanded
        out.register_hook(torch.Tensor.contiguous)
    return out


def _shares(rows, counts):
    """(local expert, its rows) of each that has some."""
    return zip([e for e, count in enumerate(counts) if count], rows.split([count for count in counts if count]))


class SwiGLU(torch.nn.Module):
    """swiglu() with parameters of its own: gate_up [L, 2 I, H] and down [L, H, I], the layout of transformers and
    vLLM."""

    def __init__(self, num_local, hidden, intermediate, dtype=torch.bfloat16):
        super().__init__()
        self.gate_up = torch.nn.Parameter(torch.empty(num_local, 2 * intermediate, hidden, dtype=dtype))
        self.down = torch.nn.Parameter(torch.empty(num_local, hidden, intermediate, dtype=dtype))
        for weight in (self.gate_up, self.down):
            torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)

    def forward(self, rows, counts, out=None):
        """rows [N, H], expert by expert, counts[e] of them; returns [N, H], in `out` where that is given."""
        return swiglu(self.gate_up, self.down)(rows, counts, out)


def moe(exchange, tokens, topk_ids, topk_weights, experts, *, overlap=None, balancer=None, active_ranks=None,
        **unknown):
    """dispatch -> experts -> combine: tokens [T, H] and float32 topk_weights [T, K] give [T, H]. Collective.

    experts(rows [n, H], counts, out=None) computes experts of this rank, whose rows follow each other, counts[e] for
    local expert e, and returns a tensor of their shape and dtype; with `out` [n, H] it may write there, where combine
    reads, and return that or None, which saves a copy. Without gradients it is called for the experts whose rows have
    all come, the others have a count of 0: once where all rows are there, else once for each run of such experts. An
    expert gets its rows in one call; so results are those of the three calls, bit for bit, unless what it computes for
    an expert depends on the others in its call. SwiGLU is one, each(f) makes one. What it raises is raised here, and
    ferry.PeerRejected on the other ranks; the exchange goes on. `rows` and `out` keep their part of the window, also in
    the traceback of an error that is kept: once 2 * depth + 2 are alive, rows are copied. `out` is not to be written to
    after the call: other ranks may still read it.

    Differentiable in the tokens, the weights and what the experts hold, as ferry.torch is. Each parameter of a Module
    that needs a gradient gets one in every backward pass, zeros where no row came to it and on a rank that is left out.
    Of other `experts`, but for swiglu(), it is not known what they hold: let the tokens or the weights require
    gradients. DTensors of a Module are seen by it as their local tensors.
    overlap="batches" splits the tokens: the second half travels while the experts compute the first, whose results
    travel while they compute the second; and in backward their gradients, which can be differentiated once only. It is
    for hosts with FERRY_PROGRESS=thread, where travel takes about as long as the experts (docs/moe.md); on one host it
    costs, as products are smaller. All ranks give the same `overlap`, require the same gradients, and give "batches" an
    exchange of depth 2 or more. A ferry.placement.Balancer in `balancer` counts the rows.

    active_ranks: those that take part, the same list on all; copies serve the experts of the others. The exchange has
    the settings of a ferry.placement.Placement, settings("by_table"), whose replica table is found here. A rank that is
    left out makes the same calls, backward() too; it gets zeros [T, H] and gradients of zeros, and its experts are not
    called (docs/placement.md, "Ranks that are away").

    Rows that travel encoded (a wire of the exchange) come to the experts decoded, in the tokens' dtype: rows * scales
    in float32, rounded once. Wires, combine's too, are for calls without gradients.

    Raises InvalidArgument for another layout than "expert_major" with expert_alignment 1, for the wire "int8_static"
    (a layer has no scales), an unknown overlap, gradients over a wire and an expert without a copy on the active ranks,
    and what dispatch and combine raise.
    """
    config = exchange.config
    _check(config)
    with Refusing(exchange.refuse_dispatch):
        active = None if active_ranks is None else _ranks(active_ranks)
    with Refusing(exchange.refuse_dispatch, active):
        if unknown:
            raise TypeError(f"moe() has no argument '{next(iter(unknown))}'")
        if overlap not in (None, "batches"):
            raise ferry.InvalidArgument(f"moe: overlap {overlap!r} is neither None nor 'batches'")
        tokens, topk_ids, topk_weights = _dense_rows(tokens, topk_ids, topk_weights)
        experts = expert_mesh.on_local_tensors(experts)
        held = list(experts.parameters()) if hasattr(experts, "parameters") else []
        learns = torch.is_grad_enabled() and any(each.requires_grad for each in (tokens, topk_weights, *held))
        if learns:
            _check_learning(config, overlap)
        routing = _routing(exchange.group, config, active)
        num_zeros = 0
        if active is not None and exchange.group.rank not in active:
            num_zeros, experts = len(tokens), _returned
            tokens, topk_ids, topk_weights = tokens[:0], topk_ids[:0], topk_weights[:0]
    if learns:
        run = _in_one if overlap is None else ferry.batches.in_two
        out, handles = run(exchange, tokens, topk_ids, topk_weights, reaching(experts, held), routing)
    else:
        given = _writing(experts)
        if config["wire"] != "none":
            given = _decoding(given, config)
        with torch.no_grad():
            out, handles = take(exchange._run_layer, tokens, topk_ids, topk_weights, given, overlap == "batches",
                                **routing)
    for handle in handles if balancer else ():
        balancer.count(handle)
    return torch.cat([out, out.new_zeros(num_zeros, out.shape[1])]) if num_zeros else out


def _dense_rows(tokens, topk_ids, topk_weights):
    """The tensors as dispatch takes them: rows of tokens may lie apart, not their elements."""
    for name, tensor in (("tokens", tokens), ("topk_ids", topk_ids), ("topk_weights", topk_weights)):
        if not torch.is_tensor(tensor) or tensor.layout != torch.strided:
            raise ferry.InvalidArgument(f"moe: {name} is {tensor if tensor is None else type(tensor).__name__}, "
                                        "not a dense tensor")
    if tokens.dim() > 0 and tokens.stride(-1) != 1:
        tokens = tokens.contiguous()
    return tokens, topk_ids.contiguous(), topk_weights.contiguous()


def _ranks(active_ranks):
    ranks = [int(rank) for rank in active_ranks]
    if not ranks:
        raise ferry.InvalidArgument("moe: active_ranks is empty, need one rank or more")
    return ranks


def _routing(group, config, active):
    """What else a dispatch gets: who takes part, and the copies that this rank's tokens go to."""
    by_table = config["replicas"] and config["replica_choice"] == "by_table"
    if not by_table and active is not None and len(active) < group.size:
        raise ferry.InvalidArgument(f"moe: active_ranks {active} of {group.size} ranks need an exchange with the "
                                    "settings of a ferry.placement.Placement, settings('by_table')")
    table = ferry.placement.table_of(group, config, active) if by_table else None
    return {"active_ranks": active, "replica_table": table}


def _returned(rows, counts, out=None):
    """The experts of a rank that is left out, for its graph: no row comes."""
    return rows


def _in_one(exchange, tokens, topk_ids, topk_weights, experts, routing):
    """With gradients: the out and the handles of the three calls."""
    received = ferry.torch.dispatch(exchange, tokens, topk_ids, **routing)
    counts = received.handle.tokens_per_expert.tolist()
    refuse = partial(exchange.refuse_combine, active_ranks=routing["active_ranks"])
    with Refusing(refuse):
        outputs = ExpertsBackward(refuse).between(received.rows, lambda rows: experts(rows, counts))
    return ferry.torch.combine(exchange, outputs, received.handle, topk_weights), [received.handle]


def _check(config):
    """All ranks agree: they have the same config."""
    if config["layout"] != "expert_major" or config["expert_alignment"] != 1:
        raise ferry.InvalidArgument(f"moe: needs rows that follow each other (layout 'expert_major', expert_alignment "
                                    f"1), not {config['layout']!r}, {config['expert_alignment']}")
    if config["wire"] == "int8_static":
        raise ferry.InvalidArgument("moe: the wire 'int8_static' needs scales, and a layer has none")


def _check_learning(config, overlap):
    if overlap == "batches" and paired():
        raise ferry.InvalidArgument("moe: in a pair the other function is the second batch, so that overlap is None")
    if overlap == "batches" and config["depth"] < 2:
        raise ferry.InvalidArgument(f"moe: two batches need an exchange of depth 2, not {config['depth']}")
    for name in ("wire", "combine_wire"):
        if config[name] != "none":
            raise ferry.InvalidArgument(f"moe: gradients need an exchange with {name} 'none', not "
                                        f"{config[name]!r}; torch.no_grad() is without gradients")


def _decoding(experts, config):
    """The experts, given the rows that encoded ones stand for."""
    dtype = getattr(torch, config["dtype"])

    def call(rows, counts, out, scales):
        decoded = torch.empty(rows.shape, dtype=dtype)
        block = max(1, 2**16 // max(1, rows.shape[-1]))  # float32 copies of so many rows stay in a core's cache
        for begin in range(0, len(rows), block):
            part = slice(begin, begin + block)
            decoded[part] = rows[part].float() * _factors(scales[part], config)
        return experts(decoded, counts, out)

    return call


def _factors(scales, config):
    """Scales of rows as docs/numerics.md has them, as float32 [n, 1] of an int8 wire, else [n, H]."""
    if config["wire"] == "int8":
        return scales
    if config["wire"] == "fp8_ue8m0":  # exponents, four in an int32
        scales = scales.clone(memory_format=torch.contiguous_format).view(torch.float8_e8m0fnu).float()
    return scales.repeat_interleave(128, -1)[:, :config["hidden"]]


class MoE(torch.nn.Module):
    """The layer with its exchange. `settings`: more of Group.exchange, such as replicas (ferry.placement). Collective.

    num_experts of all ranks, as many on each; local weights in `experts` (a SwiGLU, or the module that is given).
    A ferry.placement.Balancer in `balancer` counts what each expert gets; switch() changes the placement.

    mesh: the DeviceMesh of the group's ranks, of one dimension, in their order. Parameters of the experts [L, ...] then
    are DTensors [num_experts, ...] sharded over it, as fully_shard, checkpoints and optimizers of torch.distributed
    need them, and so are buffers [L, ...] (docs/moe_training.md). None: a mesh of all ranks of torch.distributed where
    they are the group's; plain tensors where it is not initialised, ranks are threads, or the group has one rank.

    Raises InvalidArgument when the ranks do not divide num_experts, for a mesh of other ranks, for a group of some
    ranks of torch.distributed without one, for a parameter of `experts` that is to be sharded and is not [L, ...], and
    what Group.exchange raises."""

    def __init__(self, group, *, hidden, intermediate=None, num_experts, top_k, max_tokens, dtype=torch.bfloat16,
                 experts=None, overlap=None, mesh=None, **settings):
        super().__init__()
        torch_ranks = expert_mesh.torch_ranks(group, mesh)
        with Refusing(group.refuse_exchange):
            if num_experts % group.size:
                raise ferry.InvalidArgument(f"MoE: {num_experts} experts on {group.size} ranks: need as many on each")
            if experts is None and intermediate is None:
                raise ferry.InvalidArgument("MoE: needs `intermediate`, or `experts`")
            for name, size in (("hidden", hidden), ("intermediate", 1 if experts else intermediate)):
                if size < 1:
                    raise ferry.InvalidArgument(f"MoE: {name} is {size}, at least 1")
            num_local = num_experts // group.size
            self.mesh = expert_mesh.checked(mesh, torch_ranks)
            self.experts = experts or SwiGLU(num_local, hidden, intermediate, dtype)
            if isinstance(self.experts, torch.nn.Module):
                if self.mesh is not None:
                    expert_mesh.check_weights(self.experts, num_local)
                expert_mesh.replace(self.experts, lambda part: part, num_local, self.mesh)
        self.made_before_torch_distributed = group.size > 1 and torch_ranks[0][0] < 0
        self.overlap, self.balancer = overlap, None
        self.settings = dict(max_tokens=max_tokens, hidden=hidden, num_experts=num_experts, top_k=top_k, dtype=dtype,
                             **settings)
        self.exchange = group.exchange(**self.settings)

    def switch(self, old, new):
        """Between two steps, from one ferry.placement.Placement to another: weights move, top-k ids mean what they
        meant. Collective; parameters are new ones afterwards, so that an optimizer is made anew. Raises
        InvalidArgument for a placement that leaves out an expert and after fully_shard, and what ferry.placement.move
        raises."""
        group = self.exchange.group
        ferry.placement.agree(group, lambda: self._check_switch(old, new), {"old placement": old, "new placement": new})
        expert_mesh.replace(self.experts, lambda part: ferry.placement.move(group, part, old, new), old.per_rank,
                            self.mesh)
        self.settings.update(new.settings(self.settings.get("replica_choice", "by_token")))
        self.exchange = None
        self.exchange = group.exchange(**self.settings)

    def sum_gradients(self, placement):
        """After backward and before the optimizer's step: all copies of an expert get the sum of their gradients, so
        that they stay alike. Collective. Raises what ferry.placement.sum_copies raises, and InvalidArgument after a
        fully_shard that splits the experts of a rank."""
        group = self.exchange.group
        ferry.placement.agree(group, lambda: self._check_whole("sum_gradients"), {"placement": placement})
        for weights in self.experts.parameters():
            gradients = torch.zeros_like(weights) if weights.grad is None else weights.grad
            summed = ferry.placement.sum_copies(group, expert_mesh.local(gradients), placement)
            weights.grad = expert_mesh.like(gradients, summed)

    def _check_switch(self, old, new):
        if not isinstance(self.experts, torch.nn.Module):
            raise ferry.InvalidArgument("MoE: only experts of a torch.nn.Module have weights to move")
        if -1 in new.experts or set(old.experts) - {-1} != set(new.experts):
            raise ferry.InvalidArgument("MoE: the new placement needs a copy of each expert of the old one, and no "
                                        "empty slot (-1)")
        self._check_whole("switch")

    def _check_whole(self, call):
        """fully_shard over ranks with the same experts leaves a part of each parameter."""
        if any(getattr(weights, "placements", ())[1:] for weights in self.experts.parameters()):
            raise ferry.InvalidArgument(f"MoE.{call}: fully_shard has spread the weights of each rank over others, and "
                                        "copies are of whole experts")

    @property
    def _ddp_params_and_buffers_to_ignore(self):
        """DistributedDataParallel asks a module for this name: a layer alone has nothing that it could average."""
        if self.mesh is None:
            raise AttributeError("_ddp_params_and_buffers_to_ignore")
        raise ferry.InvalidArgument("MoE: DistributedDataParallel would make all ranks' experts those of rank 0: give "
                                    "the layer to fully_shard, and wrap the model around it by ferry.torch.ddp")

    def forward(self, tokens, topk_ids, topk_weights, active_ranks=None):
        """tokens [T, H], ids [T, K], float32 weights [T, K] -> [T, H]; active_ranks as for moe()."""
        expert_mesh.check_wrapped(self)
        return moe(self.exchange, tokens, topk_ids, topk_weights, self.experts, overlap=self.overlap,
                   balancer=self.balancer, active_ranks=active_ranks)
