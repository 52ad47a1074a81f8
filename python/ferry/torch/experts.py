"""Experts that moe() calls: each(f), swiglu() and SwiGLU, and wrappers that copy results and decode rows.

H hidden, I intermediate, L experts of this rank, N rows received."""

import torch
import torch.nn.functional as F

import ferry


def each(expert):
    """The experts argument of moe() from a function of one expert: expert(e, rows [n, H]) gives [n, H] for the local
    expert e, and is called for experts that have rows only."""

    def experts(rows, counts, out=None):
        parts = [_made(expert(e, part), part, f"expert {e}") for e, part in _shares(rows, counts)]
        return torch.cat(parts or [rows], out=out)

    return experts


def _made(outputs, rows, who="experts"):
    """Returns the outputs of the experts. Raises InvalidArgument unless they have the shape and dtype of the rows."""
    if not torch.is_tensor(outputs):
        raise ferry.InvalidArgument(f"moe: {who} returned {type(outputs).__name__}, not a tensor {list(rows.shape)}")
    if outputs.shape != rows.shape or outputs.dtype != rows.dtype:
        raise ferry.InvalidArgument(f"moe: {who} returned {outputs.dtype} {list(outputs.shape)}, not {rows.dtype} "
                                    f"{list(rows.shape)}, as the rows are")
    return outputs


def writing(experts):
    """Wraps experts so that their result is in `out`. The result is copied unless it is `out` or None, which means that
    the experts have written to `out`."""

    def call(rows, counts, out):
        made = experts(rows, counts, out)
        if made is not None and made is not out:
            out.copy_(_made(made, out))

    return call


# The size of the gate and up products of a block of experts. From 32 MiB on the C library maps new pages for each
# tensor.
_BLOCK_BYTES = 8 * 2**20


def swiglu(gate_up, down):
    """The experts argument of moe(): down[e](silu(gate(x)) * up(x)), with gate_up[e] [2 I, H], the gate's rows first,
    and down[e] [H, I]. torch computes every product: one grouped_mm of many experts where torch has it for these
    weights (docs/moe.md), else one product for each expert that has rows."""

    def one(gate_up, down, rows):
        gate, up = (rows @ gate_up.t()).chunk(2, -1)
        return (F.silu(gate) * up) @ down.t()

    def experts(rows, counts, out=None):
        if not _fit_grouped_mm(rows, gate_up, down):  # zip: the backward of gate_up[e] makes a gradient of all experts
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
    """Yields (experts, their rows) as slices. Each block is one expert, or several that have at most `most` rows
    together."""
    first = begin = end = 0
    for e, count in enumerate(counts):
        if begin < end and end + count - begin > most:
            yield slice(first, e), slice(begin, end)
            first, begin = e, end
        end += count
    if begin < end:
        yield slice(first, len(counts)), slice(begin, end)


def _fit_grouped_mm(rows, *weights):
    """Whether torch's grouped_mm takes these tensors: contiguous weights of the dtype of `rows`, whose own rows are a
    multiple of 16 bytes, without autocast. Its backward refuses the strides that an empty gradient may have, so there
    must be a row."""
    return (hasattr(F, "grouped_mm") and len(rows) > 0 and not torch.is_autocast_enabled("cpu")
            and all(torch.is_tensor(each) and each.dtype == rows.dtype and each.is_contiguous()
                    and each.shape[-1] * each.element_size() % 16 == 0 for each in weights))


def _grouped(gate_up, down, rows, counts):
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    gate, up = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    out = F.grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
    if out.requires_grad:  # grouped_mm's backward refuses an expanded gradient
        out.register_hook(torch.Tensor.contiguous)
    return out


def _shares(rows, counts):
    """Returns (local expert, its rows) for each expert that has rows."""
    return zip([e for e, count in enumerate(counts) if count], rows.split([count for count in counts if count]))


class SwiGLU(torch.nn.Module):
    """swiglu() with parameters of its own: gate_up [L, 2 I, H] and down [L, H, I], the layout of transformers and
    vLLM.

    The first weights of an expert depend only on the seed of torch and on the number of the expert, one of `numbers`,
    by default 0 to L - 1. So they equal those of the same expert in a module of all experts that is made with the same
    seed.
    """

    def __init__(self, num_local, hidden, intermediate, dtype=torch.bfloat16, numbers=None):
        super().__init__()
        self.gate_up = torch.nn.Parameter(torch.empty(num_local, 2 * intermediate, hidden, dtype=dtype))
        self.down = torch.nn.Parameter(torch.empty(num_local, hidden, intermediate, dtype=dtype))
        if self.gate_up.is_meta:
            return
        seed = torch.empty((), dtype=torch.int64, device="cpu").random_().item()
        for e, number in enumerate(range(num_local) if numbers is None else numbers):
            generator = torch.Generator(self.gate_up.device).manual_seed((seed + number) % 2**63)
            for weight in (self.gate_up, self.down):
                torch.nn.init.normal_(weight[e], std=weight.shape[-1] ** -0.5, generator=generator)

    def forward(self, rows, counts, out=None):
        """rows [N, H], expert by expert, counts[e] of them; returns [N, H], in `out` where that is given."""
        return swiglu(self.gate_up, self.down)(rows, counts, out)


def decoding(experts, config):
    """Wraps experts so that they are called with decoded rows. config is that of the exchange."""
    dtype = getattr(torch, config["dtype"])

    def call(rows, counts, out, scales):
        decoded = torch.empty(rows.shape, dtype=dtype)
        block = max(1, 2**16 // max(1, rows.shape[-1]))  # float32 copies of this many rows stay in the cache of a core
        for begin in range(0, len(rows), block):
            part = slice(begin, begin + block)
            decoded[part] = rows[part].float() * _factors(scales[part], config)
        return experts(decoded, counts, out)

    return call


def _factors(scales, config):
    """Returns the scales of rows (docs/numerics.md) as float32: [n, 1] for the wire format int8, or else [n, H]."""
    if config["wire"] == "int8":
        return scales
    if config["wire"] == "fp8_ue8m0":  # exponents, four in an int32
        scales = scales.clone(memory_format=torch.contiguous_format).view(torch.float8_e8m0fnu).float()
    return scales.repeat_interleave(128, -1)[:, :config["hidden"]]
