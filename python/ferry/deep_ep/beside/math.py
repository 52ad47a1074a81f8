"""deep_ep.utils.math: comparisons, rounding to multiples, fp8 with a scale for 128 channels, digests of tensors."""

import torch

_GROUP = 128  # channels that share a scale
_LARGEST = 448.0  # the largest number of e4m3
_LEAST_AMAX = 1e-4


def calc_diff(x, y):
    """Returns 1 - 2 sum(xy) / sum(xx + yy), computed in float64 after 1 is added to x and to y. It is 0 for equal
    tensors."""
    x, y = x.double() + 1, y.double() + 1
    return (1 - 2 * (x * y).sum() / (x * x + y * y).sum()).item()


def safe_div(a, b):
    """a / b; 0 / 0 is 0."""
    return 0 if a == 0 and b == 0 else a / b


def ceil_div(x, y):
    """x / y rounded up."""
    return (x + y - 1) // y


def align(x, y):
    """x rounded up to a multiple of y."""
    return ceil_div(x, y) * y


def per_token_cast_to_fp8(x: torch.Tensor):
    """Encodes x [m, n] as (float8_e4m3fn [m, n], float32 scales [m, ceil(n / 128)]). The last group of 128 channels is
    filled up with zeros."""
    m, n = x.shape
    groups = ceil_div(n, _GROUP)
    blocks = torch.nn.functional.pad(x, (0, groups * _GROUP - n)).float().view(m, groups, _GROUP)
    amax = blocks.abs().amax(dim=2).clamp(_LEAST_AMAX)
    scaled = blocks * (torch.tensor(_LARGEST) / amax).unsqueeze(2)
    return scaled.to(torch.float8_e4m3fn).view(m, groups * _GROUP)[:, :n].contiguous(), amax / _LARGEST


def per_token_cast_back(x_fp8: torch.Tensor, x_scales: torch.Tensor):
    """Decodes the result of per_token_cast_to_fp8 to bfloat16 [m, n]. An empty tensor of any shape keeps its shape.

    x_scales is float32, or int32 with four exponent bytes each (UE8M0), in any shape and with any strides. In row-major
    order it has the scales of row 0, then of row 1, and so on: one for each 128 channels, or one for a row. A row may
    have more scales than groups of channels; the first ones are used. Raises ValueError for any other number of scales.
    """
    if x_fp8.numel() == 0:
        return x_fp8.to(torch.bfloat16)
    m, n = x_fp8.shape
    groups = ceil_div(n, _GROUP)
    values = torch.nn.functional.pad(x_fp8.float(), (0, groups * _GROUP - n)).reshape(m, groups, _GROUP)
    scaled = values * _scales_of_rows(x_scales, m, groups).unsqueeze(2)
    return scaled.view(m, -1)[:, :n].to(torch.bfloat16).contiguous()


def _scales_of_rows(scales, num_rows, groups):
    """Returns the scales as float32 [num_rows, groups or 1]."""
    given = list(scales.shape)
    if scales.dtype == torch.int32:
        exponents = scales.reshape(-1).contiguous().view(torch.uint8).to(torch.int32)
        scales = (exponents << 23).view(torch.float32)
    width = scales.numel() // num_rows
    if scales.numel() % num_rows or (width != 1 and width < groups):
        raise ValueError(f"per_token_cast_back: x_scales {given} has {scales.numel()} scales for {num_rows} rows of "
                         f"{groups} groups of {_GROUP} channels: each row needs {groups}, or 1")
    return scales.reshape(num_rows, width)[:, :groups]


def inplace_unique(x: torch.Tensor, num_slots: int):
    """Replaces each row of x [m, n] by its distinct values from 0 to num_slots - 1 in descending order, then -1."""
    if x.dim() != 2 or (x.numel() and int(x.max()) >= num_slots):
        raise ValueError(f"inplace_unique: x is {list(x.shape)}, with values below num_slots={num_slots}")
    rows, width = x.shape
    present = torch.zeros(rows, num_slots + 1, dtype=torch.bool, device=x.device)
    present.scatter_(1, torch.where(x >= 0, x, num_slots).long(), True)
    slots = torch.arange(num_slots, device=x.device)
    found = torch.where(present[:, :num_slots], slots, -1).sort(dim=1, descending=True).values[:, :width]
    x.fill_(-1)
    x[:, :found.shape[1]] = found.to(x.dtype)


def create_grouped_scores(scores: torch.Tensor, group_idx: torch.Tensor, num_groups: int):
    """Returns scores [T, E] with zeros for the experts outside the groups of each token, group_idx [T, n]."""
    num_tokens, num_experts = scores.shape
    chosen = torch.zeros(num_tokens, num_groups, dtype=torch.bool, device=scores.device)
    chosen.scatter_(1, group_idx.long(), True)
    mask = chosen.unsqueeze(2).expand(num_tokens, num_groups, num_experts // num_groups)
    return scores * mask.reshape(scores.shape)


def _tensors(nested):
    for each in nested:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (tuple, list)):
            yield from _tensors(each)


def hash_tensor(t: torch.Tensor):
    """Returns the sum of the bytes of t, read as int32 and padded with zeros, as a Python int."""
    data = t.contiguous().reshape(-1).view(torch.uint8)
    data = torch.nn.functional.pad(data, (0, -len(data) % 4))
    return data.view(torch.int32).sum(dtype=torch.int64).item()


def hash_tensors(*args):
    """Returns the XOR of hash_tensor of all tensors in nested tuples and lists. None is skipped."""
    digest = 0
    for tensor in _tensors(args):
        digest ^= hash_tensor(tensor)
    return digest


def count_bytes(*args):
    """Returns the number of bytes of all tensors in nested tuples and lists. None is skipped."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(args))
