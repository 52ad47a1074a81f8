"""Cases of low-latency dispatch and combine, and an oracle in torch that follows the rules in docs/deep_ep.md ("Low
latency") and docs/numerics.md. Every rank computes the inputs of all ranks from the seed of a case, so it can compute
the rows that it must receive.
"""

import dataclasses

import torch

MODES = {
    "bf16": dict(use_fp8=False),
    "fp8": dict(use_fp8=True),
    "pow2": dict(use_fp8=True, round_scale=True),
    "ue8m0": dict(use_fp8=True, round_scale=True, use_ue8m0=True),
}
LOW_32 = (1 << 32) - 1


@dataclasses.dataclass(frozen=True)
class Case:
    ranks: int
    max_tokens: int = 6
    hidden: int = 512
    num_experts: int = 0  # 0: two experts per rank
    top_k: int = 2
    seed: int = 1
    tokens: tuple = ()  # tokens by rank; none: random numbers from 0 to max_tokens
    duplicates: bool = False
    drop: float = 0.15  # the fraction of entries that are -1
    ids: tuple = ()  # ids by rank, int64 [T, K]; none: random ones
    dtype: torch.dtype = torch.bfloat16

    def __post_init__(self):
        object.__setattr__(self, "num_experts", self.num_experts or 2 * self.ranks)

    @property
    def capacity(self):
        return self.ranks * self.max_tokens

    def inputs(self, rank):
        """Returns (x [T, H], topk_idx int64 [T, K], topk_weights float32 [T, K]) of a rank."""
        random = torch.Generator().manual_seed(1000 * self.seed + rank)
        count = self.tokens[rank] if self.tokens else int(torch.randint(self.max_tokens + 1, (), generator=random))
        x = torch.randn(count, self.hidden, generator=random)
        x *= torch.exp2(torch.randint(-6, 7, (count, 1), generator=random))
        x[: count // 5] = 0  # groups of zeros
        if self.ids:
            ids = self.ids[rank].clone()
        elif self.duplicates:
            ids = torch.randint(self.num_experts, (count, self.top_k), generator=random)
        else:
            ids = torch.rand(count, self.num_experts, generator=random).argsort(1)[:, : self.top_k].contiguous()
        left_out = torch.rand(ids.shape, generator=random) < self.drop
        ids[left_out & (not self.ids)] = -1
        return x.to(self.dtype), ids, torch.rand(count, self.top_k, generator=random)

    def my_experts(self, rank):
        """Returns the range of the experts of a rank. Ranks own contiguous blocks; the first E % R ranks have one
        more."""
        even, more = divmod(self.num_experts, self.ranks)
        begin = rank * even + min(rank, more)
        return range(begin, begin + even + (rank < more))

    def arrivals(self, expert, sources=None):
        """Returns [(source rank, token)] of the rows that the expert receives, in ferry's order."""
        found = []
        for source in range(self.ranks) if sources is None else sources:
            ids = self.inputs(source)[1]
            found += [(source, token) for token, k in (ids == expert).nonzero().tolist()]
        return found


# ---- the oracle of low_latency_dispatch and low_latency_combine


def in_groups(x):
    missing = -x.shape[-1] % 128
    return torch.nn.functional.pad(x.float(), (0, missing)).unflatten(-1, (-1, 128))


def quantised(x, mode):
    """Encodes x as an fp8 mode does. Returns (bytes uint8 [T, H], scales float32 [T, ceil(H / 128)])."""
    groups = in_groups(x)
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scales = largest / 448
    if mode == "fp8":
        scaled = groups * torch.full_like(largest, 448).div(largest)  # 448 / largest would be 448 * (1 / largest)
    else:
        fraction, exponent = torch.frexp(scales)  # scales = fraction * 2^exponent, fraction in [0.5, 1)
        scales = torch.ldexp(torch.ones_like(scales), torch.where(fraction == 0.5, exponent - 1, exponent))
        scaled = groups / scales
    bytes_ = scaled.to(torch.float8_e4m3fn).view(torch.uint8)
    return bytes_.flatten(-2)[..., : x.shape[-1]].contiguous(), scales.squeeze(-1)


def unpacked(scales):
    """Unpacks exponents, four in each int32 of [..., n], to float32 [..., 4 * n]."""
    exponents = scales.clone(memory_format=torch.contiguous_format).view(torch.uint8).int() - 127
    return torch.ldexp(torch.ones(exponents.shape), exponents)


def restored(bytes_, scales):
    """Decodes e4m3 bytes with their scales to float32 [T, H]."""
    values = in_groups(bytes_.view(torch.float8_e4m3fn).float()) * scales.unsqueeze(-1)
    return values.flatten(-2)[..., : bytes_.shape[-1]]


def seen_by_experts(x, mode):
    """Returns float32 [T, H], the tokens as their experts read them after the wire format of the mode."""
    return x.float() if mode == "bf16" else restored(*quantised(x, mode))


def expert(rows, number, dtype=torch.bfloat16):
    return (rows.float() * (1 + number / 8)).to(dtype)


def expected_sum(case, rank, mode, masked=()):
    x, ids, weights = case.inputs(rank)
    rows = seen_by_experts(x, mode)
    total = torch.zeros(x.shape)
    for k in range(case.top_k):
        for token in range(len(x)):
            number = int(ids[token, k])
            if number >= 0 and not any(number in case.my_experts(out) for out in masked):
                total[token] += weights[token, k] * expert(rows[token], number, case.dtype).float()
    return total.to(case.dtype)


def blocks_of(layout_range):
    return [(int(value) >> 32, int(value) & LOW_32) for value in layout_range]
