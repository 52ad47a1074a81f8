"""Rows: the tokens that DeepEP's callers give, as an exchange takes them, and what arrived in the callers' types.

bfloat16, float16 and float32 travel as such, any other type (fp8 with scales of its own) as bytes."""

import torch

from ferry.deep_ep.layout import CPU, describe, name_of
from ferry.errors import InvalidArgument

FLOATS = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
_PACK_BYTES = 4  # what column-major scales consist of


class Rows:
    """x, rows [T, H] or a pair of rows and scales [T, n]: `tokens`, `scales` (or None) and `format`, keywords of an
    exchange as a tuple of pairs.

    column_major: scales come out with strides (1, rows rounded up to 4). Raises ferry.InvalidArgument.
    """

    def __init__(self, x, column_major=False):
        self.x, self.scales = read(x)
        self.num_tokens = self.x.shape[0]
        dtype, scale_bytes = FLOATS.get(self.x.dtype), 0
        self.tokens = self.x if dtype else self.x.view(torch.uint8)
        if self.scales is not None:
            scale_bytes = self._read_scales(column_major)
        self.column_major = column_major and self.scales is not None
        self.format = (("dtype", dtype or "uint8"), ("hidden", self.tokens.shape[1]), ("scale_bytes", scale_bytes),
                       ("scale_order", "column_major" if self.column_major else "row_major"))

    def _read_scales(self, column_major):
        scales = self.scales
        if column_major and scales.element_size() != _PACK_BYTES:
            raise InvalidArgument(f"the scales of x are {describe(scales)}; column-major ones have {_PACK_BYTES} bytes "
                                  "each")
        self.scales = scales.contiguous()
        return scales.shape[1] * scales.element_size()

    def received(self, received, num_rows):
        """What arrived, in the types that were sent; num_rows of them, of which those behind the real ones are
        undefined."""
        rows = resized(received.rows, num_rows)
        rows = rows if rows.dtype == self.x.dtype else rows.view(self.x.dtype)
        if self.scales is None:
            return rows
        scales = received.scales
        if self.column_major:
            return rows, _columns(scales, num_rows)
        scales = resized(scales, num_rows)
        return rows, scales if scales.dtype == self.scales.dtype else scales.view(self.scales.dtype)


def read(x, device=CPU):
    """(rows [T, H], scales [T, n] or None) of what a caller gives, on the device. Raises ferry.InvalidArgument."""
    pair = isinstance(x, (tuple, list))
    parts = tuple(x) if pair else (x,)
    if len(parts) != 1 + pair or not all(isinstance(part, torch.Tensor) for part in parts):
        raise InvalidArgument(f"x is {[type(part).__name__ for part in parts]}, need a torch.Tensor or a pair")
    rows, scales = detached(parts[0]), detached(parts[1]) if pair else None
    if rows.dim() != 2 or rows.device != device or not rows.is_contiguous():
        raise InvalidArgument(f"x is {describe(rows)}, need contiguous rows [tokens, hidden] on {name_of(device)}")
    if pair and (scales.dim() != 2 or len(scales) != len(rows) or scales.shape[1] == 0 or scales.device != device):
        raise InvalidArgument(f"the scales of x are {describe(scales)}, need [{len(rows)}, n] on {name_of(device)}")
    return rows, scales


def detached(tensors):
    """A tensor, a pair of them or None, without gradients."""
    if isinstance(tensors, (tuple, list)):
        return tuple(map(detached, tensors))
    return tensors.detach() if isinstance(tensors, torch.Tensor) and tensors.requires_grad else tensors


def resized(rows, num_rows, fill=None):
    """The first num_rows of rows [N, ...]; more than N are new memory that starts with them."""
    have = rows.shape[0]
    if have >= num_rows:
        return rows if have == num_rows else rows[:num_rows]
    shape = (num_rows, *rows.shape[1:])
    larger = rows.new_empty(shape) if fill is None else rows.new_full(shape, fill)
    larger[:have] = rows
    return larger


def _columns(scales, num_rows):
    """scales [N, n] with strides (1, N rounded up to 4); resized to num_rows >= N with theirs."""
    if len(scales) == num_rows:
        return scales
    pitch = -(-num_rows // 4) * 4
    larger = scales.new_empty(scales.shape[1], pitch).T[:num_rows]
    larger[:len(scales)] = scales
    return larger
