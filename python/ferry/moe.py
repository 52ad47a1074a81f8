"""A Mixture-of-Experts layer in one call: dispatch, experts, combine, with gradients, in one or two batches.

    layer = ferry.moe.MoE(group, hidden=2048, intermediate=768, num_experts=128, top_k=8, max_tokens=1024)
    out = layer(tokens, topk_ids, topk_weights)                        # [T, H]; the gate is the caller's

    out = ferry.moe.moe(exchange, tokens, topk_ids, topk_weights, experts)   # experts of the caller

T tokens of this rank, H hidden, I intermediate, K top-k, L experts of this rank, N rows received. Calls ferry.torch.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

import ferry
import ferry.placement
import ferry.torch

__all__ = ["MoE", "SwiGLU", "each", "moe", "swiglu"]


def each(expert):
    """The experts argument of moe() from a function of one expert: expert(e, rows [n, H]) gives [n, H] for the local
    expert e, and is called for experts that have rows only."""

    def experts(rows, counts, out=None):
        parts = [expert(e, part) for e, part in enumerate(rows.split(counts)) if len(part)]
        return torch.cat(parts or [rows], out=out)

    return experts


def swiglu(gate_up, down):
    """The experts argument of moe(): down[e](silu(gate(x)) * up(x)), of gate_up[e] [2 I, H], the gate's rows first, and
    down[e] [H, I]. Every product is torch's, one for each expert that has rows."""
    if torch.is_tensor(gate_up):  # indexing each would make a gradient as large as all of them for each
        gate_up, down = gate_up.unbind(), down.unbind()

    def activate(e, rows):
        gate, up = (rows @ gate_up[e].t()).chunk(2, -1)
        return F.silu(gate) * up

    def experts(rows, counts, out=None):
        if out is None:
            return each(lambda e, part: activate(e, part) @ down[e].t())(rows, counts)
        for e, (part, to) in enumerate(zip(rows.split(counts), out.split(counts))):
            if len(part):
                torch.mm(activate(e, part), down[e].t(), out=to)
        return out

    return experts


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


def moe(exchange, tokens, topk_ids, topk_weights, experts, *, overlap=None, balancer=None):
    """dispatch -> experts -> combine: tokens [T, H] and float32 topk_weights [T, K] give [T, H]. Collective.

    experts(rows [n, H], counts, out=None) computes experts of this rank, whose rows follow each other, counts[e] for
    local expert e; with `out` [n, H] it writes there, where combine reads. Without gradients it is called as rows
    come: first for the experts that have all of theirs, the others with a count of 0, then for the rest. Each expert
    has all its rows in one call, so results are those of the three calls, bit for bit. SwiGLU is one, each(f) makes
    one. What it raises is raised here, and ferry.PeerRejected on the other ranks; the exchange goes on.

    Differentiable in the tokens, the weights and what the experts hold, as ferry.torch is; `overlap` is ignored then.
    Of `experts` that is no Module it is not known what it holds: let the tokens or the weights require gradients.
    Else overlap="batches" splits the tokens: the second half travels while the experts compute the first, whose
    results travel while they compute the second. It is for hosts with FERRY_PROGRESS=thread, where travel takes about
    as long as the experts (docs/moe.md); on one host it costs, as products are smaller. All ranks give the same
    `overlap`, require the same gradients, and give "batches" an exchange of depth 2 or more. A
    ferry.placement.Balancer in `balancer` counts the rows.

    Raises InvalidArgument for another layout than "expert_major" with expert_alignment 1, for a wire and an unknown
    overlap, Capacity where too many arrays of earlier calls are alive, and what dispatch and combine raise.
    """
    _check(exchange, overlap)
    if torch.is_grad_enabled() and _any_gradient(tokens, topk_weights, experts):
        received = ferry.torch.dispatch(exchange, tokens, topk_ids)
        if balancer:
            balancer.count(received.handle)
        try:
            outputs = experts(received.rows, received.handle.tokens_per_expert.tolist())
        except Exception as error:
            exchange.refuse_combine(_reason(error))
            raise
        return ferry.torch.combine(exchange, outputs, received.handle, topk_weights)
    given = (tokens, topk_ids, topk_weights)
    half = (len(tokens) + 1) // 2 if overlap else 0
    parts = [[each[:half] for each in given], [each[half:] for each in given]] if overlap else [given]
    batches = [_Batch(exchange, experts, *part) for part in parts]
    try:
        with torch.no_grad():
            return _in_two(*batches) if overlap else _in_one(*batches)
    finally:  # an error that somebody keeps must not keep views of the window
        for batch in batches:
            if balancer and batch.received is not None:
                balancer.count(batch.received.handle)
            batch.received = batch.outputs = batch.failed = None


def _in_one(batch):
    batch.send()
    batch.compute_as_rows_come()
    return batch.combine_send().recv()


def _in_two(ahead, behind):
    ahead.send()
    ahead.receive()
    with ThreadPoolExecutor(1) as other:  # a send half waits until its rows have left
        sending = other.submit(behind.send)
        ahead.compute()
    sending.result()
    if ahead.failed:
        behind.receive()  # the others have sent both halves
    home = ahead.combine_send()
    behind.compute_as_rows_come()
    first = home.recv()
    return torch.cat([first, behind.combine_send().recv()])


