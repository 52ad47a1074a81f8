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
    {"NullX", SPOIL(a.x.data = nullptr), kNull, {"x is null", "80 elements"}},
    {"NullIds", SPOIL(a.expert_ids.data = nullptr), kNull, {"expert_ids is null", "10 elements"}},
    {"XOfOtherBs", SPOIL(a.x.num_rows = 4), kFit, {"x is (4, 16)", "(5, 2)"}},
    {"IdTooLarge", SPOIL(c.ids[5] = 6), kValue, {"id 6", "token 2, k 1", "[-1, 6)"}},
    {"IdTooSmall", SPOIL(c.ids[2] = -2), kValue, {"id -2", "token 1, k 0", "[-1, 6)"}},
    {"StaticWithoutScales",
     SPOIL(a.scales = {}),
     kNull,
     {"scales is null", "quant_mode 1", "(1, H)"},
     static_int8},
    {"ScalesOfOtherExperts",
     SPOIL(a.scales.rows = 5),
     kFit,
     {"scales has 5 rows", "1 or 6"},
     static_int8},
    {"ScalesOfOtherWidth",
     SPOIL(a.scales.columns = 15),
     kFit,
     {"scales has 15 columns", "1 or H 16"},
     static_int8},
    {"NanScale", SPOIL(c.factors[0] = kNan), kValue, {"scale", "nan", "finite"}, static_int8},
    {"SmoothFp8",
     SPOIL(a.scales = {c.factors.data(), 1, 1}),
     kFit,
     {"scales with quant_mode 3", "1 and 2"},
     fp8},
    {"OwnScalesOfOtherBs",
     SPOIL(a.scales.rows = 4),
     kFit,
     {"scales with quant_mode 0 has 4 rows", "Bs 5"},
     own_scales},
    {"MaskOfOtherBs",
     SPOIL(a.x_active_mask = {c.mask.data(), 4}),
     kFit,
     {"x_active_mask is (4, 1)", "(5, 1) or (5, 2)"}},
    {"MaskOfOtherK",
     SPOIL(a.x_active_mask = {c.mask.data(), 5, 3}),
     kFit,
     {"x_active_mask is (5, 3)", "(5, 2)"}},
    {"WeightsOfOtherK",
     SPOIL(a.expert_scales.columns = 3),
     kFit,
     {"expert_scales is (5, 3)", "(5, 2)"},
     travelling},
    {"NanWeight",
     SPOIL(c.weights[3] = kNan),
     kValue,
     {"weight at token 1, k 1 is NaN"},
     travelling},
    {"TokenNumsType2",
     SPOIL(a.expert_token_nums_type = 2),
     kValue,
     {"expert_token_nums_type is 2", "0 to 1"}},
    {"ShortPerformanceInfo",
     SPOIL(a.performance_info = {c.waits.data(), 2}),
     kFit,
     {"performance_info has 2", "3 (ep)"}},
    {"NowhereForTheRows",
     SPOIL(a.expand_x = {}),
     kNull,
     {"expand_x is null", "30 rows", "received"}},
    {"TooFewRows",
     SPOIL(a.expand_x.num_rows = 29),
     kFit,
     {"expand_x is (29, 16)", "(30 or more, 16)"}},
    {"RowsOfOtherWidth", SPOIL(a.expand_x.hidden = 8), kFit, {"expand_x is (256, 8)", "16)"}},
    {"RowsOfOtherType",
     SPOIL(a.expand_x.dtype = DataType::kBf16),
     kValue,
     {"expand_x is bf16", "need int8", "quant_mode 2"},
     int8},
    {"NoDynamicScales",
     SPOIL(a.dynamic_scales = {}),
     kNull,
     {"dynamic_scales is null", "30"},
     int8},
    {"ShortDynamicScales",
     SPOIL(a.dynamic_scales = {c.scales.data(), 29}),
     kFit,
     {"dynamic_scales has 29", "30"},
     int8},
    {"ShortExpandIdx",
     SPOIL(a.expand_idx = {c.expand_idx.data(), 9}),
     kFit,
     {"expand_idx has 9", "10 (Bs * K)"}},
    {"ShortAssistInfo",
     SPOIL(a.assist_info_for_combine = {c.assist.data(), 89}),
     kFit,
     {"assist_info_for_combine has 89", "90"}},
    {"ShortTokenNums",
     SPOIL(a.expert_token_nums = {c.token_nums.data(), 1}),
     kFit,
     {"expert_token_nums has 1", "2 (localE)"}},
    {"ShortCounts",
     SPOIL(a.ep_recv_counts = {c.ep_counts.data(), 5}),
     kFit,
     {"ep_recv_counts has 5", "6 (max(tp, 1) * localE * ep)"}},
    {"ShortTpCounts",
     SPOIL(a.tp_recv_counts = {c.tp_counts.data(), 2}),
     kFit,
     {"tp_recv_counts has 2", "3"},
     one_tp_group<Dispatch>},
    {"ShortExpandScales",
     SPOIL(a.expand_scales = {c.row_weights.data(), 29}),
     kFit,
     {"expand_scales has 29", "30"}},
};

