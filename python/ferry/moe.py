"""A Mixture-of-Experts layer in one call: dispatch, experts, combine, with gradients, in one or two batches.

    layer = ferry.moe.MoE(group, hidden=2048, intermediate=768, num_experts=128, top_k=8, max_tokens=1024)
    out = layer(tokens, topk_ids, topk_weights)                        # [T, H]; the gate is the caller's

    out = ferry.moe.moe(exchange, tokens, topk_ids, topk_weights, experts)   # experts of the caller

T tokens of this rank, H hidden, I intermediate, K top-k, L experts of this rank, N rows received. Calls ferry.torch.
"""

import torch
import torch.nn.functional as F

import ferry
import ferry.torch

__all__ = ["MoE", "SwiGLU", "each", "moe"]


def each(expert):
    """The experts argument of moe() from a function of one expert: expert(e, rows [n, H]) gives [n, H] for the local
    expert e, and is called for experts that have rows only."""

    def experts(rows, counts, out=None):
        parts = [expert(e, part) for e, part in enumerate(rows.split(counts)) if len(part)]
        return torch.cat(parts or [rows], out=out)

    return experts


class SwiGLU(torch.nn.Module):
    """Experts down(silu(gate(x)) * up(x)): gate_up [L, 2 I, H], the gates' rows first, and down [L, H, I], the layout
    of transformers and vLLM. Every product is torch's, one for each expert that has rows."""

    def __init__(self, num_local, hidden, intermediate, dtype=torch.bfloat16):
        super().__init__()
        self.gate_up = torch.nn.Parameter(torch.empty(num_local, 2 * intermediate, hidden, dtype=dtype))
        self.down = torch.nn.Parameter(torch.empty(num_local, hidden, intermediate, dtype=dtype))
        for weight in (self.gate_up, self.down):
            torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)

    def forward(self, rows, counts, out=None):
        """rows [N, H], expert by expert, counts[e] of them; returns [N, H], in `out` where that is given."""
        if out is None:
            return each(self.of)(rows, counts)
        for e, (part, to) in enumerate(zip(rows.split(counts), out.split(counts))):
            if len(part):
                torch.mm(self.activate(e, part), self.down[e].t(), out=to)
        return out

    def of(self, e, rows):
        return self.activate(e, rows) @ self.down[e].t()

    def activate(self, e, rows):
        gate, up = (rows @ self.gate_up[e].t()).chunk(2, -1)
        return F.silu(gate) * up


def moe(exchange, tokens, topk_ids, topk_weights, experts, *, overlap=None):
    """dispatch -> experts -> combine: tokens [T, H] and float32 topk_weights [T, K] give [T, H]. Collective.

    experts(rows [N, H], counts, out=None) computes the experts of this rank, whose rows follow each other, counts[e]
    for expert e; with `out` [N, H] it writes there, where combine reads. SwiGLU is one, each(f) makes one.

    Differentiable in the tokens, the weights and what the experts hold, as ferry.torch is; `overlap` is ignored then.
    Else overlap="batches" splits the tokens: the second half travels while the experts compute the first, whose
    results travel while they compute the second. That pays between hosts with FERRY_PROGRESS=thread; on one host it
    costs, as products are smaller. All ranks give the same `overlap`, require the same gradients, and give "batches" an
    exchange of depth 2 or more.

    Raises InvalidArgument for another layout than "expert_major" with expert_alignment 1 and for an unknown overlap,
    and what dispatch and combine raise.
    """
    _check(exchange, overlap)
    if torch.is_grad_enabled() and _any_gradient(tokens, topk_weights, experts):
        received = ferry.torch.dispatch(exchange, tokens, topk_ids)
        outputs = experts(received.rows, received.handle.tokens_per_expert.tolist())
        return ferry.torch.combine(exchange, outputs, received.handle, topk_weights)
    with torch.no_grad():
        if overlap is None:
            return _combine(exchange, exchange.dispatch(tokens, topk_ids), topk_weights, experts).recv()
        half = (len(tokens) + 1) // 2
        sent = [exchange.dispatch_send(tokens[part], topk_ids[part]) for part in (slice(half), slice(half, None))]
        first = _combine(exchange, sent[0].recv(), topk_weights[:half], experts)
        second = _combine(exchange, sent[1].recv(), topk_weights[half:], experts)
        return torch.cat([first.recv(), second.recv()])


def _combine(exchange, received, topk_weights, experts):
    """The send half of a combine of what the experts make of these rows."""
    outputs = exchange.empty(received.num_rows)
    experts(received.rows, received.handle.tokens_per_expert.tolist(), outputs)
    return exchange.combine_send(outputs, received.handle, topk_weights)


def _check(exchange, overlap):
    config = exchange.config
    if config["layout"] != "expert_major" or config["expert_alignment"] != 1:
        raise ferry.InvalidArgument(f"moe: needs rows that follow each other (layout 'expert_major', expert_alignment "
                                    f"1), not {config['layout']!r}, {config['expert_alignment']}")
    if overlap not in (None, "batches"):
        raise ferry.InvalidArgument(f"moe: overlap {overlap!r} is neither None nor 'batches'")
    if overlap and config["depth"] < 2:
        raise ferry.InvalidArgument(f"moe: overlap 'batches' needs an exchange of depth 2, not {config['depth']}")


def _any_gradient(tokens, topk_weights, experts):
    """Of a callable that is no module it is not known, so the tokens and weights say."""
    held = experts.parameters() if isinstance(experts, torch.nn.Module) else ()
    return any(tensor.requires_grad for tensor in (tokens, topk_weights, *held))


class MoE(torch.nn.Module):
    """The layer with its exchange. `settings`: more of Group.exchange, such as replicas (ferry.placement). Collective.

    num_experts of all ranks, as many on each; local weights in `experts` (a SwiGLU, or the module that is given).
    Raises InvalidArgument when the ranks do not divide num_experts, and what Group.exchange raises."""

    def __init__(self, group, *, hidden, intermediate=None, num_experts, top_k, max_tokens, dtype=torch.bfloat16,
                 experts=None, overlap=None, **settings):
        super().__init__()
        if num_experts % group.size:
            raise ferry.InvalidArgument(f"MoE: {num_experts} experts on {group.size} ranks: need as many on each")
        if experts is None and intermediate is None:
            raise ferry.InvalidArgument("MoE: needs `intermediate`, or `experts`")
        self.experts = experts or SwiGLU(num_experts // group.size, hidden, intermediate, dtype)
        self.overlap = overlap
        self.exchange = group.exchange(max_tokens=max_tokens, hidden=hidden, num_experts=num_experts, top_k=top_k,
                                       dtype=dtype, **settings)

    def forward(self, tokens, topk_ids, topk_weights):
        """tokens [T, H], ids [T, K], float32 weights [T, K] -> [T, H]."""
        return moe(self.exchange, tokens, topk_ids, topk_weights, self.experts, overlap=self.overlap)
