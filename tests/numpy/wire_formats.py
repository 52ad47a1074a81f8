"""The wires of dispatch and of combine on whole matrices [rows, hidden]. Rules: docs/numerics.md, "Dispatch" and "Wires
of combine". Called by check.py, dispatched.py and combined.py."""

import numpy as np
from number_formats import BITS, F32, QUIET_NAN, bits, from_bits, from_e4m3, from_float32, to_e4m3, to_float32

GROUP = 128
COMBINE_BLOCK = {"int8_8": 8, "int8_128": 128}


def in_blocks(matrix, size):
    """[rows, hidden] to [rows, blocks, size]; the last block is filled up with zeros."""
    missing = -matrix.shape[1] % size
    return np.pad(matrix, ((0, 0), (0, missing))).reshape(len(matrix), -1, size)


def out_of_blocks(blocks, hidden):
    return blocks.reshape(len(blocks), -1)[:, :hidden]


# ---- dispatch


def dispatch_wire(wire, x, factors):
    """x float32 [rows, hidden], factors that fit it or [] -> elements uint8, scales uint32, decoded float32."""
    y = x * factors if factors.size else x
    if wire == "int8_static":
        q = np.clip(np.rint(np.where(np.isnan(y), F32(0), y)), -128, 127).astype(np.int8)
        return q.view(np.uint8), np.zeros((len(x), 0), np.uint32), q.astype(F32)
    return int8(y) if wire == "int8" else fp8(wire, y)


def int8(y):
    m = np.abs(y).max(axis=1, keepdims=True)
    s = F32(127) / m
    is_bad = ~np.isfinite(m)
    q = np.where(is_bad | np.isinf(s), F32(0), np.rint(y * s)).astype(np.int8)
    scale = np.where(is_bad, QUIET_NAN, F32(1) / s)
    return q.view(np.uint8), bits(scale), q.astype(F32) * scale


def fp8(wire, y):
    groups = in_blocks(y, GROUP)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    is_bad = ~np.isfinite(largest)
    m = np.maximum(np.where(is_bad, F32(0), largest), F32(1e-4))
    scale = m / F32(448)
    if wire == "fp8":
        scaled = groups * (F32(448) / m)
    else:
        # Adding all bits of the mantissa carries into the exponent unless they are zero already.
        scale = from_bits(bits(scale) + 0x7FFFFF & 0xFF800000)
        scaled = groups / scale
    codes = np.where(is_bad, 0, to_e4m3(np.where(is_bad, F32(0), scaled))).astype(np.uint8)
    scale = np.where(is_bad, QUIET_NAN, scale)
    decoded = from_e4m3(codes) * scale
    scales = bits(scale[..., 0])
    if wire == "fp8_ue8m0":
        exponents = np.where(is_bad[..., 0], 255, scales >> 23).astype(np.uint8)
        scales = in_blocks(exponents, 4).reshape(len(y), -1).view("<u4")
    return out_of_blocks(codes, y.shape[1]), scales, out_of_blocks(decoded, y.shape[1])


# ---- combine


def combine_wire(wire, elements, element_type):
    """Bits [rows, hidden] -> the encoded rows one after the other, the bytes of each, and the bits that arrive."""
    if wire == "logfmt10":
        parts, is_used, decoded = logfmt10(elements, element_type)
    else:
        parts, decoded = int8_blocks(COMBINE_BLOCK[wire], to_float32(elements, element_type), element_type)
        is_used = np.ones_like(parts, dtype=bool)
    return parts[is_used], is_used.sum(axis=1), decoded


def bytes_of(numbers, element_type):
    """[rows, n] to [rows, n * bytes of an element]."""
    return np.ascontiguousarray(from_float32(numbers, element_type).astype(BITS[element_type])).view(np.uint8)