const std::vector<BadCall<Combine>> kBadCombines = {
    {"CommQuantMode1", SPOIL(a.comm_quant_mode = 1), kValue, {"comm_quant_mode is 1", "0 or 2"}},
    {"CommQuantMode3", SPOIL(a.comm_quant_mode = 3), kFit, {"comm_quant_mode is 3", "mx formats"}},
    {"OutDtype1", SPOIL(a.out_dtype = 1), kValue, {"out_dtype is 1", "need 0"}},
    {"RowsOfInt8",
     SPOIL(a.expand_x.dtype = DataType::kInt8),
     kValue,
     {"expand_x is int8", "bf16, fp16 or fp32"}},
    {"OutOfInt8",
     SPOIL(a.x_out.dtype = DataType::kInt8),
     kValue,
     {"x_out is int8", "bf16, fp16 or fp32"}},
    {"NullIds", SPOIL(a.expert_ids.data = nullptr), kNull, {"expert_ids is null", "10"}},
    {"NullRows", SPOIL(a.expand_x.data = nullptr), kNull, {"expand_x is null"}},
    {"NullOut", SPOIL(a.x_out.data = nullptr), kNull, {"x_out is null", "80"}},
    {"OutOfOtherShape", SPOIL(a.x_out.num_rows = 4), kFit, {"x_out is (4, 16)", "(5 or more, 16)"}},
    {"NoWeightsBeforeVersion4",
     SPOIL(a.expert_scales = {}),
     kNull,
     {"expert_scales is null", "10", "version 4"},
     version_3},
    {"WeightsOfOtherK",
     SPOIL(a.expert_scales.columns = 1),
     kFit,
     {"expert_scales is (5, 1)", "(5, 2)"}},
    {"NanWeight", SPOIL(c.weights[9] = kNan), kValue, {"weight at token 4, k 1 is NaN"}},
    {"MaskOfOtherBs",
     SPOIL(a.x_active_mask = {c.mask.data(), 6}),
     kFit,
     {"x_active_mask is (6, 1)", "(5, 1)"}},
    {"ShortCounts",
     SPOIL(a.ep_send_counts = {c.ep_counts.data(), 5}),
     kFit,
     {"ep_send_counts has 5", "6"}},
    {"CountsThatFall",
     SPOIL(c.ep_counts[3] = 1; c.ep_counts[2] = 7),
     kValue,
     {"ep_send_counts goes from 7 to 1"}},
    {"MoreCountsThanRows",
     SPOIL(a.expand_x.num_rows = 3),
     kFit,
     {"ep_send_counts names", "expand_x has 3"}},
    {"ShortCountsOfThePair",
     SPOIL(a.tp_send_counts = {c.tp_counts.data(), 1}),
     kFit,
     {"tp_send_counts has 1", "3 (max(tp, 1))"},
     one_tp_group<Combine>},
    {"CountsOfThePairDiffer",
     SPOIL(c.tp_counts[2] = 77),
     kValue,
     {"tp_send_counts[2] is 77", "ep_send_counts has 10"},
     one_tp_group<Combine>},
    {"ShortExpandIdx",
     SPOIL(a.expand_idx = {c.expand_idx.data(), 9}),
     kFit,
     {"expand_idx has 9", "10"}},
    {"ShortAssistInfo",
     SPOIL(a.assist_info_for_combine = {c.assist.data(), 20}),
     kFit,
     {"assist_info_for_combine has 20", "3 for each received row"}},
    {"ShortPerformanceInfo",
     SPOIL(a.performance_info = {c.waits.data(), 1}),
     kFit,
     {"performance_info has 1", "3"}},
    {"ActivationScale",
     SPOIL(a.activation_scale = &c),
     kValue,
     {"activation_scale is reserved", "null"}},
    {"WeightScale", SPOIL(a.weight_scale = &c), kValue, {"weight_scale is reserved", "null"}},
    {"GroupList", SPOIL(a.group_list = &c), kValue, {"group_list is reserved", "null"}},
    {"SharedOutputOfOtherShape",
     SPOIL(a.shared_expert_x.hidden = 8),
     kFit,
     {"shared_expert_x is (5, 8)", "(5, 16)"},
     shared_x},
    {"SharedOutputOfOtherType",
     SPOIL(a.shared_expert_x.dtype = DataType::kFp16),
     kValue,
     {"shared_expert_x is fp16", "bf16 as x_out"},
     shared_x},
    {"SharedOutputWithAPitch",
     SPOIL(a.shared_expert_x.pitch_bytes = 64),
     kFit,
     {"shared_expert_x has a pitch of 64", "32"},
     shared_x},
    {"NullOriX", SPOIL(a.ori_x.data = nullptr), kNull, {"ori_x is null", "80"}, special},
    {"OriXOfOtherShape",
     SPOIL(a.ori_x.num_rows = 6),
     kFit,
     {"ori_x is (6, 16)", "(5, 16)"},
     special},
    {"OriXOfBytes", SPOIL(a.ori_x.dtype = DataType::kBytes), kValue, {"ori_x is bytes"}, special},
    {"NullAlpha1",
     SPOIL(a.const_expert_alpha1.data = nullptr),
     kNull,
     {"const_expert_alpha1 is null", "32"},
     special},
    {"Alpha2OfOtherType",
     SPOIL(a.const_expert_alpha2.dtype = DataType::kFp32),
     kValue,
     {"const_expert_alpha2 is fp32", "bf16 as ori_x"},
     special},
    {"VOfOtherShape",
     SPOIL(a.const_expert_v.num_rows = 1),
     kFit,
     {"const_expert_v is (1, 16)", "(2, 16)"},
     special},
};

