"""An oracle for CANN's distributed MoE operators: loops over the inputs of all ranks, written from the description of
the operators. It shares no code with ferry. test_torch_npu.py uses it too.

A rank of the group is ep_rank * tp + position, where `position` is its tensor-parallel rank. A token is sent to ranks
with the position of its source. Every rank of a tensor-parallel group then receives the rows of all ranks of that
group.
"""

from dataclasses import dataclass, field
from typing import List, Optional

import numpy as np
import torch


@dataclass
class Inputs:
    """The inputs of one rank: Bs tokens."""

    x: torch.Tensor  # [Bs, H]
    ids: torch.Tensor  # int32 [Bs, K]
    mask: Optional[torch.Tensor] = None  # bool [Bs] or [Bs, K]
    weights: Optional[torch.Tensor] = None  # float32 [Bs, K]
    token_scales: Optional[torch.Tensor] = None  # float32 [Bs] or [Bs, n]
    shared_x: Optional[torch.Tensor] = None
    residual: Optional[torch.Tensor] = None


@dataclass
class Case:
    ep: int
    moe: int
    h: int
    k: int
    tp: int = 1
    version: int = 4
    dtype: torch.dtype = torch.bfloat16
    shared_num: int = 1
    shared_ranks: int = 0
    zero: int = 0
    copy: int = 0
    constant: int = 0
    quant_mode: int = 0
    comm_quant_mode: int = 0
    nums_type: int = 1
    global_bs: int = 0
    factors: Optional[torch.Tensor] = None  # scales of quant modes 1 and 2
    plain_sum: bool = False
    alpha1: Optional[torch.Tensor] = None
    alpha2: Optional[torch.Tensor] = None
    v: Optional[torch.Tensor] = None
    gamma: Optional[torch.Tensor] = None
    eps: float = 1e-6
    ranks: List[Inputs] = field(default_factory=list)

    @property
    def size(self):
        return self.ep * self.tp

    @property
    def shared(self):
        return self.shared_num if self.shared_ranks else 0

    def experts_of(self, ep_rank):
        """Returns the range of the routed experts of an ep_rank. Ranks with a shared expert come first and have none.
        The others have contiguous blocks; the first of them have one more where the division leaves a remainder."""
        ranks = self.ep - self.shared_ranks
        each, more = divmod(self.moe, ranks)
        i = ep_rank - self.shared_ranks
        return range(i * each + min(i, more), (i + 1) * each + min(i + 1, more)) if i >= 0 else range(0)

    def capacity(self, ep_rank):
        """Returns A, the largest number of rows that an ep_rank can receive from one tensor-parallel position."""
        bs = self.global_bs // self.ep if self.global_bs else len(self.ranks[0].ids)
        if ep_rank < self.shared_ranks:
            each = self.shared_ranks // self.shared_num
            return bs * ((self.ep + each - 1) // each)
        return bs * self.ep * min(len(self.experts_of(ep_rank)), self.k)


def active(inputs, t, k):
    if inputs.ids[t, k] < 0:
        return False
    if inputs.mask is None:
        return True
    return bool(inputs.mask[t] if inputs.mask.dim() == 1 else inputs.mask[t, k])


def takes_part(inputs, t):
    return any(active(inputs, t, k) for k in range(inputs.ids.shape[1]))


def shared_tokens(case, source, position, ep_rank):
    """Returns (the shared expert of `ep_rank`, the tokens that the source sends to it)."""
    inputs = case.ranks[source * case.tp + position]
    bs, ranks = len(inputs.ids), case.shared_ranks
    if case.version == 1:
        if source < ranks:
            mine = range(bs) if source == ep_rank else range(0)
        else:
            sizes = [(i + 1 + source) * bs // ranks - (i + source) * bs // ranks for i in range(ranks)]
            mine = range(sum(sizes[:ep_rank]), sum(sizes[: ep_rank + 1]))
        return 0, [t for t in mine if takes_part(inputs, t)]
    each = ranks // case.shared_num
    shared = ep_rank // each
    mine = source % each + shared * each == ep_rank
    return shared, [t for t in range(bs) if takes_part(inputs, t)] if mine else []


def received(case, rank):
    """Returns the rows that a rank receives, in order: blocks[i][local expert][source] is a list of (source rank of the
    group, token, k). The rows of the first block come from ranks with the position of this rank, those of each later
    block from ranks with the next position, cyclically."""
    ep_rank, position = divmod(rank, case.tp)
    blocks = []
    for step in range(case.tp):
        domain = (position + step) % case.tp
        block = []
        for expert in case.experts_of(ep_rank):
            block.append([])
            for source in range(case.ep):
                inputs = case.ranks[source * case.tp + domain]
                block[-1].append([
                    (source * case.tp + domain, t, k)
                    for t in range(len(inputs.ids)) for k in range(case.k)
                    if active(inputs, t, k) and inputs.ids[t, k] == expert])
        if ep_rank < case.shared_ranks:
            block.append([])
            for source in range(case.ep):
                shared, tokens = shared_tokens(case, source, domain, ep_rank)
                block[-1].append([(source * case.tp + domain, t, case.k + shared) for t in tokens])
        blocks.append(block)
    return blocks


def flatten(case, rank):
    """Returns the rows of a rank in order. With tensor parallelism each rank has one local expert, as the operators
    require."""
    return [entry for block in received(case, rank) for expert in block for source in expert for entry in source]


def to_fp8(values):
    return values.clamp(-448, 448).to(torch.float8_e4m3fn)


def encode(case, row, factor_row):
    """Encodes a token for one expert. Returns (the row that arrives, its scales [n] or None)."""
    if case.quant_mode == 0:
        return row, None
    y = row.float()
    if case.factors is not None:
        factors = case.factors.reshape(len(case.factors), -1) if case.factors.dim() == 2 else case.factors[None]
        y = y * factors[factor_row if len(factors) > 1 else 0]
    if case.quant_mode == 1:
        return y.round().clamp(-128, 127).to(torch.int8), None
    if case.quant_mode == 2:
        largest = y.abs().max()
        if largest == 0:
            return torch.zeros_like(y).to(torch.int8), torch.zeros(1)
        scale = torch.tensor(127.0) / largest
        return (y * scale).round().to(torch.int8), (torch.tensor(1.0) / scale)[None]
    parts, scales = [], []
    for group in y.split(128):
        largest = group.abs().max().clamp(min=1e-4)
        parts.append(to_fp8(group * (torch.tensor(448.0) / largest)))
        scales.append(largest / 448)
    return torch.cat([p.view(torch.uint8) for p in parts]).view(torch.float8_e4m3fn), torch.stack(scales)


def dispatch(case, rank):
    """Returns the seven results of dispatch on a rank, and expand_idx of version 1, without the unused rows at the end.
    """
    blocks, entries = received(case, rank), flatten(case, rank)
    rows, scales = [], []
    for source, t, k in entries:
        inputs = case.ranks[source]
        expert = k - case.k if k >= case.k else case.shared + int(inputs.ids[t, k])
        row, scale = encode(case, inputs.x[t], expert)
        rows.append(row)
        scales.append(inputs.token_scales[t].reshape(-1) if inputs.token_scales is not None else scale)
    counts = [sum(len(entry) for block in blocks for entry in block[e]) for e in range(len(blocks[0]))]
    running = [np.cumsum([len(source) for expert in block for source in expert]) for block in blocks]
    position = rank % case.tp
    tp_counts = {(position + i) % case.tp: int(sums[-1]) if len(sums) else 0 for i, sums in enumerate(running)}
    mine, seen, expand_idx = case.ranks[rank], {}, []
    for t in range(len(mine.ids)):
        for k in range(case.k):
            expert = int(mine.ids[t, k])
            expand_idx.append(seen.get(expert, 0) if active(mine, t, k) else -1)
            seen[expert] = seen.get(expert, 0) + active(mine, t, k)
    weights = [1.0 if k >= case.k else float(case.ranks[s].weights[t, k]) for s, t, k in entries
               if case.ranks[s].weights is not None]
    return {
        "rows": torch.stack(rows) if rows else torch.empty(0, case.h),
        "scales": torch.stack(scales) if rows and scales[0] is not None else None,
        "triplets": [n for s, t, k in entries for n in (s // case.tp, t, k)],
        "expand_idx": expand_idx,
        "token_nums": list(np.cumsum(counts) if case.nums_type == 0 else counts),
        "ep_counts": [int(n) for sums in running for n in sums],
        "tp_counts": [tp_counts[i] for i in range(case.tp)],
        "weights": torch.tensor(weights),
    }


def travel(case, row):
    """Returns the row after the wire format in which combine sends it back."""
    if case.comm_quant_mode == 0:
        return row
    parts = []
    for block in row.split(8):
        scale = block.float().abs().max() * (torch.tensor(1.0) / 127)
        q = (block.float() / scale).round().clamp(-127, 127) if scale > 0 else torch.zeros(len(block))
        parts.append((q * scale.to(row.dtype).float()).to(row.dtype))
    return torch.cat(parts)


def special(case, x, expert):
    """Returns the output of a special expert for token x [H], in float32; None for an expert that gives zero."""
    if expert < case.zero:
        return None
    x = x.float()
    if expert < case.zero + case.copy:
        return x
    c = expert - case.zero - case.copy
    d = torch.stack([torch.dot(alpha[c].float(), x) for alpha in (case.alpha1, case.alpha2)])
    a1, a2 = torch.softmax(d, 0)
    return a1 * x + a2 * case.v[c].float()


def combine(case, expert_rows):
    """Returns for each rank the sums in float32, with shared_x and residual added, not rounded. `expert_rows` has the
    rows [R, H] of each rank."""
    where = [{entry: row for entry, row in zip(flatten(case, r), expert_rows[r])} for r in range(case.size)]

    def returned(rank, t, k):
        """Returns the row of an entry: the sum of its rows on all ranks of the tensor-parallel group that computed it,
        beginning with the position of `rank`. None if no rank has one."""
        for ep_rank in range(case.ep):
            rows = [where[ep_rank * case.tp + (rank + step) % case.tp].get((rank, t, k)) for step in range(case.tp)]
            if rows[0] is not None:
                total = rows[0].float()
                for row in rows[1:]:
                    total = total + row.float()
                return travel(case, total.to(rows[0].dtype)).float()
        return None

    sums = []
    for rank, inputs in enumerate(case.ranks):
        sums.append(torch.zeros(len(inputs.ids), case.h))
        for t in range(len(inputs.ids)):
            for k in range(case.k):
                expert = int(inputs.ids[t, k])
                if not active(inputs, t, k):
                    continue
                term = special(case, inputs.x[t], expert - case.moe) if expert >= case.moe else returned(rank, t, k)
                if term is not None:
                    sums[-1][t] += term if case.plain_sum else inputs.weights[t, k] * term
            for k in range(case.k, case.k + case.shared):
                row = returned(rank, t, k)
                if row is not None:
                    sums[-1][t] += row
            for more in (inputs.shared_x, inputs.residual):
                if more is not None:
                    sums[-1][t] += more[t].float()
    return sums


def rms_norm(case, z):
    """Returns (y, rstd) of the RMS norm of the sums z [Bs, H]."""
    rstd = 1 / torch.sqrt((z * z * np.float32(1 / case.h)).sum(-1, keepdim=True) + case.eps)
    return ((z * rstd).to(case.dtype).float() * case.gamma.float()).to(case.dtype), rstd
