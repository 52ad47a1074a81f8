// Attributes and elastic_info that must be refused.
#include "refused_calls.h"

namespace ferry::test {

using Args = cann::DispatchArgs;
constexpr auto kValue = cann::StatusCode::kInvalidParameter;
constexpr auto kFit = cann::StatusCode::kTilingError;

namespace {

// Rank 0 of 3 does not remain; each rank has two experts.
void scaled_down(Args& a, SmallCall& call) {
  call.elastic = {1, 2, 0, 4, -1, 0, 1, 1, 2, -1};
  for (std::int32_t& id : call.ids) id %= 4;
  a.elastic_info = call.elastic;
}

// All ranks remain: two for two shared experts, and one for the routed experts.
void two_shared_experts(Args& a, SmallCall& call) {
  a.attributes.shared_expert_num = a.attributes.shared_expert_rank_num = 2;
  call.elastic = {1, 3, 2, 6, 0, 1, 2, 0, 1, 2};
  a.elastic_info = call.elastic;
}

BadCall<Args> bad_elastic(const char* name, int index, std::int32_t value,
                          std::vector<std::string> parts, cann::StatusCode code) {
  return {name,        [=](Args&, SmallCall& call) { call.elastic[index] = value; },
          code,        std::move(parts),
          scaled_down, true};
}

}  // namespace

const std::vector<BadCall<Args>> kBadAttributes = {
    {"Version0", SPOIL(a.attributes.version = 0), kValue, {"version is 0", "1 to 4"}},
    {"Version5", SPOIL(a.attributes.version = 5), kValue, {"version is 5", "1 to 4"}},
    {"OtherGroup", SPOIL(a.attributes.group_ep = "pe"), kValue, {"group_ep is \"pe\"", "\"ep\""}},
    {"OtherTpGroup",
     SPOIL(a.attributes.group_tp = "pt"),
     kValue,
     {"group_tp is \"pt\"", "\"tp\""},
     one_tp_group<Args>},
    {"NoWorld", SPOIL(a.attributes.ep_world_size = 0), kValue, {"ep_world_size is 0", "1"}},
    {"WorldOfOtherSize",
     SPOIL(a.attributes.ep_world_size = 4),
     kFit,
     {"ep_world_size 4", "3 ranks"}},
    {"TpThatDoesNotFit", SPOIL(a.attributes.tp_world_size = 2), kFit, {"is 6", "3 ranks"}},
    {"TpOf9", SPOIL(a.attributes.tp_world_size = 9), kValue, {"tp_world_size is 9", "0 to 8"}},
    {"NoExperts", SPOIL(a.attributes.moe_expert_num = 0), kValue, {"moe_expert_num is 0", "1"}},
    {"ShardType1",
     SPOIL(a.attributes.expert_shard_type = 1),
     kValue,
     {"expert_shard_type is 1, need 0"}},
    {"SharedRanksAlone",
     SPOIL(a.attributes.shared_expert_rank_num = 3),
     kValue,
     {"shared_expert_rank_num is 3", "0 to 2"}},
    {"NegativeSharedRanks",
     SPOIL(a.attributes.shared_expert_rank_num = -1),
     kValue,
     {"shared_expert_rank_num is -1"}},
    {"FiveSharedExperts",
     SPOIL(a.attributes.shared_expert_num = 5),
     kValue,
     {"shared_expert_num is 5", "0 to 4"}},
    {"SharedRanksWithoutExpert",
     SPOIL(a.attributes.shared_expert_num = 0; a.attributes.shared_expert_rank_num = 1),
     kValue,
     {"shared_expert_num is 0", "shared_expert_rank_num 1", "1 to 4"}},
    {"TwoSharedExpertsInVersion1",
     SPOIL(a.attributes.version = 1; a.attributes.shared_expert_num = 2;
           a.attributes.shared_expert_rank_num = 2),
     kValue,
     {"shared_expert_num is 2", "1 to 1", "version 1"}},
    {"SharedRanksNotAMultiple",
     SPOIL(a.attributes.shared_expert_num = 2; a.attributes.shared_expert_rank_num = 1),
     kFit,
     {"shared_expert_rank_num 1", "shared_expert_num 2"}},
    {"NegativeZeroExperts",
     SPOIL(a.attributes.zero_expert_num = -1),
     kValue,
     {"zero_expert_num is -1", "0"}},
    {"NegativeCopyExperts",
     SPOIL(a.attributes.copy_expert_num = -2),
     kValue,
     {"copy_expert_num is -2", "0"}},
    {"NegativeConstExperts",
     SPOIL(a.attributes.const_expert_num = -3),
     kValue,
     {"const_expert_num is -3", "0"}},
    {"NegativeGlobalBs", SPOIL(a.attributes.global_bs = -3), kValue, {"global_bs is -3", "0"}},
    {"GlobalBsNotAMultiple",
     SPOIL(a.attributes.global_bs = 16),
     kFit,
     {"global_bs 16", "ep_world_size 3"}},
    {"GlobalBsTooSmall",
     SPOIL(a.attributes.global_bs = 12),
     kFit,
     {"global_bs 12", "Bs 5", "ep_world_size 3"}},
    {"UnknownAlgorithm",
     SPOIL(a.attributes.comm_alg = "ring"),
     kValue,
     {"comm_alg is \"ring\"", "fullmesh", "hierarchy"}},
    {"AlgorithmOfADevice",
     SPOIL(a.attributes.comm_alg = "ccu"),
     kFit,
     {"comm_alg is \"ccu\"", "use \"\""}},
    {"NegativeBs", SPOIL(a.expert_ids.rows = -1), kValue, {"Bs", "is -1"}},
    {"NoK", SPOIL(a.expert_ids.columns = 0), kValue, {"K", "is 0", "1 to 32"}},
    {"KOf33", SPOIL(a.expert_ids.columns = 33), kValue, {"K", "is 33", "1 to 32"}},
    {"NoHidden", SPOIL(a.x.hidden = 0), kValue, {"H is 0", "1"}},
    {"QuantModeBelow", SPOIL(a.quant_mode = -1), kValue, {"quant_mode is -1", "0 to 3"}},
    {"QuantModeAbove", SPOIL(a.quant_mode = 6), kValue, {"quant_mode is 6", "0 to 3"}},
    {"QuantMode4", SPOIL(a.quant_mode = 4), kFit, {"quant_mode is 4", "mx formats", "3 fp8"}},
    {"QuantMode5", SPOIL(a.quant_mode = 5), kFit, {"quant_mode is 5", "mx formats"}},
    {"BytesQuantised",
     SPOIL(a.quant_mode = 2; a.x.dtype = DataType::kBytes),
     kValue,
     {"x", "is bytes", "bf16, fp16 or fp32"}},
    {"UnknownType", SPOIL(a.x.dtype = static_cast<DataType>(99)), kValue, {"x is of type 99"}},
};

const std::vector<BadCall<Args>> kBadRankIds = {
    {"OtherEpRank",
     SPOIL(a.attributes.ep_rank_id = 2),
     kValue,
     {"ep_rank_id is 2", "rank 1 of the group has 1"}},
    {"OtherTpRank",
     SPOIL(a.attributes.tp_rank_id = 2),
     kValue,
     {"tp_rank_id is 2", "rank 1 of the group has 1"},
     one_tp_group<Args>},
};

const std::vector<BadCall<Args>> kBadElasticInfos = {
    {"OtherLength",
     SPOIL(a.elastic_info = {c.elastic.data(), 9}),
     kFit,
     {"elastic_info has 9", "need 10"},
     scaled_down,
     true},
    {"WithTp",
     SPOIL(c.elastic.assign(6, 0); a.elastic_info = c.elastic),
     kFit,
     {"elastic_info with tp_world_size 3", "0 or 1"},
     one_tp_group<Args>},
    {"UnevenExperts",
     SPOIL(a.attributes.moe_expert_num = 7),
     kFit,
     {"moe_expert_num 7", "3 ranks"},
     scaled_down,
     true},
    bad_elastic("FlagOf2", 0, 2, {"isScaleDown", "is 2", "0 to 1"}, kValue),
    bad_elastic("NobodyLeft", 1, 0, {"newEpWorld", "is 0", "1 to 3"}, kValue),
    bad_elastic("MoreThanThereAre", 1, 4, {"newEpWorld", "is 4", "1 to 3"}, kValue),
    bad_elastic("SharedRanksWhereNoneWere", 2, 1, {"newSharedRankNum", "is 1", "need 0"}, kValue),
    bad_elastic("OtherNumberOfExperts", 3, 5,
                {"newMoeExpertNum", "is 5", "need 4", "2 ranks with 2"}, kFit),
    bad_elastic("NewRankOfNobody", 8, 3, {"table2[1] is 3", "0 to 2"}, kValue),
    bad_elastic("TablesDisagree", 6, 0, {"table2[1] is 2", "table1[2] is 0", "need 1"}, kFit),
    bad_elastic("GoneButNumbered", 4, 1, {"table1[0] is 1", "need -1", "rank 0"}, kFit),
    {"SharedRanksNoMultiple",
     SPOIL(c.elastic = {1, 2, 1, 6, 0, -1, 1, 0, 2, -1}),
     kFit,
     {"newSharedRankNum, is 1", "shared_expert_num 2"},
     two_shared_experts},
    {"SharedRankBehindOthers",
     SPOIL(c.elastic = {1, 3, 2, 6, 0, 2, 1, 0, 2, 1}),
     kFit,
     {"new rank 1 was rank 2", "first 2 new ranks", "below 2"},
     two_shared_experts},
    {"IdOfTheOldNumbering",
     SPOIL(c.ids[3] = 4),
     kValue,
     {"expert id 4", "token 1, k 1", "[-1, 4)"},
     scaled_down,
     true},
};

}  // namespace ferry::test
