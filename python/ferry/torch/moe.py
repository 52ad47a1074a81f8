"""moe() makes dispatch, experts and combine in one call, with gradients, in one or two batches.

T tokens of this rank, H hidden, K top-k, N rows received. Without gradients the schedule is ferry::Layer's (src/layer),
with them the calls are those of ferry.torch.linear or ferry.torch.batches.
"""

from functools import partial

import torch

import ferry
import ferry.placement
from ferry.torch import batches, expert_mesh, linear
from ferry.torch.experts import decoding, writing
from ferry.torch.experts_backward import ExpertsBackward, reaching
from ferry.torch.refusing import Refusing
from ferry.torch.turns import paired, take


def moe(exchange, tokens, topk_ids, topk_weights, experts, *, overlap=None, balancer=None, active_ranks=None,
        **unknown):
    """dispatch -> experts -> combine: tokens [T, H] and float32 topk_weights [T, K] give [T, H]. Collective. Instead of
    T there may be any dimensions, such as [batch, sequence]. Weights of another floating point dtype are converted.

    experts(rows [n, H], counts, out=None) computes experts of this rank. `rows` has the rows of local expert 0, 1, ..,
    counts[e] of expert e. The result is a tensor of the same shape and dtype. With `out` [n, H], memory that combine
    reads, experts may write their result there and return `out` or None, which saves a copy. SwiGLU is such a callable,
    and each(f) makes one.
    Without gradients `experts` is called once if all rows have come, or else once for each run of experts whose rows
    have all come; the experts that are not in the run have a count of 0. Each expert gets all of its rows in one call.
    So the results equal those of dispatch, experts and combine by hand bit for bit, unless the result of an expert
    depends on the other experts in its call.
    An exception of `experts` is raised here, and ferry.PeerRejected on the other ranks; the exchange stays usable.
    `rows` and `out` pin a part of the window, also in the traceback of an error that is kept: rows are copied while
    2 * depth + 2 parts are pinned. `out` must not be written to after the call, as other ranks may still read it.

    Differentiable in the tokens, the weights and the parameters of the experts, as ferry.torch is. Each parameter of a
    Module that needs a gradient gets one in every backward pass: zeros where no row came to it, and on a rank that is
    not active. The parameters of other `experts` than a Module or swiglu() are not known: let the tokens or the weights
    require gradients. A Module with DTensors computes with their local tensors. overlap="batches" splits the tokens
    into two batches. The second is sent while the experts compute the first, and the results of the first are sent
    while the experts compute the second. In backward the gradients are sent in the same way; there is no second
    derivative. Two batches are for hosts with FERRY_PROGRESS=thread, where sending takes about as long as the experts
    (docs/moe.md). On one host they are slower, as products are smaller. All ranks give the same `overlap`, require the
    same gradients, and give "batches" an exchange of depth 2 or more. A ferry.placement.Balancer in `balancer` counts
    the rows.

    active_ranks: the ranks that take part, the same list on all ranks; replicas serve the experts of the other ranks.
    The exchange has the settings("by_table") of a ferry.placement.Placement; its replica table is computed here. A rank
    that is not active makes the same calls, backward() too. It gets zeros [T, H] and gradients of zeros, and its
    experts are not called (docs/placement.md, "Ranks that are away").

    Rows that are sent encoded (a wire of the exchange) are decoded for the experts, in the dtype of the tokens: rows *
    scales in float32, rounded once. A wire or a combine_wire excludes gradients.

    Raises InvalidArgument for a layout other than "expert_major" with expert_alignment 1, the wire "int8_static" (a
    layer has no scales), an unknown overlap, gradients with a wire or a combine_wire, and an expert without a copy on
    the active ranks. Raises what dispatch and combine raise.
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
        tokens, topk_ids, topk_weights, shape = _dense_rows(tokens, topk_ids, topk_weights)
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
        run = _in_one if overlap is None else batches.in_two
        out, handles = run(exchange, tokens, topk_ids, topk_weights, reaching(experts, held), routing)
    else:
        given = writing(experts)
        if config["wire"] != "none":
            given = decoding(given, config)
        with torch.no_grad():
            out, handles = take(exchange._run_layer, tokens, topk_ids, topk_weights, given, overlap == "batches",
                                **routing)
    for handle in handles if balancer else ():
        balancer.count(handle)
    out = torch.cat([out, out.new_zeros(num_zeros, out.shape[1])]) if num_zeros else out
    return out.view(shape)


def _dense_rows(tokens, topk_ids, topk_weights):
    """Returns the three tensors [T, ..] in the form that dispatch takes, and the shape of the tokens. Rows of tokens
    may have a pitch; the elements of a row are contiguous."""
    for name, tensor in (("tokens", tokens), ("topk_ids", topk_ids), ("topk_weights", topk_weights)):
        if not torch.is_tensor(tensor) or tensor.layout != torch.strided:
            raise ferry.InvalidArgument(f"moe: {name} is {tensor if tensor is None else type(tensor).__name__}, "
                                        "not a dense tensor")
    shape = tokens.shape
    tokens, topk_ids, topk_weights = (_flat(each) for each in (tokens, topk_ids, topk_weights))
    if tokens.dim() > 0 and tokens.stride(-1) != 1:
        tokens = tokens.contiguous()
    if topk_weights.is_floating_point():
        topk_weights = topk_weights.float()
    return tokens, topk_ids.contiguous(), topk_weights.contiguous(), shape


def _flat(tensor):
    """Returns a tensor [.., n] as [rows, n]. A tensor without dimensions is unchanged; the exchange refuses it."""
    if tensor.dim() == 2 or tensor.dim() == 0:
        return tensor
    return tensor.unsqueeze(0) if tensor.dim() == 1 else tensor.flatten(0, -2)


def _ranks(active_ranks):
    ranks = [int(rank) for rank in active_ranks]
    if not ranks:
        raise ferry.InvalidArgument("moe: active_ranks is empty, need one rank or more")
    return ranks


def _routing(group, config, active):
    """Returns more arguments of a dispatch: the active ranks, and for each expert the replica that gets the tokens of
    this rank."""
    by_table = config["replicas"] and config["replica_choice"] == "by_table"
    if not by_table and active is not None and len(active) < group.size:
        raise ferry.InvalidArgument(f"moe: active_ranks {active} of {group.size} ranks need an exchange with the "
                                    "settings of a ferry.placement.Placement, settings('by_table')")
    table = ferry.placement.table_of(group, config, active) if by_table else None
    return {"active_ranks": active, "replica_table": table}


def _returned(rows, counts, out=None):
    """Replaces the experts on a rank that is not active. It receives no rows, and its graph has the same calls."""
    return rows


def _in_one(exchange, tokens, topk_ids, topk_weights, experts, routing):
    """Makes dispatch, experts and combine with gradients. Returns (the result, a list with the handle)."""
    received = linear.dispatch(exchange, tokens, topk_ids, **routing)
    counts = received.handle.tokens_per_expert.tolist()
    refuse = partial(exchange.refuse_combine, active_ranks=routing["active_ranks"])
    with Refusing(refuse):
        outputs = ExpertsBackward(refuse).between(received.rows, lambda rows: experts(rows, counts))
    return linear.combine(exchange, outputs, received.handle, topk_weights), [received.handle]


def _check(config):
    """Raises InvalidArgument for a config that moe() does not support. All ranks have the same config, so all raise."""
    if config["layout"] != "expert_major" or config["expert_alignment"] != 1:
        raise ferry.InvalidArgument(f"moe: needs rows that follow each other (layout 'expert_major', expert_alignment "
                                    f"1), not {config['layout']!r}, {config['expert_alignment']}")
    if config["wire"] == "int8_static":
        raise ferry.InvalidArgument("moe: the wire 'int8_static' needs scales, and a layer has none")


def _check_learning(config, overlap):
    if overlap == "batches" and paired():
        raise ferry.InvalidArgument("moe: in a pair the other function is the second batch: overlap is 'batches', "
                                    "need None")
    if overlap == "batches" and config["depth"] < 2:
        raise ferry.InvalidArgument(f"moe: two batches need an exchange of depth 2, not {config['depth']}")
    for name in ("wire", "combine_wire"):
        if config[name] != "none":
            raise ferry.InvalidArgument(f"moe: gradients need an exchange with {name} 'none', not "
                                        f"{config[name]!r}; torch.no_grad() is without gradients")
