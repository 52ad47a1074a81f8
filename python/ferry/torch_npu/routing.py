"""torch_npu's functions around dispatch and combine, for CPU tensors: gating, sorting by expert, and the weighted sum.
They are local and use no group. docs/torch_npu.md lists ferry's assumptions where torch_npu's documentation says
nothing. They raise ferry.InvalidArgument with the value and the limit.
"""

import math

import torch

from ferry.errors import InvalidArgument

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def npu_moe_gating_top_k(x, k, *, bias=None, k_group=1, group_count=1, group_select_mode=0, renorm=0, norm_type=0,
                         out_flag=False, routed_scaling_factor=1.0, eps=1e-20):
    """Chooses k experts for each token.

    x: logits [T, E] of float16, bfloat16 or float32. norm_type: 0 softmax, 1 sigmoid, in float32.
    bias: [E] of x's type, added for the choice only. Of group_count groups of experts only the k_group best are kept,
    by their largest value (group_select_mode 0) or by the sum of their two largest values (1). Among equal values the
    lower index is chosen. A weight is the norm of the chosen expert, divided by (the sum of the norms + eps) with
    norm_type 1 or renorm 1, and multiplied by routed_scaling_factor.

    Returns y [T, k] of x's type, largest choice first; expert_idx int32 [T, k]; out float32 [T, E], the norm of all
    experts, for any out_flag.
    """
    _check("x", x, _FLOATS, (None, None))
    experts = x.shape[1]
    _require(group_count >= 1 and experts % group_count == 0,
             f"group_count is {group_count}, need a divisor of the {experts} experts")
    in_group = experts // group_count
    _require(1 <= k_group <= group_count, f"k_group is {k_group}, need 1 to group_count {group_count}")
    _require(1 <= k <= k_group * in_group,
             f"k is {k}, need 1 to {k_group * in_group} (k_group {k_group} times {in_group} experts)")
    for name, value in {"group_select_mode": group_select_mode, "renorm": renorm, "norm_type": norm_type}.items():
        _require(value in (0, 1), f"{name} is {value}, need 0 or 1")
    norm = torch.sigmoid(x.float()) if norm_type == 1 else torch.softmax(x.float(), -1)
    choice = norm
    if bias is not None:
        _check("bias", bias, (x.dtype,), (experts,))
        choice = norm + bias.float()
    if group_count > 1:
        choice = _keep_best_groups(choice.view(-1, group_count, in_group), k_group, group_select_mode)
    expert_idx = _stable_top(choice, k)
    y = norm.gather(1, expert_idx)
    if norm_type == 1 or renorm == 1:
        y = y / (y.sum(-1, keepdim=True) + eps)
    return (y * routed_scaling_factor).to(x.dtype), expert_idx.int(), norm


