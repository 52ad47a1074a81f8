"""The companions of ferry.torch_npu against loops in plain Python and numpy, written from their description."""

import inspect
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from ferry import torch_npu  # noqa: E402

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def draw(rng, shape, dtype=torch.float32):
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(dtype)


def same(actual, expected, what):
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, (what, actual.shape, expected.shape)
    assert torch.equal(actual, expected), what


# npu_moe_gating_top_k


def gate(x, k, bias, k_group, group_count, mode, renorm, norm_type, factor, eps):
    """One token: (weights, ids) in float64, from logits x [E]."""
    if norm_type == 1:
        norm = [1 / (1 + math.exp(-v)) for v in x]
    else:
        total = sum(math.exp(v - max(x)) for v in x)
        norm = [math.exp(v - max(x)) / total for v in x]
    choice = [n + (bias[e] if bias is not None else 0) for e, n in enumerate(norm)]
    size = len(x) // group_count
    scores = []
    for g in range(group_count):
        group = sorted(choice[g * size : (g + 1) * size], reverse=True)
        scores.append(group[0] if mode == 0 else sum(group[:2]))
    best = sorted(range(group_count), key=lambda g: (-scores[g], g))[:k_group]
    allowed = [e for e in range(len(x)) if group_count == 1 or e // size in best]
    ids = sorted(allowed, key=lambda e: (-choice[e], e))[:k]
    weights = [norm[e] for e in ids]
    if norm_type == 1 or renorm == 1:
        total = sum(weights) + eps
        weights = [w / total for w in weights]
    return [w * factor for w in weights], ids, norm


@pytest.mark.parametrize("norm_type", [0, 1])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gating_chooses_and_weighs_as_the_loops(norm_type, mode, dtype):
    for seed, (experts, groups, k_group, k, with_bias, renorm) in enumerate(
        [(16, 1, 1, 4, False, 0), (16, 4, 2, 5, True, 0), (12, 3, 2, 8, False, 1), (64, 8, 4, 8, True, 1),
         (5, 5, 5, 5, True, 0)]
    ):
        rng = np.random.default_rng(seed)
        # Each row has shuffled values 0.25 apart, whose order rounding cannot change.
        x = torch.stack([torch.from_numpy(rng.permutation(experts) * 0.25 - 2) for _ in range(7)]).to(dtype)
        bias = torch.from_numpy(rng.permutation(experts) * 0.0625).to(dtype) if with_bias else None
        y, ids, out = torch_npu.npu_moe_gating_top_k(
            x, k, bias=bias, k_group=k_group, group_count=groups, group_select_mode=mode, renorm=renorm,
            norm_type=norm_type, out_flag=True, routed_scaling_factor=2.5, eps=1e-20)
        assert y.dtype == dtype and ids.dtype == torch.int32 and out.dtype == torch.float32
        for t in range(len(x)):
            weights, chosen, norm = gate(x[t].tolist(), k, None if bias is None else bias.tolist(), k_group, groups,
                                         mode, renorm, norm_type, 2.5, 1e-20)
            assert ids[t].tolist() == chosen, f"seed {seed}, token {t}"
            tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
            assert np.allclose(y[t].float(), weights, rtol=tolerance, atol=1e-6), f"seed {seed}, token {t}"
            assert np.allclose(out[t], norm, rtol=1e-5), f"seed {seed}, token {t}"


def test_gating_gives_ties_to_the_lower_index_and_leaves_the_bias_out_of_the_weights():
    x = torch.zeros(1, 8)
    assert torch_npu.npu_moe_gating_top_k(x, 3)[1].tolist() == [[0, 1, 2]]
    assert torch_npu.npu_moe_gating_top_k(x, 2, k_group=1, group_count=4)[1].tolist() == [[0, 1]]
    y, ids, _ = torch_npu.npu_moe_gating_top_k(x, 2, bias=torch.arange(8.0), norm_type=1, eps=0.0)
    assert ids.tolist() == [[7, 6]] and y.tolist() == [[0.5, 0.5]]
    y, _, _ = torch_npu.npu_moe_gating_top_k(x, 2, bias=torch.arange(8.0))
    assert y.tolist() == [[0.125, 0.125]]  # softmax is normalised again only if renorm is set


def test_gating_of_no_tokens_and_with_negative_choices():
    nothing = torch_npu.npu_moe_gating_top_k(torch.zeros(0, 8), 2, k_group=1, group_count=2)
    assert [list(t.shape) for t in nothing] == [[0, 2], [0, 2], [0, 8]]
    # Groups that are not chosen must lose even to negative values.
    bias = torch.tensor([-5.0, -6.0, -7.0, -7.5])
    ids = torch_npu.npu_moe_gating_top_k(torch.zeros(1, 4), 2, bias=bias, k_group=1, group_count=2)[1]
    assert ids.tolist() == [[0, 1]]


# npu_moe_init_routing_v2


def route(x, expert_idx, scale, offset, active_num, capacity, expert_num, drop, num_type, quant_mode, span, idx_type):
    """All four results of npu_moe_init_routing_v2 by loops over experts, tokens and k."""
    n, k = expert_idx.shape
    first, last = span
    rows, order, counts = {}, [], []
    for e in range(first, last):
        mine = [(t, j) for t in range(n) for j in range(k) if expert_idx[t][j] == e]
        counts.append(len(mine))
        for place, entry in enumerate(mine):
            slot = e * capacity + place if drop else len(order)
            order.append(entry)
            if (place < capacity) if drop else (active_num <= 0 or slot < active_num):
                rows[slot] = (entry, e)
    total = expert_num * capacity if drop else n * k
    out = torch.zeros(total, x.shape[1], dtype=x.dtype if quant_mode == -1 else torch.int8)
    scales = torch.zeros(total)
    idx = torch.full((n * k,), -1, dtype=torch.int32)
    for slot, ((t, j), e) in rows.items():
        if idx_type == 1:
            idx[slot] = t * k + j
        else:
            idx[t * k + j] = slot
        if quant_mode == -1:
            out[slot], scales[slot] = x[t], scale[t] if scale is not None else 0
            continue
        row = x[t].numpy().astype(np.float32) if x.dtype != torch.bfloat16 else x[t].float().numpy()
        if scale is not None:
            row = row * scale.reshape(len(scale), -1).numpy()[e - first]
        if quant_mode == 0:
            if offset is not None:
                row = row + offset.reshape(len(offset), -1).numpy()[e - first]
            out[slot] = torch.from_numpy(np.clip(np.rint(row), -128, 127).astype(np.int8))
            continue
        biggest = np.float32(np.abs(row).max()) / np.float32(127)
        scales[slot] = float(biggest)
        if biggest > 0:
            out[slot] = torch.from_numpy(np.rint(row / biggest).astype(np.int8))
    if num_type == 0:
        tokens = torch.tensor(counts).cumsum(0)
    elif num_type == 1:
        tokens = torch.tensor(counts)
    else:
        pairs = [[first + i, c] for i, c in enumerate(counts) if c > 0]
        tokens = torch.tensor(pairs + [[0, 0]] * ((expert_num if expert_num > 0 else last) - len(pairs))).view(-1, 2)
    return out.view(expert_num, capacity, -1) if drop else out, idx, tokens, scales


@pytest.mark.parametrize("seed", range(60))
def test_init_routing_as_the_loops(seed):
    rng = np.random.default_rng(seed)
    n, k, h, experts = (int(rng.integers(*bounds)) for bounds in [(0, 9), (1, 5), (1, 12), (1, 9)])
    drop = bool(rng.random() < 0.3)
    first = 0 if drop else int(rng.integers(0, experts))
    last = experts if drop else int(rng.integers(first + 1, experts + 1))
    quant_mode = int(rng.integers(-1, 2))
    x = draw(rng, (n, h), FLOATS[seed % 3])
    if quant_mode == -1 and rng.random() < 0.3:
        x = torch.from_numpy(rng.integers(-128, 128, (n, h)).astype(np.int8))
    elif n > 0:
        x[0] = 0  # a row of zeros has scale 0
    expert_idx = torch.from_numpy(rng.integers(-1, experts, (n, k)).astype(np.int32))
    scale = offset = None
    if quant_mode == -1:
        scale = draw(rng, (n,)) if rng.random() < 0.5 else None
    elif quant_mode == 0:
        shape = [(last - first,), (last - first, 1), (last - first, h)][seed % 3]
        scale, offset = draw(rng, shape) * 40, draw(rng, shape) if rng.random() < 0.5 else None
    elif rng.random() < 0.5:
        scale = draw(rng, (last - first, h))
    given = dict(active_num=-1 if drop else int(rng.choice([-1, 0, n * k, max(1, n * k // 2)])),
                 capacity=int(rng.integers(1, 6)), expert_num=experts, drop=drop, num_type=int(rng.integers(0, 3)),
                 quant_mode=quant_mode, span=[first, last], idx_type=0 if drop else int(rng.integers(0, 2)))
    actual = torch_npu.npu_moe_init_routing_v2(
        x, expert_idx, scale=scale, offset=offset, active_num=given["active_num"], expert_capacity=given["capacity"],
        expert_num=experts, drop_pad_mode=int(drop), expert_tokens_num_type=given["num_type"],
        expert_tokens_num_flag=True, quant_mode=quant_mode, active_expert_range=[first, last],
        row_idx_type=given["idx_type"])
    expected = route(x, expert_idx, scale, offset, **given)
    for name, a, e in zip(["expanded_x", "expanded_row_idx", "expert_tokens", "expanded_scale"], actual, expected):
        same(a, e, f"{name}, seed {seed}, {given}")


def test_init_routing_defaults_take_all_of_expert_num():
    x, ids = torch.arange(6.0).view(3, 2), torch.tensor([[1], [0], [1]], dtype=torch.int32)
    rows, row_idx, tokens, _ = torch_npu.npu_moe_init_routing_v2(x, ids, expert_num=3, quant_mode=-1)
    assert rows.tolist() == [[2, 3], [0, 1], [4, 5]] and row_idx.tolist() == [1, 0, 2] and tokens.tolist() == [1, 3, 3]


# npu_moe_finalize_routing


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", FLOATS)
def test_finalize_routing_as_the_loops(mode, dtype):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        n, h, experts = int(rng.integers(0, 6)), int(rng.integers(1, 9)), 5
        with_scales = rng.random() < 0.7
        k = int(rng.integers(1, 5)) if with_scales else 1
        shape = (experts, 4, h) if mode in (1, 3) else (n * k, h)
        rows = draw(rng, shape, dtype)
        num_rows = rows.numel() // h
        src_to_dst = torch.from_numpy(rng.integers(-1, num_rows, n * k).astype(np.int32))
        experts_of = torch.from_numpy(rng.integers(0, experts, (n, k)).astype(np.int32))
        skip1 = draw(rng, (n, h), dtype) if rng.random() < 0.7 else None
        skip2 = draw(rng, (n, h), dtype) if rng.random() < 0.7 else None
        bias = draw(rng, (experts, h), dtype) if rng.random() < 0.7 else None
        scales = draw(rng, (n, k), dtype) if with_scales else None
        expected = np.zeros((n, h), dtype=np.float32)
        flat = rows.reshape(-1, h).float().numpy()
        for i in range(n):
            for skip in (skip1, skip2):
                if skip is not None:
                    expected[i] += skip[i].float().numpy()
            for j in range(k):
                at = int(src_to_dst[i + j * n if mode in (0, 1) else i * k + j])
                row = flat[at] if at >= 0 else np.zeros(h, dtype=np.float32)
                if bias is not None:
                    row = row + bias[experts_of[i, j]].float().numpy()
                expected[i] += row * (np.float32(scales[i, j].float()) if scales is not None else np.float32(1))
        actual = torch_npu.npu_moe_finalize_routing(rows, skip1, skip2, bias, scales, src_to_dst, experts_of, mode)
        same(actual, torch.from_numpy(expected).to(dtype), f"seed {seed}")


def test_finalize_routing_undoes_init_routing():
    rng = np.random.default_rng(3)
    x, ids = draw(rng, (9, 8)), torch.from_numpy(rng.integers(0, 6, (9, 3)).astype(np.int32))
    weights = torch.softmax(draw(rng, (9, 3)), -1)
    rows, row_idx, _, _ = torch_npu.npu_moe_init_routing_v2(x, ids, expert_num=6, quant_mode=-1)
    back = torch_npu.npu_moe_finalize_routing(rows, None, None, None, weights, row_idx, None, drop_pad_mode=2)
    assert torch.allclose(back, x, atol=1e-6)
    rows, row_idx, _, _ = torch_npu.npu_moe_init_routing_v2(
        x, ids, expert_num=6, quant_mode=-1, drop_pad_mode=1, expert_capacity=9)
    back = torch_npu.npu_moe_finalize_routing(rows, None, None, None, weights, row_idx, None, drop_pad_mode=3)
    assert torch.allclose(back, x, atol=1e-6)


# npu_moe_re_routing


@pytest.mark.parametrize("seed", range(24))
def test_re_routing_as_the_loops(seed):
    rng = np.random.default_rng(seed)
    ranks, experts, h = int(rng.integers(1, 5)), int(rng.integers(1, 6)), int(rng.integers(1, 9))
    counts = rng.integers(0, 4, (ranks, experts))
    total = int(counts.sum())
    dtype = [torch.bfloat16, torch.float16, torch.int8][seed % 3]
    tokens = (draw(rng, (total, h)) * 50).to(dtype)
    scales = [None, draw(rng, (total,)), draw(rng, (total, 3))][seed % 3]
    count_type = [torch.int32, torch.int64][seed % 2]
    came = {}  # (rank, expert) -> rows
    at = 0
    for r in range(ranks):
        for e in range(experts):
            came[r, e] = list(range(at, at + counts[r, e]))
            at += counts[r, e]
    order = [row for e in range(experts) for r in range(ranks) for row in came[r, e]]
    for num_type in (0, 1):
        for idx_type in (0, 1):
            out, out_scales, idx, nums = torch_npu.npu_moe_re_routing(
                tokens, torch.from_numpy(counts).to(count_type), per_token_scales=scales,
                expert_token_num_type=num_type, idx_type=idx_type)
            same(out, tokens[order], f"seed {seed}")
            same(out_scales, torch.zeros(total) if scales is None else scales[order], f"seed {seed}")
            where = order if idx_type == 0 else [order.index(row) for row in range(total)]
            same(idx, torch.tensor(where, dtype=torch.int32), f"seed {seed}")
            sums = counts.sum(0) if num_type == 1 else counts.sum(0).cumsum()
            same(nums, torch.from_numpy(sums).to(count_type), f"seed {seed}")


# Signatures and errors


@pytest.mark.parametrize(
    "function, positional, keywords",
    [
        ("npu_moe_gating_top_k", ["x", "k"],
         dict(bias=None, k_group=1, group_count=1, group_select_mode=0, renorm=0, norm_type=0, out_flag=False,
              routed_scaling_factor=1.0, eps=1e-20)),
        ("npu_moe_init_routing_v2", ["x", "expert_idx"],
         dict(scale=None, offset=None, active_num=-1, expert_capacity=-1, expert_num=-1, drop_pad_mode=0,
              expert_tokens_num_type=0, expert_tokens_num_flag=False, quant_mode=0, active_expert_range=(),
              row_idx_type=0)),
        ("npu_moe_re_routing", ["tokens", "expert_token_num_per_rank"],
         dict(per_token_scales=None, expert_token_num_type=1, idx_type=0)),
        ("npu_moe_finalize_routing",
         ["expanded_permuted_rows", "skip1", "skip2", "bias", "scales", "expanded_src_to_dst_row",
          "export_for_source_row", "drop_pad_mode"], {}),
    ],
)
def test_signatures_are_torch_npus(function, positional, keywords):
    parameters = inspect.signature(getattr(torch_npu, function)).parameters.values()
    assert [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD] == positional
    assert {p.name: p.default for p in parameters if p.kind == p.KEYWORD_ONLY} == keywords


X, IDS = torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int32)
EACH = IDS.view(-1)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: torch_npu.npu_moe_gating_top_k(torch.zeros(2, 4, dtype=torch.float64), 1), "x is torch.float64"),
        (lambda: torch_npu.npu_moe_gating_top_k(torch.zeros(4), 1), r"x is \[4\]"),
        (lambda: torch_npu.npu_moe_gating_top_k(torch.zeros(2, 4), 5), "k is 5, need 1 to 4"),
        (lambda: torch_npu.npu_moe_gating_top_k(torch.zeros(2, 4), 1, group_count=3), "group_count is 3"),
        (lambda: torch_npu.npu_moe_gating_top_k(torch.zeros(2, 4), 1, k_group=2), "k_group is 2"),
        (lambda: torch_npu.npu_moe_gating_top_k(torch.zeros(2, 4), 1, norm_type=2), "norm_type is 2"),
        (lambda: torch_npu.npu_moe_gating_top_k(torch.zeros(2, 4), 1, bias=torch.zeros(3)), r"bias is \[3\]"),
        (lambda: torch_npu.npu_moe_gating_top_k(torch.zeros(2, 4, device="meta"), 1), "device meta"),
        (lambda: torch_npu.npu_moe_init_routing_v2(X, IDS, quant_mode=-1), "active_expert_range"),
        (lambda: torch_npu.npu_moe_init_routing_v2(torch.zeros(3, 3), IDS, expert_num=4, quant_mode=-1), "expert_idx"),
        (lambda: torch_npu.npu_moe_init_routing_v2(X, IDS.long(), expert_num=4), "torch.int64"),
        (lambda: torch_npu.npu_moe_init_routing_v2(X, IDS, expert_num=4), "scale is None"),
        (lambda: torch_npu.npu_moe_init_routing_v2(X, IDS, expert_num=4, quant_mode=3), "quant_mode is 3"),
        (lambda: torch_npu.npu_moe_init_routing_v2(X.to(torch.int8), IDS, expert_num=4, quant_mode=1),
         "torch.int8"),
        (lambda: torch_npu.npu_moe_init_routing_v2(X, IDS, expert_num=4, quant_mode=1,
                                                   scale=torch.zeros(3, 3)),
         r"scale is \[3, 3\]"),
        (lambda: torch_npu.npu_moe_init_routing_v2(X, IDS, expert_num=4, quant_mode=-1,
                                                   drop_pad_mode=1), "expert_capacity is -1"),
        (lambda: torch_npu.npu_moe_finalize_routing(X, None, None, None, None, EACH + 2, None),
         "has 2, need -1 to 1"),
        (lambda: torch_npu.npu_moe_finalize_routing(X, torch.zeros(1, 3), None, None, None, EACH,
                                                    None), r"skip1 is \[1, 3\]"),
        (lambda: torch_npu.npu_moe_finalize_routing(X, None, None, None, torch.ones(3, 1), EACH,
                                                    None), "2 entries"),
        (lambda: torch_npu.npu_moe_finalize_routing(X, None, None, X, None, EACH,
                                                    None), "export_for_source_row is a NoneType"),
        (lambda: torch_npu.npu_moe_finalize_routing(X, None, None, None, None, EACH, None, 4),
         "drop_pad_mode is 4"),
        (lambda: torch_npu.npu_moe_finalize_routing(X, None, None, X, None, EACH, IDS + 2),
         "export_for_source_row has 2, need 0 to 1"),
        (lambda: torch_npu.npu_moe_re_routing(torch.zeros(3, 2), IDS), "sums to 0"),
        (lambda: torch_npu.npu_moe_re_routing(torch.zeros(0, 2), torch.tensor([[1, -1]])), "need 0 or more"),
        (lambda: torch_npu.npu_moe_re_routing(torch.zeros(0, 2), IDS, idx_type=2), "idx_type is 2"),
    ],
)
def test_errors_name_the_value(call, message):
    with pytest.raises(ferry.InvalidArgument, match=message):
        call()
