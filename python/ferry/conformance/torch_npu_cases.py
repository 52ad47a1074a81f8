"""Cases of torch_npu's dispatch and combine: the inputs of all ranks from a seed, the calls, and comparisons of their
results with torch_npu_oracle. `api` is the module with torch_npu's functions.
"""

import numpy as np
import torch

from . import torch_npu_oracle as oracle

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def draw(rng, shape, dtype=FP32):
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(dtype)


def make_case(seed, *, bs=5, mask=None, distinct=True, negative=False, unequal=False, token_scales=None,
              factor_shape=None, shared_x=False, **fields):
    """Makes a Case with the inputs of all ranks. `mask` is None, "prefix", "any" (one dimension) or "entries" (two)."""
    rng = np.random.default_rng(seed)
    case = oracle.Case(**{"ep": 2, "moe": 8, "h": 48, "k": 3, **fields})
    experts = case.moe + case.zero + case.copy + case.constant
    case.global_bs = bs * case.ep if unequal else case.global_bs
    for _ in range(case.size):
        n = int(rng.integers(0, bs + 1)) if unequal else bs
        ids = (np.stack([rng.permutation(experts)[: case.k] for _ in range(n)]) if distinct and n
               else rng.integers(0, experts, (n, case.k)))
        if negative:
            ids[rng.random(ids.shape) < 0.3] = -1
        inputs = oracle.Inputs(draw(rng, (n, case.h), case.dtype), torch.from_numpy(ids.astype(np.int32)),
                               weights=torch.rand(n, case.k, generator=torch.Generator().manual_seed(seed)))
        if case.quant_mode and n:
            inputs.x[0] = 0
        if mask == "prefix":
            inputs.mask = torch.arange(n) < rng.integers(0, n + 1)
        elif mask is not None:
            inputs.mask = torch.from_numpy(rng.random((n,) if mask == "any" else (n, case.k)) < 0.6)
        if token_scales is not None:
            inputs.token_scales = draw(rng, (n,) + token_scales)
        inputs.shared_x = draw(rng, (n, case.h), case.dtype) if shared_x else None
        inputs.residual = draw(rng, (n, case.h), case.dtype) if case.gamma is not None else None
        case.ranks.append(inputs)
    if factor_shape is not None:
        rows = case.shared + case.moe
        shape = {"one": (1,), "channels": (case.h,), "rows": (rows, 1), "all": (rows, case.h)}[factor_shape]
        case.factors = draw(rng, shape) * (20 if case.quant_mode == 1 else 1)
    if case.constant:
        case.alpha1, case.alpha2, case.v = (draw(rng, (case.constant, case.h), case.dtype) for _ in range(3))
    return case


def common(case, rank):
    """Returns the keyword arguments that dispatch and combine have in common."""
    given = dict(group_ep="ep", ep_world_size=case.ep, ep_rank_id=rank // case.tp, moe_expert_num=case.moe,
                 shared_expert_num=case.shared_num, shared_expert_rank_num=case.shared_ranks,
                 global_bs=case.global_bs, x_active_mask=case.ranks[rank].mask)
    if case.tp > 1:
        given.update(group_tp="tp", tp_world_size=case.tp, tp_rank_id=rank % case.tp)
    return given


def specials(case):
    return dict(zero_expert_num=case.zero, copy_expert_num=case.copy, const_expert_num=case.constant)


def play_dispatch(api, case, rank):
    inputs = case.ranks[rank]
    scales = inputs.token_scales if inputs.token_scales is not None else case.factors
    given = dict(common(case, rank), scales=scales, quant_mode=case.quant_mode, expert_scales=inputs.weights,
                 expert_token_nums_type=case.nums_type)
    if case.version == 1:
        return api.npu_moe_distribute_dispatch(inputs.x, inputs.ids, **given)
    return api.npu_moe_distribute_dispatch_v2(inputs.x, inputs.ids, **given, **specials(case))


