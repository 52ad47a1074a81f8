"""ferry.torch_npu's dispatch and combine: against the oracle, the golden vector of CANN's documentation, and in the
shape of an engine's MoE layer. Ranks are threads."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ferry  # noqa: E402
from ferry.conformance import torch_npu_oracle as oracle  # noqa: E402
from ferry.conformance.torch_npu_cases import (  # noqa: E402
    BF16, FP16, FP32, bits, check_combined, check_dispatched, draw, make_case, play_combine, play_dispatch,
)
from ferry import torch_npu  # noqa: E402

HAS_FP8 = hasattr(torch, "float8_e4m3fn")
NEEDS_FP8 = pytest.mark.skipif(not HAS_FP8, reason="this torch has no float8_e4m3fn")


def play(case, expert_rows, rounds=1):
    """Per rank (dispatch's results, combine's), of the last round."""

    def body(group):
        with torch_npu.register_group("ep", group, group_tp="tp"):
            for _ in range(rounds):
                dispatched = play_dispatch(torch_npu, case, group.rank)
                rows = expert_rows[group.rank]
                expert_x = torch.full((len(dispatched[0]), case.h), float("nan"), dtype=case.dtype)
                expert_x[: len(rows)] = rows  # rows that were not received are never read
                combined = play_combine(torch_npu, case, group.rank, dispatched, expert_x)
            return dispatched, combined

    return ferry.run_threads(case.size, body, deadline=20)


def check(case):
    rng = np.random.default_rng(99)
    expert_rows = [draw(rng, (len(oracle.flatten(case, r)), case.h), case.dtype) for r in range(case.size)]
    wanted = oracle.combine(case, expert_rows)
    for rank, (dispatched, combined) in enumerate(play(case, expert_rows)):
        check_dispatched(case, rank, dispatched)
        check_combined(case, rank, combined, wanted[rank])


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize(
    "fields",
    [
        dict(),
        dict(ep=1, moe=4),
        dict(ep=3, moe=7, k=7, h=33),  # experts that do not divide by ranks
        dict(ep=4, moe=2, k=1),  # ranks without experts
        dict(version=1),
        dict(version=1, ep=4, moe=6, nums_type=0, shared_x=True),
        dict(nums_type=0),
        dict(unequal=True, ep=3, moe=6, bs=6),
        dict(unequal=True, mask="any", ep=3, moe=6),
        dict(bs=0),
        dict(distinct=False, negative=True),
        dict(shared_x=True),
        dict(plain_sum=True),
        dict(tp=2, moe=2, k=2),
        dict(tp=2, ep=3, moe=3, k=3, mask="entries"),
    ],
    ids=str,
)
def test_plain_pairs(dtype, fields):
    check(make_case(1, dtype=dtype, **fields))


@pytest.mark.parametrize("mask", ["prefix", "any", "entries"])
@pytest.mark.parametrize("version", [1, 4])
def test_masks(mask, version):
    check(make_case(2, mask=mask, version=version, bs=7))


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("quant_mode, factor_shape", [(1, "one"), (1, "channels"), (1, "rows"), (1, "all"), (2, None),
                                                      (2, "all"), (2, "channels"),
                                                      pytest.param(3, None, marks=NEEDS_FP8)])
def test_quantised_dispatch(dtype, quant_mode, factor_shape):
    check(make_case(3, dtype=dtype, quant_mode=quant_mode, factor_shape=factor_shape, h=160))
    check(make_case(4, dtype=dtype, quant_mode=quant_mode, factor_shape=factor_shape, ep=4, moe=6, k=4, shared_num=2,
                    shared_ranks=2, mask="entries", h=16))


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_quantised_combine(dtype):
    check(make_case(5, dtype=dtype, comm_quant_mode=2, h=40))
    check(make_case(6, dtype=dtype, comm_quant_mode=2, quant_mode=2, h=44, shared_ranks=1, shared_x=True))


@pytest.mark.parametrize("token_scales", [(), (1,), (5,)])
def test_scales_of_the_caller_travel_with_unquantised_tokens(token_scales):
    check(make_case(7, token_scales=token_scales, ep=3, moe=6))


@pytest.mark.parametrize(
    "fields",
    [dict(ep=3, moe=4, shared_ranks=1), dict(ep=6, moe=4, shared_ranks=4, shared_num=2),
     dict(ep=4, moe=4, shared_ranks=3, shared_num=3, mask="entries", negative=True),
     dict(ep=5, moe=6, shared_ranks=2, version=1, bs=7), dict(ep=4, moe=3, shared_ranks=3, version=1, unequal=True)],
    ids=str,
)
def test_shared_expert_ranks(fields):
    check(make_case(8, **fields))
    check(make_case(9, dtype=FP16, **fields))


@pytest.mark.parametrize("fields", [dict(zero=2), dict(copy=2), dict(constant=2), dict(zero=1, copy=2, constant=2, k=8),
                                    dict(zero=3, copy=1, shared_ranks=1, mask="entries", moe=2)], ids=str)
def test_special_experts(fields):
    check(make_case(10, **fields))
    check(make_case(11, dtype=FP16, shared_x=True, **fields))


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("fields", [dict(), dict(mask="prefix", shared_x=True), dict(zero=1, copy=1, k=5),
                                    dict(shared_ranks=1, ep=3)], ids=str)
def test_add_rms_norm(dtype, fields):
    gamma = draw(np.random.default_rng(12), (48,), dtype)
    check(make_case(12, dtype=dtype, gamma=gamma, eps=1e-5, **fields))


@pytest.mark.parametrize("seed", range(30))
def test_random_cases(seed):
    rng = np.random.default_rng(1000 + seed)
    pick = lambda *values: values[int(rng.integers(len(values)))]  # noqa: E731
    shared_num = pick(1, 1, 2)
    shared_ranks = shared_num * pick(0, 0, 1)
    ep = pick(1, 2, 3, 4) + shared_ranks
    zero, copy = pick(0, 0, 1), pick(0, 0, 2)
    moe = pick(1, 2, 5, 8, 12)
    quant_mode = pick(0, 0, 1, 2, 3 if HAS_FP8 else 2)
    fields = dict(ep=ep, moe=moe, zero=zero, copy=copy, shared_num=shared_num, shared_ranks=shared_ranks,
                  k=int(rng.integers(1, min(moe + zero + copy, 8) + 1)), h=pick(1, 8, 31, 130),
                  dtype=pick(BF16, FP16, FP32), quant_mode=quant_mode, comm_quant_mode=pick(0, 0, 2),
                  factor_shape={1: pick("one", "all"), 2: pick(None, "all")}.get(quant_mode),
                  nums_type=pick(0, 1), plain_sum=pick(0, 0, 1) == 1, mask=pick(None, "any", "entries"),
                  negative=pick(True, False), unequal=pick(True, False), shared_x=pick(True, False), bs=pick(1, 4, 9))
    print(fields)
    check(make_case(seed, **fields))


def test_rounds_share_one_exchange_and_shapes_may_change():
    def body(group):
        rank = group.rank
        with torch_npu.register_group("ep", group):
            for bs in (3, 3, 17, 2):
                case = make_case(bs, bs=bs, ep=3, moe=6)
                rows = draw(np.random.default_rng(rank), (len(oracle.flatten(case, rank)), case.h), case.dtype)
                dispatched = play_dispatch(torch_npu, case, rank)
                check_dispatched(case, rank, dispatched)
                play_combine(torch_npu, case, rank, dispatched, rows)

    ferry.run_threads(3, body, deadline=20)


def test_rows_may_have_a_pitch_and_packed_int4_travels_as_it_is():
    def body(group):
        with torch_npu.register_group("ep", group):
            wide = torch.arange(64, dtype=FP32).view(4, 16).to(BF16)
            ids = torch.tensor([[0], [1], [0], [1]], dtype=torch.int32)
            expand_x = torch_npu.npu_moe_distribute_dispatch_v2(wide[:, :8], ids, "ep", 1, 0, 2)[0]
            packed = torch.arange(12, dtype=torch.int32).view(4, 3) * 1000003
            scales = torch.tensor([1.0, 2.0, 3.0, 4.0])
            out = torch_npu.npu_moe_distribute_dispatch_v2(
                packed, ids, "ep", 1, 0, 2, scales=scales, x_dtype=torch.int32)
            counts = out[4]
            back = torch_npu.npu_moe_distribute_combine_v2(
                torch.cat([expand_x[:4], expand_x[:4]], 1)[:, :8], ids, out[2], counts, torch.ones(4, 1), "ep", 1, 0, 2)
            return expand_x, out[0], out[1], back, wide[:, :8], packed, scales

    expand_x, packed_x, packed_scales, back, x, packed, scales = ferry.run_threads(1, body)[0]
    order = [0, 2, 1, 3]
    assert torch.equal(expand_x, x[order]) and torch.equal(back, x)
    assert packed_x.dtype == torch.int32 and torch.equal(packed_x, packed[order])
    assert torch.equal(packed_scales, scales[order])


def test_performance_info_keeps_the_longest_wait():
    def body(group):
        with torch_npu.register_group("ep", group):
            info, x, ids = torch.zeros(2, dtype=torch.int64), torch.ones(2, 8), torch.zeros(2, 1, dtype=torch.int32)
            for nap in (0.0, 0.05):
                if group.rank == 1:
                    threading.Event().wait(nap)
                torch_npu.npu_moe_distribute_dispatch_v2(x, ids, "ep", 2, group.rank, 2, performance_info=info)
            return info.tolist()

    waits = ferry.run_threads(2, body)
    assert waits[0][1] > 20_000 and waits[0][0] < 20_000


def test_elastic_info_leaves_ranks_out():
    """Rank 1 of 3 departs: ranks 0 and 2 are 0 and 1 of two, with the 4 remaining experts, numbered anew."""

    def body(group):
        x = torch.full((2, 8), 1.0 + group.rank)
        ids = torch.tensor([[0, 3], [2, 1]], dtype=torch.int32)
        info = torch.tensor([1, 2, 0, 4, 0, -1, 1, 0, 2, -1], dtype=torch.int32)
        with torch_npu.register_group("ep", group):
            whole = torch_npu.npu_moe_distribute_dispatch_v2(x, ids, "ep", 3, group.rank, 6)
            torch_npu.npu_moe_distribute_combine_v2(whole[0], ids, whole[2], whole[4], torch.ones(2, 2), "ep", 3,
                                                    group.rank, 6)
            if group.rank == 1:
                return None
            out = torch_npu.npu_moe_distribute_dispatch_v2(x, ids, "ep", 3, group.rank, 6, elastic_info=info)
            back = torch_npu.npu_moe_distribute_combine_v2(out[0], ids, out[2], out[4], torch.ones(2, 2), "ep", 3,
                                                           group.rank, 6, elastic_info=info)
            return out[0][:4, 0].tolist(), out[2][:12].tolist(), out[3].tolist(), back

    first, gone, last = ferry.run_threads(3, body, deadline=20)
    assert gone is None
    assert first[:3] == ([1, 3, 1, 3], [0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1], [2, 2])
    assert last[:3] == ([1, 3, 1, 3], [0, 1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1], [2, 2])
    assert torch.equal(first[3], torch.full((2, 8), 2.0)) and torch.equal(last[3], torch.full((2, 8), 6.0))


# The vector that CANN's documentation prints for MoeDistributeDispatch: rank 0 of 2 with 16 experts each.
GOLDEN_IDS = [11, 17, 29, 12, 24, 23, 1, 0, 16, 30, 18, 8, 2, 14, 11, 3, 30, 21, 12, 0, 10, 9, 6, 31,
              22, 27, 30, 21, 1, 24, 17, 11, 3, 19, 2, 29, 16, 13, 7, 27, 6, 29, 5, 22, 24, 19, 23, 2]
GOLDEN_EXPAND_IDX = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0,
                     0, 0, 2, 1, 1, 1, 1, 2, 1, 0, 1, 1, 1, 0, 0, 1, 1, 2, 0, 1, 2, 1, 1, 2]
GOLDEN_COUNTS = [2, 3, 5, 6, 9, 11, 13, 16, 16, 17, 18, 22, 24, 27, 28, 30,
                 31, 32, 33, 34, 35, 36, 39, 41, 43, 44, 45, 46, 47, 47, 47, 50]
GOLDEN_TOKEN_NUMS = [3, 6, 11, 16, 17, 22, 27, 30, 32, 34, 36, 41, 44, 46, 47, 50]
GOLDEN_OTHER_RANK = [1, 1, 2, 3, 1, 4, 3, 2, 1, 1, 1, 2, 1, 1, 0, 3]  # entries of rank 1 for experts 0 to 15


@pytest.mark.parametrize("top_k", [2, 3, 4, 6, 8, 12])
def test_golden_vector(top_k):
    other = [expert for expert, count in enumerate(GOLDEN_OTHER_RANK) for _ in range(count)]
    ids = [GOLDEN_IDS, other + [16 + i % 16 for i in range(48 - len(other))]]

    def body(group):
        mine = torch.tensor(ids[group.rank], dtype=torch.int32).view(-1, top_k)
        x = draw(np.random.default_rng(group.rank), (len(mine), 64), BF16)
        with torch_npu.register_group("ep", group):
            return torch_npu.npu_moe_distribute_dispatch(x, mine, "ep", 2, group.rank, 32, expert_token_nums_type=0,
                                                         global_bs=0), x

    # The other rank's ids are made up, and repeat inside a token: more rows than A is then possible, not here.
    (_, _, expand_idx, token_nums, counts, _, _), _ = ferry.run_threads(2, body)[0]
    assert expand_idx.tolist() == GOLDEN_EXPAND_IDX
    assert counts.tolist() == GOLDEN_COUNTS
    assert token_nums.tolist() == GOLDEN_TOKEN_NUMS


# An engine's MoE layer


class MoeLayer:
    """A layer as engines on NPUs write it: mask and padding, gating, dispatch, grouped matmul, combine."""

    hidden, experts, top_k, padded = 64, 16, 4, 8

    def __init__(self):
        rng = np.random.default_rng(5)
        self.gate = draw(rng, (self.hidden, self.experts))
        self.bias = draw(rng, (self.experts,)) * 0.1
        self.w13 = draw(rng, (self.experts, self.hidden, 2 * 32)) / 8
        self.w2 = draw(rng, (self.experts, 32, self.hidden)) / 6

    def grouped_matmul(self, rows, weights, group_list):
        out, begin = torch.empty(len(rows), weights.shape[2]), 0
        for expert, count in enumerate(group_list.tolist()):
            out[begin : begin + count] = rows[begin : begin + count].float() @ weights[expert]
            begin += count
        return out

    def mlp(self, expand_x, dynamic_scale, group_list, rank, ranks):
        mine = slice(rank * self.experts // ranks, (rank + 1) * self.experts // ranks)
        rows = expand_x.float() * dynamic_scale[:, None] if expand_x.dtype == torch.int8 else expand_x
        gate, up = self.grouped_matmul(rows, self.w13[mine], group_list).chunk(2, -1)
        return self.grouped_matmul(torch.nn.functional.silu(gate) * up, self.w2[mine], group_list)

    def forward(self, hidden_states, group, name, quant_mode):
        num_tokens = len(hidden_states)
        padded = torch.nn.functional.pad(hidden_states, (0, 0, 0, self.padded - num_tokens))
        mc2_mask = torch.arange(self.padded) < num_tokens
        topk_weights, topk_ids, _ = torch_npu.npu_moe_gating_top_k(
            padded.float() @ self.gate, k=self.top_k, bias=self.bias, k_group=2, group_count=4, group_select_mode=1,
            renorm=0, norm_type=1, routed_scaling_factor=1, eps=float(1e-20))
        moe = dict(expert_ids=topk_ids, expert_shard_type=0, shared_expert_rank_num=0, moe_expert_num=self.experts,
                   global_bs=0, x_active_mask=mc2_mask, group_ep=name, ep_world_size=group.size, ep_rank_id=group.rank,
                   group_tp=name, tp_world_size=1, tp_rank_id=0)
        output = torch_npu.npu_moe_distribute_dispatch_v2(
            x=padded, scales=None, quant_mode=quant_mode, expert_token_nums_type=1, **moe)
        expand_x, dynamic_scale, assist_info, expert_token_nums, ep_recv_counts = output[0:5]
        # As in engines: rows that were not received are not computed, and may have any value.
        down = self.mlp(expand_x, dynamic_scale, expert_token_nums, group.rank, group.size).to(hidden_states.dtype)
        tp_send_counts = torch.empty(1, dtype=torch.int32) if quant_mode else output[5]
        return torch_npu.npu_moe_distribute_combine_v2(
            expand_x=down, expert_scales=topk_weights.to(FP32), assist_info_for_combine=assist_info,
            ep_send_counts=ep_recv_counts, tp_send_counts=tp_send_counts, expand_scales=output[6], **moe)[:num_tokens]


@pytest.mark.parametrize("quant_mode", [0, 2])
def test_moe_layer_gives_the_same_bits_on_one_rank_and_on_four(quant_mode):
    layer = MoeLayer()
    tokens = draw(np.random.default_rng(6), (8, layer.hidden), BF16)
    shares = [slice(0, 3), slice(3, 3), slice(3, 7), slice(7, 8)]

    def body(group):
        mine = tokens if group.size == 1 else tokens[shares[group.rank]]
        with torch_npu.register_group("moe", group):
            return layer.forward(mine, group, "moe", quant_mode)

    alone = ferry.run_threads(1, body)[0]
    together = torch.cat(ferry.run_threads(4, body, deadline=20))
    assert torch.equal(bits(alone), bits(together))
    dense = torch.zeros(8, layer.hidden)  # the layer without dispatch
    weights, ids, _ = torch_npu.npu_moe_gating_top_k(
        tokens.float() @ layer.gate, layer.top_k, bias=layer.bias, k_group=2, group_count=4, group_select_mode=1,
        norm_type=1)
    for t in range(8):
        for weight, e in zip(weights[t], ids[t].tolist()):
            gate, up = (tokens[t].float() @ layer.w13[e]).chunk(2)
            dense[t] += weight * ((torch.nn.functional.silu(gate) * up) @ layer.w2[e])
    assert torch.allclose(together.float(), dense, rtol=0.1, atol=0.02 if quant_mode == 0 else 0.1)
