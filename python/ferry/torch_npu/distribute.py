"""torch_npu's npu_moe_distribute_* send MoE tokens to the ranks of their experts and return the results. They are
collective: every rank of the group makes the same calls in the same order. docs/cann.md describes the operators;
signatures, the order of rows, and shapes are those of torch_npu.

Shapes: Bs tokens of this rank, H hidden, K top-k, ep = ep_world_size, tp = max(tp_world_size, 1), localE experts of
this rank (1 on a shared-expert rank), A rows that this rank can receive: ep * Bs * min(localE, K) for experts
(global_bs instead of ep * Bs when given), R of them received.

Errors: wrong arguments (dtype, shape, device, strides, values) raise ferry.InvalidArgument on the rank that gave them
and ferry.PeerRejected on the other ranks; the group can be used after that. Other errors of ferry are PeerLost, Timeout
and Capacity.
"""

from ferry.torch_npu.groups import communicator_of


def npu_moe_distribute_dispatch(x, expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, *, scales=None,
                                x_active_mask=None, expert_scales=None, group_tp="", tp_world_size=0, tp_rank_id=0,
                                expert_shard_type=0, shared_expert_num=1, shared_expert_rank_num=0, quant_mode=0,
                                global_bs=0, expert_token_nums_type=1):
    """Does what npu_moe_distribute_dispatch_v2 does, with two differences. Each rank distributes its tokens over the
    shared-expert ranks, as in version 1. And the third result is expand_idx int32 [Bs * K]: how many earlier entries of
    this rank that are sent have the same expert id, and -1 for an entry that is not sent.
    """
    return communicator_of(group_ep).dispatch(dict(locals(), version=1))


def npu_moe_distribute_dispatch_v2(x, expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, *, scales=None,
                                   x_active_mask=None, expert_scales=None, elastic_info=None, performance_info=None,
                                   group_tp="", tp_world_size=0, tp_rank_id=0, expert_shard_type=0, shared_expert_num=1,
                                   shared_expert_rank_num=0, quant_mode=0, global_bs=0, expert_token_nums_type=1,
                                   comm_alg="", zero_expert_num=0, copy_expert_num=0, const_expert_num=0, y_dtype=None,
                                   x_dtype=None, scales_dtype=None):
    """Sends each token to the ranks of its experts.

    x: bfloat16, float16 or float32 [Bs, H]; with quant_mode 0 also a type of one byte, or int32 (packed int4). Rows
        may have a pitch.
    expert_ids: int32 [Bs, K]; -1 is not sent. Special experts' ids follow moe_expert_num and are not sent either.
    scales: float32. quant_mode 1: [1], [H] or [shared + moe, 1 or H]; 2: the same, or None; 0: [Bs] or [Bs, n], which
        are sent to dynamic_scales.
    x_active_mask: bool [Bs] or [Bs, K], any pattern. expert_scales: float32 [Bs, K], sent to expand_scales.
    elastic_info: int32 [4 + 2 * ep]. performance_info: int64 [ep], the longest wait for each source, microseconds.
    quant_mode: 0 none, 1 static int8, 2 int8 per row, 3 float8_e4m3fn per 128 channels.
    y_dtype, x_dtype, scales_dtype: None, or the type that expand_x, x and scales have (a torch.dtype or its number).

    Returns, with rows ordered by local expert, source rank, token:
        expand_x [tp * A, H]: of x's type, int8 or float8_e4m3fn. Rows from R on are not written: undefined.
        dynamic_scales float32 [tp * A], quant_mode 3: [tp * A, ceil(H / 128)]; 0 where nothing was received.
        assist_info_for_combine int32 [max(Bs * K, A * 128)]: (source rank, token, k) of each row; undefined from 3 * R.
        expert_token_nums int64 [localE]: counts, or running sums with expert_token_nums_type 0. ep_recv_counts int32
        [tp * localE * ep]: running sums over (local expert, source). tp_recv_counts int32 [tp_world_size]: rows by
        tp_rank. expand_scales float32 [tp * A]: each row's weight; 0 without expert_scales.
    """
    return communicator_of(group_ep).dispatch(dict(locals(), version=4))