def int8_blocks(block_size, x, element_type):
    blocks = in_blocks(x, block_size)
    s = np.abs(blocks).max(axis=2, keepdims=True) * (F32(1) / F32(127))
    is_bad = ~np.isfinite(s)
    q = np.where(is_bad | (s == 0), F32(0), np.clip(np.rint(blocks / s), -127, 127)).astype(np.int8)
    stored = np.where(is_bad, QUIET_NAN, s)[..., 0]
    scale = to_float32(from_float32(stored, element_type), element_type)
    decoded = out_of_blocks(q.astype(F32) * scale[..., None], x.shape[1])
    elements = in_blocks(out_of_blocks(q, x.shape[1]), 32).reshape(len(x), -1).view(np.uint8)
    encoded = np.concatenate([elements, bytes_of(stored, element_type)], axis=1)
    return encoded, from_float32(decoded, element_type)


def logfmt10(elements, element_type):
    """Bits [rows, hidden] -> [rows, bytes] and which of the bytes travel; the bits that arrive."""
    rows, hidden = elements.shape
    full = hidden // GROUP * GROUP
    headers, bodies, are_used, decoded = [], [], [], []
    for part, size in ((elements[:, :full], GROUP), (elements[:, full:], hidden - full)):
        if part.shape[1]:
            header, body, is_used, arrived = logfmt10_blocks(part.reshape(rows, -1, size), element_type)
            headers.append(header.view(np.uint8))
            bodies.append(body.reshape(rows, -1))
            are_used.append(is_used.reshape(rows, -1))
            decoded.append(arrived.reshape(rows, -1))
    headers = np.concatenate(headers, axis=1)
    is_used = np.concatenate([np.ones_like(headers, dtype=bool), *are_used], axis=1)
    return np.concatenate([headers, *bodies], axis=1), is_used, np.concatenate(decoded, axis=1)


def logfmt10_blocks(elements, element_type):
    """Bits [rows, blocks, n] -> headers [rows, blocks]; [rows, blocks, bytes] and which of these travel; the bits that
    arrive."""
    words = bits(to_float32(elements, element_type))
    b = (words & 0x7FFFFFFF).astype(np.int64)
    hi = (b.max(axis=2) + 0xFFFF) >> 16
    lo = np.where(hi == 0, 0, np.where(b == 0, 1 << 40, b).min(axis=2) >> 16)
    infinite = 0x4780 if element_type == "fp16" else 0x7F80
    is_wide = (hi - lo > 2048) | (hi >= infinite)
    header = np.where(is_wide, 0xFFFFFFFF, lo | hi << 16).astype("<u4")

    low, extent = (lo << 16)[..., None], (hi - lo << 16)[..., None]
    step = np.minimum(np.rint((b - low).astype(F32) * (F32(510) / extent.astype(F32))), F32(510))
    code = np.where(b == 0, 0, 1 + np.where(extent == 0, F32(0), step).astype(np.int64))
    up = np.minimum(np.rint((code - 1).astype(F32) * (extent.astype(F32) / F32(510))), extent.astype(F32))
    decoded = from_bits(np.where(code == 0, 0, low + up.astype(np.int64)) & 0x7FFFFFFF | words & 0x80000000)
    narrow = packed(code | (words >> 31).astype(np.int64) << 9)

    wide = elements if element_type != "fp32" else from_float32(from_bits(words), "bf16")
    arrived = elements if element_type != "fp32" else wide.astype(np.uint32) << 16
    num_bytes = np.where(is_wide, 2 * elements.shape[2], narrow.shape[2])[..., None]
    body = np.where(is_wide[..., None], filled_up(wide.astype("<u2").view(np.uint8), 256), filled_up(narrow, 256))
    decoded = np.where(is_wide[..., None], arrived, from_float32(decoded, element_type))
    return header, body.astype(np.uint8), np.arange(256) < num_bytes, decoded


def filled_up(blocks, size):
    return np.pad(blocks, ((0, 0), (0, 0), (0, size - blocks.shape[2])))


def packed(codes):
    """[rows, blocks, n] of 10 bits to bytes: n of the low eight, then (n + 3) / 4 = q: byte j holds the upper two bits
    of elements j, j + q, j + 2q, j + 3q."""
    rows, blocks, n = codes.shape
    q = (n + 3) // 4
    fours = filled_up(codes >> 8, 4 * q).reshape(rows, blocks, 4, q)
    upper = (fours << np.array([0, 2, 4, 6])[:, None]).sum(axis=2)
    return np.concatenate([codes & 0xFF, upper], axis=2)