def npu_moe_init_routing_v2(x, expert_idx, *, scale=None, offset=None, active_num=-1, expert_capacity=-1, expert_num=-1,
                            drop_pad_mode=0, expert_tokens_num_type=0, expert_tokens_num_flag=False, quant_mode=0,
                            active_expert_range=(), row_idx_type=0):
    """Copies each token once for each of its experts, sorted by expert, then by (token, k).

    x: [N, H] of float16, bfloat16, float32, or int8 (quant_mode -1 only). expert_idx: int32 [N, K].
    active_expert_range: [first, last) of the experts whose rows are made; empty: [0, expert_num).
    active_num: at most this many rows are made; 0 or less: all. drop_pad_mode 1: expert_capacity rows for each of
    expert_num experts, the first ones of each, zeros where an expert has fewer; active_num has no effect.
    quant_mode: -1 none, 0 static int8: x * scale + offset of the row's expert, [experts], [experts, 1] or
    [experts, H]; 1 int8 per row, with smooth scales [experts, H] or None. Experts are those in the range.
    scale with quant_mode -1: float32 [N], copied to expanded_scale.

    Returns
        expanded_x [N * K, H] or [expert_num, expert_capacity, H], zeros where no row is made.
        expanded_row_idx int32 [N * K]: row_idx_type 0: the row of (token, k), else -1; 1: the entry token * K + k of
            each row, -1 past the last (not with drop_pad_mode 1).
        expert_tokens_count_or_cumsum int64, whatever expert_tokens_num_flag says; expert_tokens_num_type 1: [experts]
            counts before rows are dropped, 0: their running sums, 2: [expert_num, 2] (expert, count) of those with
            rows, then zeros.
        expanded_scale float32 [rows]: the caller's scale or the dynamic scale of each row, else 0.
    """
    first, last = _expert_range(active_expert_range, expert_num, drop_pad_mode)
    _check_init_routing(x, expert_idx, quant_mode, drop_pad_mode, expert_tokens_num_type, row_idx_type, expert_capacity)
    entry, expert, counts = _sort_by_expert(expert_idx, first, last)
    slots = (expert_num, expert_capacity) if drop_pad_mode == 1 else (expert_idx.numel(),)
    slot = torch.arange(len(entry))
    if drop_pad_mode == 1:
        place = slot - (counts.cumsum(0) - counts)[expert]
        slot = (expert * expert_capacity + place).masked_fill(place >= expert_capacity, -1)
    elif active_num > 0:
        slot[active_num:] = -1
    made = slot >= 0
    entry, expert, slot = entry[made], expert[made], slot[made]
    rows, scales = _scaled_rows(x, scale, offset, quant_mode, entry // expert_idx.shape[1], expert, last - first)
    expanded_x = rows.new_zeros(math.prod(slots), x.shape[1])
    expanded_x[slot] = rows
    expanded_scale = torch.zeros(math.prod(slots))
    expanded_scale[slot] = scales
    row_idx = torch.full((expert_idx.numel(),), -1, dtype=torch.int32)
    where, what = (slot, entry) if row_idx_type == 1 else (entry, slot)
    row_idx[where] = what.int()
    tokens = _expert_tokens(counts, first, expert_num if expert_num > 0 else last, expert_tokens_num_type)
    return expanded_x.view(*slots, x.shape[1]), row_idx, tokens, expanded_scale


def npu_moe_finalize_routing(expanded_permuted_rows, skip1, skip2, bias, scales, expanded_src_to_dst_row,
                             export_for_source_row, drop_pad_mode=0):
    """Sums the experts' rows of each token: skip1 + skip2 + sum over k of
    scales[i, k] * (row(i, k) + bias[expert(i, k)]), in k order in float32, rounded once.

    expanded_permuted_rows: [N * K, H], or [experts, capacity, H] with drop_pad_mode 1 and 3. The rest of its type:
    skip1, skip2 [N, H], bias [experts, H], scales [N, K], each None for nothing (scales None: 1, and K = 1).
    expanded_src_to_dst_row: int32 [N * K], the row of entry i + k * N (drop_pad_mode 0, 1) or i * K + k (2, 3); -1: a
    row of zeros. export_for_source_row: int32 [N, K], the experts whose bias is taken; needed with bias.

    Returns [N, H] of the rows' type.
    """
    dtype, tokens, row_of = _check_finalize_routing(
        expanded_permuted_rows, scales, expanded_src_to_dst_row, drop_pad_mode)
    hidden, top_k = expanded_permuted_rows.shape[-1], row_of.shape[1]
    rows = expanded_permuted_rows.reshape(-1, hidden).float()
    out = torch.zeros(tokens, hidden)
    for name, skip in {"skip1": skip1, "skip2": skip2}.items():
        if skip is not None:
            _check(name, skip, (dtype,), (tokens, hidden))
            out += skip.float()
    if bias is not None:
        _check("bias", bias, (dtype,), (None, hidden))
        _check("export_for_source_row", export_for_source_row, (torch.int32,), (tokens, top_k))
        _check_range("export_for_source_row", export_for_source_row, 0, len(bias))
    for k in range(top_k):
        there = row_of[:, k] >= 0
        summand = torch.zeros(tokens, hidden)
        summand[there] = rows[row_of[there, k]]
        if bias is not None:
            summand += bias.float()[export_for_source_row[:, k].long()]
        out += summand if scales is None else scales[:, k : k + 1].float() * summand
    return out.to(dtype)


def npu_moe_re_routing(
    tokens, expert_token_num_per_rank, *, per_token_scales=None, expert_token_num_type=1, idx_type=0
):
    """Reorders rows that came in order of (source rank, expert) to (expert, source rank), as grouped matmuls need them.

    tokens: [A, H] of any type. expert_token_num_per_rank: int32 or int64 [ranks, experts], A in all.
    per_token_scales: [A] or [A, n], or None.

    Returns permute_tokens [A, H]; permute_per_token_scales, zeros float32 [A] without scales; permute_token_idx int32
    [A], idx_type 0: where each row came from, 1: where each row went; expert_token_num [experts] of the counts' type,
    expert_token_num_type 1: counts, 0: running sums.
    """
    _check("tokens", tokens, None, (None, None))
    _check("expert_token_num_per_rank", expert_token_num_per_rank, (torch.int32, torch.int64), (None, None))
    for name, value in {"expert_token_num_type": expert_token_num_type, "idx_type": idx_type}.items():
        _require(value in (0, 1), f"{name} is {value}, need 0 or 1")
    counts = expert_token_num_per_rank.long()
    total = int(counts.sum())
    _require(bool((counts >= 0).all()), f"expert_token_num_per_rank is {counts.tolist()}, need 0 or more")
    _require(total == len(tokens), f"expert_token_num_per_rank sums to {total}, tokens has {len(tokens)} rows")
    # Rows of one (rank, expert) are adjacent, so a stable sort by expert gives the new order.
    expert_of_row = torch.arange(counts.shape[1]).repeat(counts.shape[0]).repeat_interleave(counts.reshape(-1))
    source = torch.sort(expert_of_row, stable=True).indices
    if per_token_scales is None:
        scales = torch.zeros(total)
    else:
        _require(len(per_token_scales) == total, f"per_token_scales has {len(per_token_scales)} rows, tokens {total}")
        scales = per_token_scales[source]
    idx = source if idx_type == 0 else torch.argsort(source)
    numbers = counts.sum(0)
    numbers = numbers if expert_token_num_type == 1 else numbers.cumsum(0)
    return tokens[source], scales, idx.int(), numbers.to(expert_token_num_per_rank.dtype)


def _require(holds, message):
    if not holds:
        raise InvalidArgument(message)


def _check(name, tensor, dtypes, shape):
    """Raises InvalidArgument unless `tensor` is on the CPU and has one of the dtypes (None: any) and the shape (None:
    any extent)."""
    _require(isinstance(tensor, torch.Tensor), f"{name} is a {type(tensor).__name__}, need a tensor")
    _require(tensor.device.type == "cpu", f"{name} is on device {tensor.device}, need cpu")
    _require(dtypes is None or tensor.dtype in dtypes,
             f"{name} is {tensor.dtype}, need {' or '.join(str(d) for d in dtypes or ())}")
    fits = len(tensor.shape) == len(shape) and all(w is None or w == s for w, s in zip(shape, tensor.shape))
    wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
    _require(fits, f"{name} is {list(tensor.shape)}, need [{wanted}]")


def _check_range(name, indices, first, end):
    for index in indices.aminmax() if indices.numel() else ():
        _require(first <= index < end, f"{name} has {index}, need {first} to {end - 1}")


def _stable_top(values, k):
    return torch.sort(values, dim=-1, descending=True, stable=True).indices[:, :k]


def _keep_best_groups(choice, k_group, group_select_mode):
    """Returns choice [T, groups, experts of a group] as [T, E], with -inf in the groups that are not chosen."""
    best = choice.topk(min(1 + group_select_mode, choice.shape[-1]), -1).values.sum(-1)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, _stable_top(best, k_group), True)
    return choice.masked_fill(~kept[..., None], float("-inf")).flatten(1)