def play_combine(api, case, rank, dispatched, expert_x):
    inputs = case.ranks[rank]
    _, _, indices, _, ep_counts, tp_counts, expand_scales = dispatched
    given = dict(common(case, rank), tp_send_counts=tp_counts, expand_scales=expand_scales)
    given.update(shared_expert_x=inputs.shared_x, comm_quant_mode=case.comm_quant_mode)
    weights = torch.empty(0) if case.plain_sum else inputs.weights
    if case.version == 1:
        return api.npu_moe_distribute_combine(expert_x, inputs.ids, indices, ep_counts, weights, **given)
    given.update(specials(case))
    if case.copy or case.constant:
        given.update(ori_x=inputs.x, const_expert_alpha_1=case.alpha1, const_expert_alpha_2=case.alpha2,
                     const_expert_v=case.v)
    if case.gamma is None:
        return api.npu_moe_distribute_combine_v2(expert_x, inputs.ids, indices, ep_counts, weights, **given)
    return api.npu_moe_distribute_combine_add_rms_norm(
        expert_x, inputs.ids, indices, ep_counts, weights, inputs.residual[:, None], case.gamma, **given,
        norm_eps=case.eps)


def bits(tensor):
    return tensor.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def check_dispatched(case, rank, results):
    want = oracle.dispatch(case, rank)
    expand_x, scales, indices, token_nums, ep_counts, tp_counts, expand_scales = results
    n, capacity = len(want["rows"]), case.tp * case.capacity(rank // case.tp)
    dtype = torch.float8_e4m3fn if case.quant_mode == 3 else torch.int8 if case.quant_mode else case.dtype
    assert expand_x.shape == (capacity, case.h) and expand_x.dtype == dtype
    if n:
        assert torch.equal(bits(expand_x[:n]), bits(want["rows"])), "expand_x"
    assert len(scales) == capacity and scales.dtype == FP32
    if want["scales"] is not None:
        assert torch.equal(scales[:n].reshape(n, -1), want["scales"]), "dynamic_scales"
        assert not scales[n:].any()
    assert indices.dtype == torch.int32
    if case.version == 1:
        assert indices.tolist() == want["expand_idx"], "expand_idx"
    else:
        entries = case.ranks[rank].ids.numel()
        assert indices.shape == (max(entries, 128 * capacity // case.tp),)
        assert indices[: 3 * n].tolist() == want["triplets"], "assist_info_for_combine"
    assert token_nums.tolist() == want["token_nums"] and token_nums.dtype == torch.int64
    assert ep_counts.tolist() == want["ep_counts"] and ep_counts.dtype == torch.int32
    assert tp_counts.tolist() == (want["tp_counts"] if case.tp > 1 else []) and tp_counts.dtype == torch.int32
    assert torch.equal(expand_scales[:n], want["weights"]) and expand_scales.shape == (capacity,), "expand_scales"


def check_combined(case, rank, results, want):
    if case.gamma is None:
        assert results.dtype == case.dtype and results.shape == want.shape
        if case.constant:  # softmax and dot products: the order of their sums is ferry's own
            assert torch.allclose(results.float(), want, rtol=2e-2, atol=2e-2)
        else:
            assert torch.equal(bits(results), bits(want.to(case.dtype))), "x"
        return
    y, rstd, x = results
    bs = len(want)
    assert torch.equal(bits(x[:, 0]), bits(want.to(case.dtype))), "x of add_rms_norm"
    assert y.shape == (bs, 1, case.h) and rstd.shape == (bs, 1, 1) and rstd.dtype == FP32
    expected_y, expected_rstd = oracle.rms_norm(case, want)
    assert torch.allclose(rstd[:, 0], expected_rstd, rtol=1e-6), "rstd"
    assert torch.allclose(y[:, 0].float(), expected_y.float(), rtol=1e-2, atol=1e-6), "y"
