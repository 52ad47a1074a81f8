"""What each rank must receive from a dispatch, by the names of the oracle. Rules: include/ferry/exchange.h (Received,
Scales, Handle) and docs/numerics.md, "Dispatch". Called by check.py."""

import numpy as np
from number_formats import BITS, F32, to_float32
from routing import round_up
from wire_formats import GROUP, dispatch_wire

SCALE_ALIGNMENT = 16  # of the columns of column-major scales


def received(routing, rank):
    if rank not in routing.ranks:
        return {"rows": None, "sources": None, "tokens_per_expert": None, "running_counts": None}
    here, row, num_rows = routing.rows_at(rank)
    first = np.full(num_rows, -1)  # the first entry of each row: the lowest k
    first[row[::-1]] = here[::-1]
    rows, scales = travelled(routing, first)
    sources = np.stack([routing.member, routing.token, routing.k], axis=1).astype(np.int32)
    told = {"rows": rows, "row_valid": (first >= 0).astype(np.uint8), "sources": gather(sources, first, -1)}
    told |= laid_out(routing.settings, scales, routing.expert_capacity())
    told |= counted(routing, rank)
    told |= weights_and_ids(routing, here, row, first)
    return told


def travelled(routing, entries):
    """(rows [N, H], scale bytes [N, S]) of these entries after the wire; zeros for entry -1."""
    settings, is_real = routing.settings, entries >= 0
    entry = entries[is_real]
    token = entry // routing.num_columns
    rows = of_all_tokens(routing, "tokens", settings["hidden"], BITS[settings["type"]])[token]
    if settings["wire"] == "none":
        scales = of_all_tokens(routing, "token_scales", settings["scale_bytes"], np.uint8)[token]
    elif len(rows):
        x = to_float32(rows, settings["type"])
        rows, scales, _ = dispatch_wire(settings["wire"], x, factors_of(routing, entry))
        scales = scales.view(np.uint8)
    else:
        rows, scales = rows.astype(np.uint8), np.zeros((0, scale_bytes(settings)), np.uint8)
    index = np.where(is_real, np.cumsum(is_real) - 1, -1)
    return gather(rows, index, 0), gather(scales, index, 0)


def of_all_tokens(routing, name, columns, number_type):
    """[tokens of all ranks that take part, columns]"""
    parts = []
    for rank in routing.ranks:
        given = routing.case.of_rank(name, rank)
        parts.append(np.zeros((routing.case["num_tokens"][rank], columns), number_type) if given is None else given)
    return np.concatenate(parts)


def factors_of(routing, entries):
    """[N, H]: the factors of each entry's rank and expert; 1 where the rank gave none."""
    factors = np.ones((len(entries), routing.settings["hidden"]), F32)
    for rank in routing.ranks:
        given, is_mine = routing.case.of_rank("factors", rank), routing.rank[entries] == rank
        if given is not None:
            factors[is_mine] = given[routing.factor_row[entries[is_mine]] if len(given) > 1 else 0]
    return factors


def scale_bytes(settings):
    """Of a row."""
    groups = -(-settings["hidden"] // GROUP)
    by_wire = {"int8": 4, "int8_static": 0, "fp8": 4 * groups, "fp8_pow2": 4 * groups, "fp8_ue8m0": round_up(groups, 4)}
    return by_wire.get(settings["wire"], settings["scale_bytes"])


def laid_out(settings, scales, expert_capacity):
    """scales [N, bytes] as they lie in memory."""
    num_rows, num_bytes = scales.shape
    if scales.size == 0:
        return {"scales": None}
    element_bytes = 4 if num_bytes % 4 == 0 else 1
    columns = num_bytes // element_bytes
    section_rows = expert_capacity if settings["layout"] == "padded" else num_rows
    elements = scales.reshape(-1, section_rows, columns, element_bytes)
    if settings["column_major_scales"]:
        row_stride, column_stride = element_bytes, round_up(section_rows * element_bytes, SCALE_ALIGNMENT)
        by_column = elements.transpose(0, 2, 1, 3).reshape(len(elements), columns, -1)
        memory = np.pad(by_column, ((0, 0), (0, 0), (0, column_stride - by_column.shape[2])))
        section_stride = columns * column_stride
    else:
        row_stride, column_stride, section_stride = num_bytes, element_bytes, section_rows * num_bytes
        memory = elements
    shape = np.array([columns, element_bytes, row_stride, column_stride, section_stride])
    return {"scales": memory.reshape(-1, 1), "scale_shape": shape}


def counted(routing, rank):
    counts = routing.counts(rank)
    per_expert = counts.sum(axis=(0, 2))
    told = {
        "tokens_per_expert": per_expert,
        "aligned_tokens_per_expert": round_up(per_expert, routing.settings["expert_alignment"]),
        "running_counts": np.cumsum(counts.reshape(routing.tp_size, -1), axis=1).ravel(),
    }
    if not routing.is_rank_major:
        return told | {"expert_offsets": routing.expert_offsets(rank)}
    here, row, _ = routing.rows_at(rank)
    first = here[np.unique(row, return_index=True)[1]]
    source = routing.distance(rank)[first] * routing.num_members + routing.member[first]
    rows_per_rank = np.bincount(source, minlength=routing.tp_size * routing.num_members)
    return told | {"running_rows_per_rank": np.cumsum(rows_per_rank.reshape(routing.tp_size, -1), axis=1).ravel()}


def weights_and_ids(routing, here, row, first):
    are_weights_given = any(routing.case.of_rank("topk_weights", rank) is not None for rank in routing.ranks)
    if not routing.is_rank_major:
        return {"weights": gather(routing.weight, first, 0) if are_weights_given else None}
    is_routed = routing.k[here] < routing.top_k
    here, row = here[is_routed], row[is_routed]
    ids, weights = np.full((len(first), routing.top_k), -1, np.int32), np.zeros((len(first), routing.top_k), F32)
    ids[row, routing.k[here]] = routing.local[here]
    weights[row, routing.k[here]] = routing.weight[here]
    return {"topk_ids": ids, "weights": weights if are_weights_given else None}


def gather(values, index, gap):
    """values[index], and `gap` where the index is -1."""
    gathered = np.full((len(index), *values.shape[1:]), gap, values.dtype)
    gathered[index >= 0] = values[index[index >= 0]]
    return gathered


def expand_idx(routing, source):
    """CANN's expandIdx: the place of each entry among those of its source and expert, by the oracle's received rows."""
    places = np.full(int(routing.case["num_tokens"][source]) * routing.top_k, -1, np.int32)
    for rank in routing.ranks:
        sources = routing.case.of_rank("received.sources", rank)
        running = np.concatenate([[0], routing.case.of_rank("received.running_counts", rank)])
        begin = running[np.searchsorted(running, np.arange(len(sources)), side="right") - 1]
        is_mine = sources[:, 0] == source
        _, token, k = sources[is_mine].T
        places[token * routing.top_k + k] = (np.arange(len(sources)) - begin)[is_mine]
    return places