def _expert_range(active_expert_range, expert_num, drop_pad_mode):
    given = list(active_expert_range) if active_expert_range else [0, expert_num]
    _require(len(given) == 2 and 0 <= given[0] < given[1],
             f"active_expert_range is {given}, need [first, last), 0 <= first < last (empty: all of expert_num)")
    _require(expert_num <= 0 or given[1] <= expert_num,
             f"active_expert_range is {given}, expert_num is {expert_num}")
    _require(drop_pad_mode != 1 or given == [0, expert_num],
             f"active_expert_range is {given}, need [0, expert_num {expert_num}) with drop_pad_mode 1")
    return given


def _check_init_routing(x, expert_idx, quant_mode, drop_pad_mode, tokens_num_type, row_idx_type, expert_capacity):
    _check("x", x, _FLOATS + (torch.int8,), (None, None))
    _check("expert_idx", expert_idx, (torch.int32,), (x.shape[0], None))
    _require(quant_mode in (-1, 0, 1), f"quant_mode is {quant_mode}, need -1 none, 0 static or 1 int8 per row")
    _require(quant_mode == -1 or x.dtype != torch.int8,
             f"x is torch.int8, need a float type with quant_mode {quant_mode}")
    _require(drop_pad_mode in (0, 1), f"drop_pad_mode is {drop_pad_mode}, need 0 or 1")
    _require(tokens_num_type in (0, 1, 2), f"expert_tokens_num_type is {tokens_num_type}, need 0, 1 or 2")
    _require(row_idx_type in (0, 1), f"row_idx_type is {row_idx_type}, need 0 or 1")
    if drop_pad_mode == 1:
        _require(row_idx_type == 0, "row_idx_type is 1, need 0 with drop_pad_mode 1")
        _require(expert_capacity >= 1, f"expert_capacity is {expert_capacity}, need 1 or more with drop_pad_mode 1")


