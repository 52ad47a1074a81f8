"""bf16, fp16 and fp8 e4m3 on arrays of their bits; NumPy has no such types but float16. Rules: docs/numerics.md,
"Conversions" and "Dispatch". Imported by the other files here."""

import numpy as np

F32 = np.float32
QUIET_NAN = F32(np.nan)
BITS = {"bf16": np.uint16, "fp16": np.uint16, "fp32": np.uint32, "bytes": np.uint8}


def bits(floats):
    return np.ascontiguousarray(floats, dtype=F32).view(np.uint32)


def from_bits(words):
    return np.ascontiguousarray(words, dtype=np.uint32).view(F32)


def to_float32(elements, element_type):
    """Bits of bf16, fp16 or fp32 to float32, exact."""
    if element_type == "fp32":
        return from_bits(elements)
    if element_type == "bf16":
        return from_bits(elements.astype(np.uint32) << 16)
    half = np.ascontiguousarray(elements, dtype=np.uint16)
    payload_kept = half.astype(np.uint32) << 13 & 0x7FE000 | (half.astype(np.uint32) & 0x8000) << 16 | 0x7FC00000
    return np.where((half & 0x7FFF) > 0x7C00, from_bits(payload_kept), half.view(np.float16).astype(F32))


def from_float32(floats, element_type):
    """float32 to the bits of bf16, fp16 or fp32, nearest even; a NaN becomes a quiet one with its sign and as much of
    its payload as fits."""
    words = bits(floats)
    if element_type == "fp32":
        return words
    is_nan = (words & 0x7FFFFFFF) > 0x7F800000
    if element_type == "fp16":
        nan = words >> 16 & 0x8000 | 0x7E00 | words >> 13 & 0x3FF
        with np.errstate(all="ignore"):
            half = np.asarray(floats, dtype=F32).astype(np.float16).view(np.uint16)
        return np.where(is_nan, nan, half).astype(np.uint16)
    kept, lost = words >> 16, words & 0xFFFF
    up = (lost > 0x8000) | ((lost == 0x8000) & (kept & 1 == 1))
    return np.where(is_nan, kept | 0x40, kept + up).astype(np.uint16)


# [127]: the magnitudes of e4m3 by code; 0x7f would be NaN.
_CODES = np.arange(127)
E4M3 = np.where(_CODES < 8, np.ldexp(_CODES / 8.0, -6), np.ldexp(1 + _CODES % 8 / 8.0, _CODES // 8 - 7))


def to_e4m3(floats):
    """Nearest even by looking the neighbours up, saturating; finite numbers only."""
    magnitude = np.minimum(np.abs(floats.astype(np.float64)), E4M3[-1])
    above = np.searchsorted(E4M3, magnitude)
    below = np.maximum(above - 1, 0)
    to_above, to_below = E4M3[above] - magnitude, magnitude - E4M3[below]
    take_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    code = np.where(take_above, above, below)
    return (code | np.where(np.signbit(floats), 0x80, 0)).astype(np.uint8)


def from_e4m3(codes):
    sign = np.where(codes & 0x80, F32(-1), F32(1))
    return sign * E4M3.astype(F32)[codes & 0x7F]
