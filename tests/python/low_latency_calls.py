"""The low-latency calls of a rank with a case of ferry.conformance.low_latency_case, and checks of what they return."""

import torch

from ferry.conformance.low_latency_case import MODES, blocks_of, expert, quantised, restored, unpacked

RANKS = [1, 2, 3, 4, 8]


def as_bytes(rows):
    return rows.contiguous().view(torch.uint8)


def dispatch(buffer, case, mode="bf16", **options):
    x, ids, _ = case.inputs(buffer.rank)
    return buffer.low_latency_dispatch(x, ids, case.max_tokens, case.num_experts, **MODES[mode], **options)


def combine(buffer, case, rows, handle, **options):
    _, ids, weights = case.inputs(buffer.rank)
    return buffer.low_latency_combine(rows, ids, weights, handle, **options)


def run_experts(case, rank, received, counts, mode):
    """Outputs [L, R * M, H] of the rows that counts names, NaN elsewhere."""
    rows, scales = (received, None) if mode == "bf16" else received
    outputs = torch.full(rows.shape, float("nan"), dtype=case.dtype)
    for local, number in enumerate(case.my_experts(rank)):
        count = int(counts[local])
        values = rows[local, :count]
        if scales is not None:
            factors = unpacked(scales[local, :count]) if mode == "ue8m0" else scales[local, :count]
            values = restored(as_bytes(values), factors[:, : -(-case.hidden // 128)])
        outputs[local, :count] = expert(values, number, case.dtype)
    return outputs


def check_received(case, rank, mode, received, counts, handle, sources=None):
    rows, scales = (received, None) if mode == "bf16" else received
    shape = (len(case.my_experts(rank)), case.capacity, case.hidden)
    assert tuple(rows.shape) == shape and rows.is_contiguous()
    assert scales is None or scales.shape[:2] == rows.shape[:2]
    assert rows.dtype == (case.dtype if mode == "bf16" else torch.float8_e4m3fn)
    assert counts.dtype == torch.int32 and tuple(counts.shape) == shape[:1]
    source_tokens, layout_range, max_tokens, hidden, num_experts = handle
    assert (max_tokens, hidden, num_experts) == (case.max_tokens, case.hidden, case.num_experts)
    assert source_tokens.dtype == torch.int32 and tuple(source_tokens.shape) == shape[:2]
    assert layout_range.dtype == torch.int64 and tuple(layout_range.shape) == (shape[0], case.ranks)
    for local, number in enumerate(case.my_experts(rank)):
        arrived = case.arrivals(number, sources)
        assert int(counts[local]) == len(arrived)
        assert source_tokens[local, : len(arrived)].tolist() == [token for _, token in arrived]
        assert blocks_of(layout_range[local]) == blocks_by_source(case, arrived)
        for place, (source, token) in enumerate(arrived):
            x = case.inputs(source)[0][token]
            if mode == "bf16":
                assert torch.equal(rows[local, place], x)
                continue
            bytes_, exact = quantised(x[None], mode)
            assert torch.equal(as_bytes(rows[local, place]), bytes_[0])
            check_scales(case, scales, mode, (local, place), exact[0])


def check_scales(case, scales, mode, at, exact):
    groups = -(-case.hidden // 128)
    columns = -(-groups // 4) if mode == "ue8m0" else groups
    assert scales.dtype == (torch.int32 if mode == "ue8m0" else torch.float32)
    assert tuple(scales.shape[1:]) == (case.capacity, columns)
    assert scales.stride(1) == 1 and (columns == 1 or scales.stride(2) >= case.capacity)  # column-major
    found = unpacked(scales[at]) if mode == "ue8m0" else scales[at]
    assert torch.equal(found[:groups], exact)


def blocks_by_source(case, arrived):
    blocks, begin = [], 0
    for source in range(case.ranks):
        count = sum(1 for place in arrived if place[0] == source)
        blocks.append((begin, count))
        begin += count
    return blocks