def _check_finalize_routing(rows, scales, src_to_dst_row, drop_pad_mode):
    """Checks the arguments. Returns (the type of the rows, the number of tokens, the row of each (token, k) as
    [tokens, K])."""
    _require(drop_pad_mode in (0, 1, 2, 3), f"drop_pad_mode is {drop_pad_mode}, need 0 to 3")
    _check("expanded_permuted_rows", rows, _FLOATS, (None,) * (3 if drop_pad_mode in (1, 3) else 2))
    _check("expanded_src_to_dst_row", src_to_dst_row, (torch.int32,), (None,))
    tokens, top_k = len(src_to_dst_row), 1
    if scales is not None:
        _check("scales", scales, (rows.dtype, torch.float32), (None, None))
        tokens, top_k = scales.shape
    _require(tokens * top_k == len(src_to_dst_row),
             f"expanded_src_to_dst_row has {len(src_to_dst_row)} entries, scales is [{tokens}, {top_k}]")
    _check_range("expanded_src_to_dst_row", src_to_dst_row, -1, rows.shape[:-1].numel())
    row_of = src_to_dst_row.long()
    return rows.dtype, tokens, row_of.view(tokens, top_k) if drop_pad_mode >= 2 else row_of.view(top_k, tokens).t()


def _sort_by_expert(expert_idx, first, last):
    """Returns (the entries token * K + k whose experts are in [first, last), sorted by expert; the expert of each
    entry, counted from `first`; the number of entries of each expert)."""
    experts = expert_idx.reshape(-1).long()
    inside = (experts >= first) & (experts < last)
    entry = torch.sort(experts.masked_fill(~inside, last), stable=True).indices[: int(inside.sum())]
    expert = experts[entry] - first
    return entry, expert, torch.bincount(expert, minlength=last - first)


def _scaled_rows(x, scale, offset, quant_mode, token, expert, num_experts):
    """Returns (rows of x, quantised by quant_mode; the scale of each row)."""
    rows = x[token]
    if quant_mode == -1:
        if scale is None:
            return rows, torch.zeros(len(token))
        _check("scale", scale, (torch.float32,), (x.shape[0],))
        return rows, scale[token]
    rows = rows.float()
    if quant_mode == 0:
        _require(scale is not None, "scale is None, quant_mode 0 needs [experts], [experts, 1] or [experts, H]")
        rows = rows * _of_experts("scale", scale, x, num_experts)[expert]
        if offset is not None:
            rows = rows + _of_experts("offset", offset, x, num_experts)[expert]
        return rows.round().clamp(-128, 127).to(torch.int8), torch.zeros(len(token))
    if scale is not None:
        rows = rows * _of_experts("scale", scale, x, num_experts)[expert]
    scales = rows.abs().amax(-1) / 127 if rows.numel() else torch.zeros(len(token))
    divisors = torch.where(scales > 0, scales, torch.ones(()))  # a row of zeros has scale 0 and stays zeros
    return (rows / divisors[:, None]).round().to(torch.int8), scales


def _of_experts(name, factors, x, num_experts):
    """Checks `factors`, which are [experts], [experts, 1] or [experts, H], or one row for all experts."""
    _check(name, factors, (torch.float32,), (None,) * factors.dim())
    rows = factors.reshape(len(factors), -1)
    _require(factors.dim() in (1, 2) and len(rows) in (1, num_experts) and rows.shape[1] in (1, x.shape[1]),
             f"{name} is {list(factors.shape)}, need 1 or {num_experts} rows of 1 or {x.shape[1]}")
    return rows.expand(num_experts, -1)


def _expert_tokens(counts, first, expert_num, tokens_num_type):
    if tokens_num_type == 1:
        return counts
    if tokens_num_type == 0:
        return counts.cumsum(0)
    pairs = torch.zeros(expert_num, 2, dtype=torch.int64)
    used = counts.nonzero()[:, 0]
    pairs[: len(used)] = torch.stack([used + first, counts[used]], 1)
    return pairs
