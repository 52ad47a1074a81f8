// Tensors of dispatch, combine and the norm that must be refused.
#include <limits>

#include "refused_calls.h"

namespace ferry::test {

constexpr auto kNull = cann::StatusCode::kNullPointer;
constexpr auto kValue = cann::StatusCode::kInvalidParameter;
constexpr auto kFit = cann::StatusCode::kTilingError;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

namespace {

using Dispatch = cann::DispatchArgs;
using Combine = cann::CombineArgs;
using Norm = cann::CombineAddRmsNormArgs;

void int8(Dispatch& a, SmallCall&) {
  a.quant_mode = 2;
  a.expand_x.dtype = DataType::kInt8;
}
void static_int8(Dispatch& a, SmallCall& c) {
  int8(a, c);
  a.quant_mode = 1;
  a.scales = {c.factors.data(), 1, 1};
}
void fp8(Dispatch& a, SmallCall&) {
  a.quant_mode = 3;
  a.expand_x.dtype = DataType::kFp8E4m3;
}
void own_scales(Dispatch& a, SmallCall& c) { a.scales = {c.factors.data(), SmallCall::kBs, 1}; }
void travelling(Dispatch& a, SmallCall& c) {
  a.expert_scales = {c.weights.data(), SmallCall::kBs, SmallCall::kK};
}
template <typename Args>
void one_tp_group(Args& a, SmallCall&) {
  a.attributes.tp_world_size = 3;
  a.attributes.tp_rank_id = a.attributes.ep_rank_id;
  a.attributes.ep_world_size = 1;
  a.attributes.ep_rank_id = 0;
}

void special(Combine& a, SmallCall& c) {
  a.attributes.copy_expert_num = 1;
  a.attributes.const_expert_num = 2;
  a.ori_x = {c.x.data(), SmallCall::kBs, SmallCall::kH, DataType::kBf16};
  a.const_expert_alpha1 = a.const_expert_alpha2 =
      a.const_expert_v = {c.zeros.data(), 2, SmallCall::kH, DataType::kBf16};
}
void shared_x(Combine& a, SmallCall& c) {
  a.shared_expert_x = {c.zeros.data(), SmallCall::kBs, SmallCall::kH, DataType::kBf16};
}
void version_3(Combine& a, SmallCall&) { a.attributes.version = 3; }

}  // namespace

const std::vector<BadCall<Dispatch>> kBadDispatches = {
    {"NullX",
     [](Dispatch& a, SmallCall&) { a.x.data = nullptr; },
     kNull,
     {"x is null", "80 elements"}},
    {"NullIds",
     [](Dispatch& a, SmallCall&) { a.expert_ids.data = nullptr; },
     kNull,
     {"expert_ids is null", "10 elements"}},
    {"XOfOtherBs",
     [](Dispatch& a, SmallCall&) { a.x.num_rows = 4; },
     kFit,
     {"x is (4, 16)", "(5, 2)"}},
    {"IdTooLarge",
     [](Dispatch&, SmallCall& c) { c.ids[5] = 6; },
     kValue,
     {"id 6", "token 2, k 1", "[-1, 6)"}},
    {"IdTooSmall",
     [](Dispatch&, SmallCall& c) { c.ids[2] = -2; },
     kValue,
     {"id -2", "token 1, k 0", "[-1, 6)"}},
    {"StaticWithoutScales",
     [](Dispatch& a, SmallCall&) { a.scales = {}; },
     kNull,
     {"scales is null", "quant_mode 1", "(1, H)"},
     static_int8},
    {"ScalesOfOtherExperts",
     [](Dispatch& a, SmallCall&) { a.scales.rows = 5; },
     kFit,
     {"scales has 5 rows", "1 or 6"},
     static_int8},
    {"ScalesOfOtherWidth",
     [](Dispatch& a, SmallCall&) { a.scales.columns = 15; },
     kFit,
     {"scales has 15 columns", "1 or H 16"},
     static_int8},
    {"NanScale",
     [](Dispatch&, SmallCall& c) { c.factors[0] = kNan; },
     kValue,
     {"scale", "nan", "finite"},
     static_int8},
    {"SmoothFp8",
     [](Dispatch& a, SmallCall& c) {
       a.scales = {c.factors.data(), 1, 1};
     },
     kFit,
     {"scales with quant_mode 3", "1 and 2"},
     fp8},
    {"OwnScalesOfOtherBs",
     [](Dispatch& a, SmallCall&) { a.scales.rows = 4; },
     kFit,
     {"scales with quant_mode 0 has 4 rows", "Bs 5"},
     own_scales},
    {"MaskOfOtherBs",
     [](Dispatch& a, SmallCall& c) {
       a.x_active_mask = {c.mask.data(), 4};
     },
     kFit,
     {"x_active_mask is (4, 1)", "(5, 1) or (5, 2)"}},
    {"MaskOfOtherK",
     [](Dispatch& a, SmallCall& c) {
       a.x_active_mask = {c.mask.data(), 5, 3};
     },
     kFit,
     {"x_active_mask is (5, 3)", "(5, 2)"}},
    {"WeightsOfOtherK",
     [](Dispatch& a, SmallCall&) { a.expert_scales.columns = 3; },
     kFit,
     {"expert_scales is (5, 3)", "(5, 2)"},
     travelling},
    {"NanWeight",
     [](Dispatch&, SmallCall& c) { c.weights[3] = kNan; },
     kValue,
     {"weight at token 1, k 1 is NaN"},
     travelling},
    {"TokenNumsType2",
     [](Dispatch& a, SmallCall&) { a.expert_token_nums_type = 2; },
     kValue,
     {"expert_token_nums_type is 2", "0 to 1"}},
    {"ShortPerformanceInfo",
     [](Dispatch& a, SmallCall& c) {
       a.performance_info = {c.waits.data(), 2};
     },
     kFit,
     {"performance_info has 2", "3 (ep)"}},
    {"NowhereForTheRows",
     [](Dispatch& a, SmallCall&) { a.expand_x = {}; },
     kNull,
     {"expand_x is null", "30 rows", "received"}},
    {"TooFewRows",
     [](Dispatch& a, SmallCall&) { a.expand_x.num_rows = 29; },
     kFit,
     {"expand_x is (29, 16)", "(30 or more, 16)"}},
    {"RowsOfOtherWidth",
     [](Dispatch& a, SmallCall&) { a.expand_x.hidden = 8; },
     kFit,
     {"expand_x is (256, 8)", "16)"}},
    {"RowsOfOtherType",
     [](Dispatch& a, SmallCall&) { a.expand_x.dtype = DataType::kBf16; },
     kValue,
     {"expand_x is bf16", "need int8", "quant_mode 2"},
     int8},
    {"NoDynamicScales",
     [](Dispatch& a, SmallCall&) { a.dynamic_scales = {}; },
     kNull,
     {"dynamic_scales is null", "30"},
     int8},
    {"ShortDynamicScales",
     [](Dispatch& a, SmallCall& c) {
       a.dynamic_scales = {c.scales.data(), 29};
     },
     kFit,
     {"dynamic_scales has 29", "30"},
     int8},
    {"ShortExpandIdx",
     [](Dispatch& a, SmallCall& c) {
       a.expand_idx = {c.expand_idx.data(), 9};
     },
     kFit,
     {"expand_idx has 9", "10 (Bs * K)"}},
    {"ShortAssistInfo",
     [](Dispatch& a, SmallCall& c) {
       a.assist_info_for_combine = {c.assist.data(), 89};
     },
     kFit,
     {"assist_info_for_combine has 89", "90"}},
    {"ShortTokenNums",
     [](Dispatch& a, SmallCall& c) {
       a.expert_token_nums = {c.token_nums.data(), 1};
     },
     kFit,
     {"expert_token_nums has 1", "2 (localE)"}},
    {"ShortCounts",
     [](Dispatch& a, SmallCall& c) {
       a.ep_recv_counts = {c.ep_counts.data(), 5};
     },
     kFit,
     {"ep_recv_counts has 5", "6 (max(tp, 1) * localE * ep)"}},
    {"ShortTpCounts",
     [](Dispatch& a, SmallCall& c) {
       a.tp_recv_counts = {c.tp_counts.data(), 2};
     },
     kFit,
     {"tp_recv_counts has 2", "3"},
     one_tp_group<Dispatch>},
    {"ShortExpandScales",
     [](Dispatch& a, SmallCall& c) {
       a.expand_scales = {c.row_weights.data(), 29};
     },
     kFit,
     {"expand_scales has 29", "30"}},
};

const std::vector<BadCall<Combine>> kBadCombines = {
    {"CommQuantMode1",
     [](Combine& a, SmallCall&) { a.comm_quant_mode = 1; },
     kValue,
     {"comm_quant_mode is 1", "0 or 2"}},
    {"CommQuantMode3",
     [](Combine& a, SmallCall&) { a.comm_quant_mode = 3; },
     kFit,
     {"comm_quant_mode is 3", "mx formats"}},
    {"OutDtype1",
     [](Combine& a, SmallCall&) { a.out_dtype = 1; },
     kValue,
     {"out_dtype is 1", "need 0"}},
    {"RowsOfInt8",
     [](Combine& a, SmallCall&) { a.expand_x.dtype = DataType::kInt8; },
     kValue,
     {"expand_x is int8", "bf16, fp16 or fp32"}},
    {"OutOfInt8",
     [](Combine& a, SmallCall&) { a.x_out.dtype = DataType::kInt8; },
     kValue,
     {"x_out is int8", "bf16, fp16 or fp32"}},
    {"NullIds",
     [](Combine& a, SmallCall&) { a.expert_ids.data = nullptr; },
     kNull,
     {"expert_ids is null", "10"}},
    {"NullRows",
     [](Combine& a, SmallCall&) { a.expand_x.data = nullptr; },
     kNull,
     {"expand_x is null"}},
    {"NullOut",
     [](Combine& a, SmallCall&) { a.x_out.data = nullptr; },
     kNull,
     {"x_out is null", "80"}},
    {"OutOfOtherShape",
     [](Combine& a, SmallCall&) { a.x_out.num_rows = 4; },
     kFit,
     {"x_out is (4, 16)", "(5 or more, 16)"}},
    {"NoWeightsBeforeVersion4",
     [](Combine& a, SmallCall&) { a.expert_scales = {}; },
     kNull,
     {"expert_scales is null", "10", "version 4"},
     version_3},
    {"WeightsOfOtherK",
     [](Combine& a, SmallCall&) { a.expert_scales.columns = 1; },
     kFit,
     {"expert_scales is (5, 1)", "(5, 2)"}},
    {"NanWeight",
     [](Combine&, SmallCall& c) { c.weights[9] = kNan; },
     kValue,
     {"weight at token 4, k 1 is NaN"}},
    {"MaskOfOtherBs",
     [](Combine& a, SmallCall& c) {
       a.x_active_mask = {c.mask.data(), 6};
     },
     kFit,
     {"x_active_mask is (6, 1)", "(5, 1)"}},
    {"ShortCounts",
     [](Combine& a, SmallCall& c) {
       a.ep_send_counts = {c.ep_counts.data(), 5};
     },
     kFit,
     {"ep_send_counts has 5", "6"}},
    {"CountsThatFall",
     [](Combine&, SmallCall& c) {
       c.ep_counts[3] = 1;
       c.ep_counts[2] = 7;
     },
     kValue,
     {"ep_send_counts goes from 7 to 1"}},
    {"MoreCountsThanRows",
     [](Combine& a, SmallCall&) { a.expand_x.num_rows = 3; },
     kFit,
     {"ep_send_counts names", "expand_x has 3"}},
    {"ShortCountsOfThePair",
     [](Combine& a, SmallCall& c) {
       a.tp_send_counts = {c.tp_counts.data(), 1};
     },
     kFit,
     {"tp_send_counts has 1", "3 (max(tp, 1))"},
     one_tp_group<Combine>},
    {"CountsOfThePairDiffer",
     [](Combine&, SmallCall& c) { c.tp_counts[2] = 77; },
     kValue,
     {"tp_send_counts[2] is 77", "ep_send_counts has 10"},
     one_tp_group<Combine>},
    {"ShortExpandIdx",
     [](Combine& a, SmallCall& c) {
       a.expand_idx = {c.expand_idx.data(), 9};
     },
     kFit,
     {"expand_idx has 9", "10"}},
    {"ShortAssistInfo",
     [](Combine& a, SmallCall& c) {
       a.assist_info_for_combine = {c.assist.data(), 20};
     },
     kFit,
     {"assist_info_for_combine has 20", "3 for each received row"}},
    {"ShortPerformanceInfo",
     [](Combine& a, SmallCall& c) {
       a.performance_info = {c.waits.data(), 1};
     },
     kFit,
     {"performance_info has 1", "3"}},
    {"ActivationScale",
     [](Combine& a, SmallCall& c) { a.activation_scale = &c; },
     kValue,
     {"activation_scale is reserved", "null"}},
    {"WeightScale",
     [](Combine& a, SmallCall& c) { a.weight_scale = &c; },
     kValue,
     {"weight_scale is reserved", "null"}},
    {"GroupList",
     [](Combine& a, SmallCall& c) { a.group_list = &c; },
     kValue,
     {"group_list is reserved", "null"}},
    {"SharedOutputOfOtherShape",
     [](Combine& a, SmallCall&) { a.shared_expert_x.hidden = 8; },
     kFit,
     {"shared_expert_x is (5, 8)", "(5, 16)"},
     shared_x},
    {"SharedOutputOfOtherType",
     [](Combine& a, SmallCall&) { a.shared_expert_x.dtype = DataType::kFp16; },
     kValue,
     {"shared_expert_x is fp16", "bf16 as x_out"},
     shared_x},
    {"SharedOutputWithAPitch",
     [](Combine& a, SmallCall&) { a.shared_expert_x.pitch_bytes = 64; },
     kFit,
     {"shared_expert_x has a pitch of 64", "32"},
     shared_x},
    {"NullOriX",
     [](Combine& a, SmallCall&) { a.ori_x.data = nullptr; },
     kNull,
     {"ori_x is null", "80"},
     special},
    {"OriXOfOtherShape",
     [](Combine& a, SmallCall&) { a.ori_x.num_rows = 6; },
     kFit,
     {"ori_x is (6, 16)", "(5, 16)"},
     special},
    {"OriXOfBytes",
     [](Combine& a, SmallCall&) { a.ori_x.dtype = DataType::kBytes; },
     kValue,
     {"ori_x is bytes"},
     special},
    {"NullAlpha1",
     [](Combine& a, SmallCall&) { a.const_expert_alpha1.data = nullptr; },
     kNull,
     {"const_expert_alpha1 is null", "32"},
     special},
    {"Alpha2OfOtherType",
     [](Combine& a, SmallCall&) { a.const_expert_alpha2.dtype = DataType::kFp32; },
     kValue,
     {"const_expert_alpha2 is fp32", "bf16 as ori_x"},
     special},
    {"VOfOtherShape",
     [](Combine& a, SmallCall&) { a.const_expert_v.num_rows = 1; },
     kFit,
     {"const_expert_v is (1, 16)", "(2, 16)"},
     special},
};

const std::vector<BadCall<Norm>> kBadNorms = {
    {"NullResidual",
     [](Norm& a, SmallCall&) { a.residual_x.data = nullptr; },
     kNull,
     {"residual_x is null", "80"}},
    {"ResidualOfOtherShape",
     [](Norm& a, SmallCall&) { a.residual_x.num_rows = 4; },
     kFit,
     {"residual_x is (4, 16)", "(5, 16)"}},
    {"ResidualOfOtherType",
     [](Norm& a, SmallCall&) { a.residual_x.dtype = DataType::kFp32; },
     kValue,
     {"residual_x is fp32", "bf16 as x_out"}},
    {"NullGamma",
     [](Norm& a, SmallCall&) { a.gamma.data = nullptr; },
     kNull,
     {"gamma is null", "16"}},
    {"GammaOfOtherShape",
     [](Norm& a, SmallCall&) { a.gamma.hidden = 15; },
     kFit,
     {"gamma is (1, 15)", "(1, 16)"}},
    {"GammaOfOtherType",
     [](Norm& a, SmallCall&) { a.gamma.dtype = DataType::kFp16; },
     kValue,
     {"gamma is fp16", "bf16 as x_out"}},
    {"NullY", [](Norm& a, SmallCall&) { a.y_out.data = nullptr; }, kNull, {"y_out is null", "80"}},
    {"YOfOtherType",
     [](Norm& a, SmallCall&) { a.y_out.dtype = DataType::kFp16; },
     kValue,
     {"y_out is fp16", "bf16 as x_out"}},
    {"NegativeEps",
     [](Norm& a, SmallCall&) { a.norm_eps = -1; },
     kValue,
     {"norm_eps is -1", "0 or more"}},
    {"NanEps",
     [](Norm& a, SmallCall&) { a.norm_eps = kNan; },
     kValue,
     {"norm_eps is nan", "0 or more"}},
    {"ShortRstd",
     [](Norm& a, SmallCall& c) {
       a.rstd_out = {c.rstd.data(), 4};
     },
     kFit,
     {"rstd_out has 4", "5 (Bs)"}},
    {"YOverlapsX",
     [](Norm& a, SmallCall&) { a.y_out.data = a.combine.x_out.data; },
     kValue,
     {"overlaps"}},
};

}  // namespace ferry::test