const std::vector<BadCall<Norm>> kBadNorms = {
    {"NullResidual", SPOIL(a.residual_x.data = nullptr), kNull, {"residual_x is null", "80"}},
    {"ResidualOfOtherShape",
     SPOIL(a.residual_x.num_rows = 4),
     kFit,
     {"residual_x is (4, 16)", "(5, 16)"}},
    {"ResidualOfOtherType",
     SPOIL(a.residual_x.dtype = DataType::kFp32),
     kValue,
     {"residual_x is fp32", "bf16 as x_out"}},
    {"NullGamma", SPOIL(a.gamma.data = nullptr), kNull, {"gamma is null", "16"}},
    {"GammaOfOtherShape", SPOIL(a.gamma.hidden = 15), kFit, {"gamma is (1, 15)", "(1, 16)"}},
    {"GammaOfOtherType",
     SPOIL(a.gamma.dtype = DataType::kFp16),
     kValue,
     {"gamma is fp16", "bf16 as x_out"}},
    {"NullY", SPOIL(a.y_out.data = nullptr), kNull, {"y_out is null", "80"}},
    {"YOfOtherType",
     SPOIL(a.y_out.dtype = DataType::kFp16),
     kValue,
     {"y_out is fp16", "bf16 as x_out"}},
    {"NegativeEps", SPOIL(a.norm_eps = -1), kValue, {"norm_eps is -1", "0 or more"}},
    {"NanEps", SPOIL(a.norm_eps = kNan), kValue, {"norm_eps is nan", "0 or more"}},
    {"ShortRstd", SPOIL(a.rstd_out = {c.rstd.data(), 4}), kFit, {"rstd_out has 4", "5 (Bs)"}},
    {"YOverlapsX", SPOIL(a.y_out.data = a.combine.x_out.data), kValue, {"overlaps"}},
};

}  // namespace ferry::test
