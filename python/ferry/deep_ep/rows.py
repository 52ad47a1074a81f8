"""Rows converts the tokens of a DeepEP call to the types of an exchange, and received rows back to the caller's type.

bfloat16, float16 and float32 are not converted. Any other type (such as fp8 with scales) travels as bytes."""

import torch

from ferry.deep_ep.layout import CPU, describe, name_of
from ferry.errors import InvalidArgument

FLOATS = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
_PACK_BYTES = 4  # bytes of one column-major scale


class Rows:
    """The rows x [T, H] of a dispatch, or a pair of rows and scales [T, n]. It has `tokens` and `scales` (or None) as
    the exchange takes them, and `format`, keyword arguments of the exchange as a tuple of pairs.

    column_major: received scales have strides (1, rows rounded up to 4). Raises ferry.InvalidArgument.
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
        """Returns num_rows received rows in the types of x; with scales, (rows, scales). Rows after those that were
        received are undefined."""
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
    """Returns (rows [T, H], scales [T, n] or None) of x, without gradients. Raises ferry.InvalidArgument unless both
    have these shapes and are on the device."""
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
    """Returns a tensor, or a pair of tensors, without gradients. None is returned as it is."""
    if isinstance(tensors, (tuple, list)):
        return tuple(map(detached, tensors))
    return tensors.detach() if isinstance(tensors, torch.Tensor) and tensors.requires_grad else tensors


def resized(rows, num_rows, fill=None):
    """Returns num_rows rows that begin with rows [N, ...]: a view of `rows`, or a larger copy if num_rows exceeds N.
    The added rows have the value `fill`, or are undefined without one."""
    have = rows.shape[0]
    if have >= num_rows:
        return rows if have == num_rows else rows[:num_rows]
    shape = (num_rows, *rows.shape[1:])
    larger = rows.new_empty(shape) if fill is None else rows.new_full(shape, fill)
    larger[:have] = rows
    return larger


def _columns(scales, num_rows):
    """Returns scales [N, n], which are column-major, enlarged to num_rows >= N rows, with strides (1, num_rows rounded
    up to 4)."""
    if len(scales) == num_rows:
        return scales
    pitch = -(-num_rows // 4) * 4
    larger = scales.new_empty(scales.shape[1], pitch).T[:num_rows]
    larger[:len(scales)] = scales
    return larger