class _Batch:
    """All tokens, or one half of them, on their way through the layer."""

    def __init__(self, exchange, experts, tokens, topk_ids, topk_weights):
        self.exchange, self.experts = exchange, experts
        self.tokens, self.topk_ids, self.topk_weights = tokens, topk_ids, topk_weights
        self.received = self.counts = self.outputs = self.failed = None
        self.todo = set()

    def send(self):
        self.sent = self.exchange.dispatch_send(self.tokens, self.topk_ids)

    def receive(self):
        self._take(self.sent.recv())

    def _take(self, received):
        self.received = received
        if self.counts is None:
            self.counts = received.handle.tokens_per_expert.tolist()
            self.todo = {e for e, count in enumerate(self.counts) if count}
            try:
                self.outputs = self.exchange.empty(received.num_rows)
            except ferry.Capacity as error:  # too many views are alive here
                self.failed = error

    def compute_as_rows_come(self):
        """Experts whose rows are all there go first, as long as there are any."""
        try:
            self._take(self.sent.memory())
            while now := {e for e, ready in enumerate(self.sent.ready_experts()) if ready and e in self.todo}:
                self.compute(now)
        except ferry.Capacity:  # so many views are alive that the rows will be copied
            pass
        self.receive()
        self.compute()

    def compute(self, now=None):
        """The experts `now`, or all that are left, those that follow each other in one call."""
        now = self.todo if now is None else now
        self.todo = self.todo - now
        offsets = self.received.handle.expert_offsets.tolist()
        masked = [count if e in now else 0 for e, count in enumerate(self.counts)]
        stops = [e for e, count in enumerate(self.counts) if count and e not in now]
        for begin, end in zip([0, *(e + 1 for e in stops)], [*stops, len(self.counts)]):
            rows = slice(offsets[begin], offsets[end])
            if rows.start < rows.stop and not self.failed:
                counts = [count if begin <= e < end else 0 for e, count in enumerate(masked)]
                try:
                    self.experts(self.received.rows[rows], counts, self.outputs[rows])
                except Exception as error:
                    self.failed = error

    def combine_send(self):
        """The send half of combine; after an error of an expert here, the refusal that ends the call on all ranks."""
        if self.failed:
            self.exchange.refuse_combine(_reason(self.failed))
            raise self.failed
        return self.exchange.combine_send(self.outputs, self.received.handle, self.topk_weights)


def _reason(error):
    return f"the experts raised {type(error).__name__}: {error}"


def _check(exchange, overlap):
    config = exchange.config
    if config["layout"] != "expert_major" or config["expert_alignment"] != 1:
        raise ferry.InvalidArgument(f"moe: needs rows that follow each other (layout 'expert_major', expert_alignment "
                                    f"1), not {config['layout']!r}, {config['expert_alignment']}")
    if config["wire"] != "none":
        raise ferry.InvalidArgument(f"moe: needs rows as the tokens are (wire 'none'), not {config['wire']!r}")
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
    A ferry.placement.Balancer in `balancer` counts what each expert gets; switch() changes the placement.
    Raises InvalidArgument when the ranks do not divide num_experts, and what Group.exchange raises."""

    def __init__(self, group, *, hidden, intermediate=None, num_experts, top_k, max_tokens, dtype=torch.bfloat16,
                 experts=None, overlap=None, **settings):
        super().__init__()
        if num_experts % group.size:
            raise ferry.InvalidArgument(f"MoE: {num_experts} experts on {group.size} ranks: need as many on each")
        if experts is None and intermediate is None:
            raise ferry.InvalidArgument("MoE: needs `intermediate`, or `experts`")
        self.experts = experts or SwiGLU(num_experts // group.size, hidden, intermediate, dtype)
        self.overlap, self.balancer = overlap, None
        self.settings = dict(max_tokens=max_tokens, hidden=hidden, num_experts=num_experts, top_k=top_k, dtype=dtype,
                             **settings)
        self.exchange = group.exchange(**self.settings)

    def switch(self, old, new):
        """Between two steps, from one ferry.placement.Placement to another: weights move, top-k ids mean what they
        meant. Collective; parameters are new ones afterwards. Raises what ferry.placement.move raises."""
        for name, weights in list(self.experts.named_parameters()):
            moved = ferry.placement.move(self.exchange.group, weights.detach(), old, new)
            module, _, last = name.rpartition(".")
            setattr(self.experts.get_submodule(module), last, torch.nn.Parameter(moved, weights.requires_grad))
        self.settings.update(new.settings())
        group, self.exchange = self.exchange.group, None
        self.exchange = group.exchange(**self.settings)

    def forward(self, tokens, topk_ids, topk_weights):
        """tokens [T, H], ids [T, K], float32 weights [T, K] -> [T, H]."""
        return moe(self.exchange, tokens, topk_ids, topk_weights, self.experts, overlap=self.overlap,
                   balancer=self.balancer)
