#include "aclnn/two_stage.h"

#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "aclnn/environment.h"
#include "aclnn/hccl.h"
#include "aclnn/runtime.h"
#include "aclnn/tensor.h"
#include "cann/refusal.h"
#include "ferry/cann.h"

// A checked call. `group_ep`, `group_tp` and `comm_alg` hold the texts that its attributes view.
struct aclOpExecutor {
  std::string name;
  std::string group_ep, group_tp, comm_alg;
  ferry::aclnn::Operands operands;
  std::shared_ptr<ferry::aclnn::Member> member;
  std::function<ferry::cann::Result(const ferry::cann::Communicator&)> run;
};

namespace ferry::aclnn {

namespace {

struct Executors {
  std::mutex mutex;
  std::map<aclOpExecutor*, std::unique_ptr<aclOpExecutor>> waiting;  // for stage two
};
Executors& executors() {
  static Executors all;
  return all;
}

// The algorithm: commAlg if it is given. Otherwise, and in version 1, HCCL's environment variables
// choose it.
std::string algorithm_of(const Arguments& given) {
  if (given.commAlg != nullptr && *given.commAlg != 0) return given.commAlg;
  const auto [pcie, roce] = intra_switches_in_environment();
  cann::internal::require_fit(pcie != "1" || roce != "1",
                              "HCCL_INTRA_PCIE_ENABLE and HCCL_INTRA_ROCE_ENABLE are both 1, need "
                              "one");
  const char* const chosen = pcie == "1" && roce == "0" ? "hierarchy" : "fullmesh";
  static std::once_flag printed;
  if (given.epRankId == 0 && !(pcie.empty() && roce.empty())) {
    std::call_once(printed, [&] {
      std::fprintf(stderr, "ferry: HCCL_INTRA_PCIE_ENABLE and HCCL_INTRA_ROCE_ENABLE choose %s\n",
                   chosen);
    });
  }
  return chosen;
}

cann::Attributes attributes_of(const Arguments& given, aclOpExecutor& made) {
  cann::internal::require(given.groupEp != nullptr, cann::StatusCode::kNullPointer,
                          "groupEp is null");
  made.group_ep = given.groupEp;
  made.group_tp = given.groupTp ? given.groupTp : "";
  made.comm_alg = algorithm_of(given);
  return {.version = given.version,
          .group_ep = made.group_ep,
          .ep_world_size = given.epWorldSize,
          .ep_rank_id = given.epRankId,
          .moe_expert_num = given.moeExpertNum,
          .group_tp = made.group_tp,
          .tp_world_size = given.tpWorldSize,
          .tp_rank_id = given.tpRankId,
          .expert_shard_type = given.expertShardType,
          .shared_expert_num = given.sharedExpertNum,
          .shared_expert_rank_num = given.sharedExpertRankNum,
          .global_bs = given.globalBs,
          .comm_alg = made.comm_alg,
          .zero_expert_num = given.zeroExpertNum,
          .copy_expert_num = given.copyExpertNum,
          .const_expert_num = given.constExpertNum};
}

// An output for which a call has no values is not written, so it may be of any shape.
cann::DispatchArgs read_dispatch(const Arguments& given, aclOpExecutor& made) {
  Operands& o = made.operands;
  o.need("x", given.x), o.need("expertIds", given.expertIds);
  o.need("expandX", given.expandXOut);
  o.need(given.version == 1 ? "expandIdx" : "assistInfoForCombine",
         given.version == 1 ? given.expandIdxOut : given.assistInfoForCombineOut);
  o.need("expertTokenNums", given.expertTokenNumsOut);
  o.need("epRecvCounts", given.epRecvCountsOut), o.need("tpRecvCounts", given.tpRecvCountsOut);
  cann::DispatchArgs args{.attributes = attributes_of(given, made),
                          .quant_mode = given.quantMode,
                          .expert_token_nums_type = given.expertTokenNumsType};
  args.x = o.rows("x", given.x);
  args.expert_ids = o.matrix<std::int32_t>("expertIds", given.expertIds, ACL_INT32);
  args.scales = o.matrix<float>("scales", given.scales, ACL_FLOAT);
  // Scales of one dimension: with quantMode 0 there is one for each token, else one for each
  // channel.
  if (given.quantMode != 0 && given.scales != nullptr && given.scales->dims.size() == 1)
    std::swap(args.scales.rows, args.scales.columns);
  args.x_active_mask = o.matrix<std::uint8_t>("xActiveMask", given.xActiveMask, ACL_BOOL);
  args.expert_scales = o.matrix<float>("expertScales", given.expertScales, ACL_FLOAT);
  args.elastic_info = o.vector<std::int32_t>("elasticInfo", given.elasticInfo, ACL_INT32);
  args.performance_info = o.out<std::int64_t>(
      "performanceInfo", const_cast<aclTensor*>(given.performanceInfo), ACL_INT64);
  args.expand_x = o.rows_out("expandX", given.expandXOut);
  if (given.quantMode >= 2 || (given.quantMode == 0 && given.scales != nullptr)) {
    o.need("dynamicScales", given.dynamicScalesOut);
    args.dynamic_scales = o.out<float>("dynamicScales", given.dynamicScalesOut, ACL_FLOAT);
  }
  args.expand_idx = o.out<std::int32_t>("expandIdx", given.expandIdxOut, ACL_INT32);
  args.assist_info_for_combine =
      o.out<std::int32_t>("assistInfoForCombine", given.assistInfoForCombineOut, ACL_INT32);
  args.expert_token_nums =
      o.out<std::int64_t>("expertTokenNums", given.expertTokenNumsOut, ACL_INT64);
  args.ep_recv_counts = o.out<std::int32_t>("epRecvCounts", given.epRecvCountsOut, ACL_INT32);
  args.tp_recv_counts = o.out<std::int32_t>("tpRecvCounts", given.tpRecvCountsOut, ACL_INT32);
  if (given.expertScales != nullptr)
    args.expand_scales = o.out<float>("expandScales", given.expandScalesOut, ACL_FLOAT);
  return args;
}

void refuse_one_dimension(const char* name, const aclTensor* tensor) {
  cann::internal::require_fit(tensor == nullptr || tensor->dims.size() == 2,
                              "{} has {} dimensions, need (constExpertNum, H)", name,
                              tensor ? tensor->dims.size() : 0);
}

cann::CombineArgs read_combine(const Arguments& given, aclOpExecutor& made) {
  Operands& o = made.operands;
  const bool first = given.version == 1;
  o.need("expandX", given.expandX), o.need("expertIds", given.expertIds);
  o.need(first ? "expandIdx" : "assistInfoForCombine",
         first ? given.expandIdx : given.assistInfoForCombine);
  o.need("epSendCounts", given.epSendCounts), o.need("expertScales", given.expertScales);
  o.need("x", given.xOut);
  refuse_one_dimension("constExpertAlpha1", given.constExpertAlpha1);
  refuse_one_dimension("constExpertAlpha2", given.constExpertAlpha2);
  cann::CombineArgs args{.attributes = attributes_of(given, made),
                         .comm_quant_mode = given.commQuantMode};
  args.expand_x = o.rows("expandX", given.expandX);
  args.expert_ids = o.matrix<std::int32_t>("expertIds", given.expertIds, ACL_INT32);
  args.expand_idx = o.vector<std::int32_t>("expandIdx", given.expandIdx, ACL_INT32);
  args.assist_info_for_combine =
      o.vector<std::int32_t>("assistInfoForCombine", given.assistInfoForCombine, ACL_INT32);
  args.ep_send_counts = o.vector<std::int32_t>("epSendCounts", given.epSendCounts, ACL_INT32);
  if (given.tpWorldSize > 1)
    args.tp_send_counts = o.vector<std::int32_t>("tpSendCounts", given.tpSendCounts, ACL_INT32);
  args.expert_scales = o.matrix<float>("expertScales", given.expertScales, ACL_FLOAT);
  if (given.expertScales->elements() == 0) args.expert_scales = {};  // version 4: a plain sum
  args.x_active_mask = o.matrix<std::uint8_t>("xActiveMask", given.xActiveMask, ACL_BOOL);
  args.elastic_info = o.vector<std::int32_t>("elasticInfo", given.elasticInfo, ACL_INT32);
  args.shared_expert_x = o.rows("sharedExpertX", given.sharedExpertX);
  args.ori_x = o.rows("oriX", given.oriX);
  args.const_expert_alpha1 = o.rows("constExpertAlpha1", given.constExpertAlpha1);
  args.const_expert_alpha2 = o.rows("constExpertAlpha2", given.constExpertAlpha2);
  args.const_expert_v = o.rows("constExpertV", given.constExpertV);
  args.performance_info = o.out<std::int64_t>(
      "performanceInfo", const_cast<aclTensor*>(given.performanceInfo), ACL_INT64);
  args.x_out = o.rows_out("x", given.xOut);
  return args;
}

Outcome run(aclOpExecutor& made, std::uint64_t turn) {
  made.operands.copy_in();
  const cann::Result result = made.member->run(turn, made.run);
  if (!result.ok())
    return {static_cast<int>(result.code), fmt::format("{}: {}", made.name, result.message())};
  made.operands.copy_out();
  return {};
}

int refuse(const char* name, int code, std::string_view why) {
  return fail(code, fmt::format("{}: {}", name, why));
}

// Checks all that does not depend on the data: attributes, shapes, types, the name of the
// communicator, and the size of the window.
template <typename Args>
void prepare(aclOpExecutor& made, const Args& args, const cann::Attributes& attributes,
             cann::Result (*checked)(const Args&, WindowBytes&)) {
  WindowBytes bytes{};
  if (const cann::Result result = checked(args, bytes); !result.ok())
    throw cann::internal::Refused{result.code, result.status};
  std::uint64_t room = 0;
  made.member = find_member(attributes, room);
  cann::internal::require_fit(bytes.expected <= room, "HCCL_BUFFSIZE is {} MB, this call needs {}",
                              room >> 20, (bytes.expected >> 20) + 1);
}

template <typename Make>
aclnnStatus first_stage(const Arguments& given, std::uint64_t* workspace, aclOpExecutor** executor,
                        const Make& make) {
  if (workspace == nullptr || executor == nullptr)
    return refuse(given.name, ACLNN_ERR_PARAM_NULLPTR, "workspaceSize or executor is null");
  try {
    auto made = std::make_unique<aclOpExecutor>();
    made->name = given.name;
    make(*made);
    *workspace = 0;
    *executor = made.get();
    const std::lock_guard lock(executors().mutex);
    executors().waiting[*executor] = std::move(made);
    return ACLNN_SUCCESS;
  } catch (const cann::internal::Refused& refused) {
    return refuse(given.name, static_cast<int>(refused.code), refused.status.message());
  } catch (const std::exception& error) {
    return refuse(given.name, ACLNN_ERR_RUNTIME_ERROR, error.what());
  }
}

}  // namespace

aclnnStatus dispatch_executor(const Arguments& given, std::uint64_t* workspace,
                              aclOpExecutor** executor) {
  return first_stage(given, workspace, executor, [&](aclOpExecutor& made) {
    const cann::DispatchArgs args = read_dispatch(given, made);
    prepare(made, args, args.attributes, cann::check);
    made.run = [args](const cann::Communicator& communicator) {
      return moe_distribute_dispatch(communicator, args);
    };
  });
}

aclnnStatus combine_executor(const Arguments& given, std::uint64_t* workspace,
                             aclOpExecutor** executor) {
  return first_stage(given, workspace, executor, [&](aclOpExecutor& made) {
    const cann::CombineArgs args = read_combine(given, made);
    prepare(made, args, args.attributes, cann::check);
    made.run = [args](const cann::Communicator& communicator) {
      return moe_distribute_combine(communicator, args);
    };
  });
}

aclnnStatus norm_executor(const Arguments& given, std::uint64_t* workspace,
                          aclOpExecutor** executor) {
  return first_stage(given, workspace, executor, [&](aclOpExecutor& made) {
    Operands& o = made.operands;
    o.need("residualX", given.residualX), o.need("gamma", given.gamma);
    o.need("yOut", given.yOut), o.need("rstdOut", given.rstdOut);
    const cann::CombineAddRmsNormArgs args{
        .combine = read_combine(given, made),
        .residual_x = o.rows("residualX", given.residualX),
        .gamma = o.rows("gamma", given.gamma),
        .norm_eps = given.normEps,
        .y_out = o.rows_out("yOut", given.yOut),
        .rstd_out = o.out<float>("rstdOut", given.rstdOut, ACL_FLOAT)};
    prepare(made, args, args.combine.attributes, cann::check);
    made.run = [args](const cann::Communicator& communicator) {
      return moe_distribute_combine_add_rms_norm(communicator, args);
    };
  });
}

aclnnStatus enqueue(const char* name, aclOpExecutor* executor, aclrtStream stream) {
  if (executor == nullptr || stream == nullptr)
    return refuse(name, ACLNN_ERR_PARAM_NULLPTR, "executor or stream is null");
  std::shared_ptr<aclOpExecutor> taken;
  {
    const std::lock_guard lock(executors().mutex);
    const auto found = executors().waiting.find(executor);
    if (found == executors().waiting.end())
      return refuse(name, ACLNN_ERR_PARAM_INVALID,
                    "the executor is unknown, or was used already: each second stage needs a first "
                    "stage");
    if (found->second->name != name)
      return refuse(name, ACLNN_ERR_PARAM_INVALID, "the executor is of " + found->second->name);
    taken = std::move(found->second);
    executors().waiting.erase(found);
  }
  const std::uint64_t turn = taken->member->take_turn();
  static_cast<Stream*>(stream)->enqueue([taken, turn] { return run(*taken, turn); });
  return ACLNN_SUCCESS;
}

void free_executors() {
  const std::lock_guard lock(executors().mutex);
  executors().waiting.clear();
}

}  // namespace ferry::aclnn