def npu_moe_distribute_combine(expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, group_ep, ep_world_size,
                               ep_rank_id, moe_expert_num, *, tp_send_counts=None, x_active_mask=None,
                               activation_scale=None, weight_scale=None, group_list=None, expand_scales=None,
                               shared_expert_x=None, group_tp="", tp_world_size=0, tp_rank_id=0, expert_shard_type=0,
                               shared_expert_num=1, shared_expert_rank_num=0, global_bs=0, out_dtype=0,
                               comm_quant_mode=0, group_list_type=0):
    """Does what npu_moe_distribute_combine_v2 does, after npu_moe_distribute_dispatch. expand_idx is the third result
    of the dispatch. activation_scale, weight_scale and group_list are reserved and must be None; out_dtype must be 0.
    """
    return communicator_of(group_ep).combine(dict(locals(), version=1))


def npu_moe_distribute_combine_v2(expand_x, expert_ids, assist_info_for_combine, ep_send_counts, expert_scales,
                                  group_ep, ep_world_size, ep_rank_id, moe_expert_num, *, tp_send_counts=None,
                                  x_active_mask=None, expand_scales=None, shared_expert_x=None, elastic_info=None,
                                  ori_x=None, const_expert_alpha_1=None, const_expert_alpha_2=None, const_expert_v=None,
                                  performance_info=None, group_tp="", tp_world_size=0, tp_rank_id=0,
                                  expert_shard_type=0, shared_expert_num=1, shared_expert_rank_num=0, global_bs=0,
                                  comm_quant_mode=0, comm_alg="", zero_expert_num=0, copy_expert_num=0,
                                  const_expert_num=0):
    """Sends the rows of the experts back. x[t] is the sum over k of expert_scales[t, k] * row(t, k), in k order in
    float32, plus the rows of shared experts without weights and shared_expert_x[t]. It is rounded once.

    expand_x: bfloat16, float16 or float32 [R or more, H] in dispatch's order; rows from R on are not read.
    expert_ids, x_active_mask, elastic_info: those of the dispatch; the routing follows from them.
    assist_info_for_combine, ep_send_counts, tp_send_counts: dispatch's third, fifth and sixth results.
    expert_scales: float32 [Bs, K], or empty for a plain sum. expand_scales is not used, since combine applies weights.
    shared_expert_x: [Bs, H] or [b, s, H] of b * s = Bs. ori_x: [Bs, H], the inputs of copy and constant experts.
    const_expert_alpha_1, const_expert_alpha_2, const_expert_v: [const_expert_num, H]. All of expand_x's type.
    comm_quant_mode: 0 none, 2 rows travel as int8 with a scale per 8 elements.

    Returns x [Bs, H] of expand_x's type; zeros (plus shared_expert_x) for tokens that take no part.
    """
    return communicator_of(group_ep).combine(dict(locals(), version=4))


def npu_moe_distribute_combine_add_rms_norm(expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, residual_x,
                                            gamma, group_ep, ep_world_size, ep_rank_id, moe_expert_num, *,
                                            tp_send_counts=None, x_active_mask=None, activation_scale=None,
                                            weight_scale=None, group_list=None, expand_scales=None,
                                            shared_expert_x=None, elastic_info=None, ori_x=None,
                                            const_expert_alpha_1=None, const_expert_alpha_2=None, const_expert_v=None,
                                            group_tp="", tp_world_size=0, tp_rank_id=0, expert_shard_type=0,
                                            shared_expert_num=1, shared_expert_rank_num=0, global_bs=0, out_dtype=0,
                                            comm_quant_mode=0, group_list_type=0, comm_alg="", norm_eps=1e-06,
                                            zero_expert_num=0, copy_expert_num=0, const_expert_num=0):
    """Combines, adds residual_x [Bs, 1, H] before the sum is rounded, and applies RMSNorm with gamma [H]; both of
    expand_x's type. expand_idx: npu_moe_distribute_dispatch_v2's third result. The rest is as for combine_v2.

    Returns y [Bs, 1, H] (normalised), rstd float32 [Bs, 1, 1], x [Bs, 1, H] (sum + residual_x).
    """
    arguments = dict(locals(), version=4)
    arguments["assist_info_for_combine"] = arguments.pop("expand_idx")
    return communicator_of(group_ep).combine_add_rms_norm(arguments)
