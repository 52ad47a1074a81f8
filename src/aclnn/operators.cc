// The ten operators: each first stage passes its arguments to two_stage.h by their names. The
// parameter lists are those of ferry/aclnn_operators.h; a reserved parameter has no name.
#include "aclnn/two_stage.h"

using ferry::aclnn::Arguments;

#define EP_PARAMETERS                                                                      \
  const char *groupEp, int64_t epWorldSize, int64_t epRankId, int64_t moeExpertNum,        \
      const char *groupTp, int64_t tpWorldSize, int64_t tpRankId, int64_t expertShardType, \
      int64_t sharedExpertNum, int64_t sharedExpertRankNum
#define EP_GIVEN                                                                               \
  given.groupEp = groupEp, given.epWorldSize = epWorldSize, given.epRankId = epRankId,         \
  given.moeExpertNum = moeExpertNum, given.groupTp = groupTp, given.tpWorldSize = tpWorldSize, \
  given.tpRankId = tpRankId, given.expertShardType = expertShardType,                          \
  given.sharedExpertNum = sharedExpertNum, given.sharedExpertRankNum = sharedExpertRankNum

#define DISPATCH_IN_PARAMETERS                                                     \
  const aclTensor *x, const aclTensor *expertIds, const aclTensor *scalesOptional, \
      const aclTensor *xActiveMaskOptional, const aclTensor *expertScalesOptional
#define DISPATCH_IN_GIVEN                                                  \
  given.x = x, given.expertIds = expertIds, given.scales = scalesOptional, \
  given.xActiveMask = xActiveMaskOptional, given.expertScales = expertScalesOptional

#define DISPATCH_ATTRIBUTES_PARAMETERS \
  int64_t quantMode, int64_t globalBs, int64_t expertTokenNumsType
#define DISPATCH_ATTRIBUTES_GIVEN                         \
  given.quantMode = quantMode, given.globalBs = globalBs, \
  given.expertTokenNumsType = expertTokenNumsType

#define DISPATCH_OUT_PARAMETERS                                                              \
  aclTensor *expandXOut, aclTensor *dynamicScalesOut, aclTensor *assistInfoForCombineOut,    \
      aclTensor *expertTokenNumsOut, aclTensor *epRecvCountsOut, aclTensor *tpRecvCountsOut, \
      aclTensor *expandScalesOut
#define DISPATCH_OUT_GIVEN                                                                \
  given.expandXOut = expandXOut, given.dynamicScalesOut = dynamicScalesOut,               \
  given.assistInfoForCombineOut = assistInfoForCombineOut,                                \
  given.expertTokenNumsOut = expertTokenNumsOut, given.epRecvCountsOut = epRecvCountsOut, \
  given.tpRecvCountsOut = tpRecvCountsOut, given.expandScalesOut = expandScalesOut

#define SPECIAL_NUMBERS_PARAMETERS \
  int64_t zeroExpertNum, int64_t copyExpertNum, int64_t constExpertNum
#define SPECIAL_NUMBERS_GIVEN                                               \
  given.zeroExpertNum = zeroExpertNum, given.copyExpertNum = copyExpertNum, \
  given.constExpertNum = constExpertNum

#define COMBINE_IN_PARAMETERS                                                                  \
  const aclTensor *expandX, const aclTensor *expertIds, const aclTensor *assistInfoForCombine, \
      const aclTensor *epSendCounts, const aclTensor *expertScales
#define COMBINE_IN_GIVEN                                                                \
  given.expandX = expandX, given.expertIds = expertIds,                                 \
  given.assistInfoForCombine = assistInfoForCombine, given.epSendCounts = epSendCounts, \
  given.expertScales = expertScales

#define COMBINE_OPTIONAL_PARAMETERS                                                               \
  const aclTensor *tpSendCountsOptional, const aclTensor *xActiveMaskOptional, const aclTensor *, \
      const aclTensor *, const aclTensor *, const aclTensor *,                                    \
      const aclTensor *sharedExpertXOptional
#define COMBINE_OPTIONAL_GIVEN                                                        \
  given.tpSendCounts = tpSendCountsOptional, given.xActiveMask = xActiveMaskOptional, \
  given.sharedExpertX = sharedExpertXOptional

#define SPECIAL_IN_PARAMETERS                                                                 \
  const aclTensor *elasticInfoOptional, const aclTensor *oriXOptional,                        \
      const aclTensor *constExpertAlpha1Optional, const aclTensor *constExpertAlpha2Optional, \
      const aclTensor *constExpertVOptional
#define SPECIAL_IN_GIVEN                                              \
  given.elasticInfo = elasticInfoOptional, given.oriX = oriXOptional, \
  given.constExpertAlpha1 = constExpertAlpha1Optional,                \
  given.constExpertAlpha2 = constExpertAlpha2Optional, given.constExpertV = constExpertVOptional

#define COMBINE_ATTRIBUTES_PARAMETERS int64_t globalBs, int64_t, int64_t commQuantMode, int64_t
#define COMBINE_ATTRIBUTES_GIVEN given.globalBs = globalBs, given.commQuantMode = commQuantMode

#define SECOND_STAGE(operator_name)                                                         \
  aclnnStatus operator_name(void*, uint64_t, aclOpExecutor* executor, aclrtStream stream) { \
    return ferry::aclnn::enqueue(#operator_name, executor, stream);                         \
  }

// NOLINTBEGIN(readability-identifier-naming,readability-function-size)
extern "C" {

aclnnStatus aclnnMoeDistributeDispatchGetWorkspaceSize(
    const aclTensor* x, const aclTensor* expertIds, const aclTensor* scales, const aclTensor*,
    const aclTensor* expertScales, EP_PARAMETERS, DISPATCH_ATTRIBUTES_PARAMETERS,
    aclTensor* expandX, aclTensor* dynamicScales, aclTensor* expandIdx, aclTensor* expertTokenNums,
    aclTensor* epRecvCounts, aclTensor* tpRecvCounts, aclTensor* expandScales,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  Arguments given{.name = "aclnnMoeDistributeDispatch", .version = 1};
  given.x = x, given.expertIds = expertIds, given.scales = scales,
  given.expertScales = expertScales;
  EP_GIVEN;
  DISPATCH_ATTRIBUTES_GIVEN;
  given.expandXOut = expandX, given.dynamicScalesOut = dynamicScales,
  given.expandIdxOut = expandIdx, given.expertTokenNumsOut = expertTokenNums,
  given.epRecvCountsOut = epRecvCounts, given.tpRecvCountsOut = tpRecvCounts,
  given.expandScalesOut = expandScales;
  return ferry::aclnn::dispatch_executor(given, workspaceSize, executor);
}
SECOND_STAGE(aclnnMoeDistributeDispatch)

aclnnStatus aclnnMoeDistributeDispatchV2GetWorkspaceSize(
    DISPATCH_IN_PARAMETERS, EP_PARAMETERS, DISPATCH_ATTRIBUTES_PARAMETERS, const char* commAlg,
    DISPATCH_OUT_PARAMETERS, uint64_t* workspaceSize, aclOpExecutor** executor) {
  Arguments given{.name = "aclnnMoeDistributeDispatchV2", .version = 2};
  DISPATCH_IN_GIVEN;
  EP_GIVEN;
  DISPATCH_ATTRIBUTES_GIVEN;
  given.commAlg = commAlg;
  DISPATCH_OUT_GIVEN;
  return ferry::aclnn::dispatch_executor(given, workspaceSize, executor);
}
SECOND_STAGE(aclnnMoeDistributeDispatchV2)

aclnnStatus aclnnMoeDistributeDispatchV3GetWorkspaceSize(
    DISPATCH_IN_PARAMETERS, const aclTensor* elasticInfoOptional, EP_PARAMETERS,
    DISPATCH_ATTRIBUTES_PARAMETERS, const char* commAlg, SPECIAL_NUMBERS_PARAMETERS,
    DISPATCH_OUT_PARAMETERS, uint64_t* workspaceSize, aclOpExecutor** executor) {
  Arguments given{.name = "aclnnMoeDistributeDispatchV3", .version = 3};
  DISPATCH_IN_GIVEN;
  given.elasticInfo = elasticInfoOptional;
  EP_GIVEN;
  DISPATCH_ATTRIBUTES_GIVEN;
  given.commAlg = commAlg;
  SPECIAL_NUMBERS_GIVEN;
  DISPATCH_OUT_GIVEN;
  return ferry::aclnn::dispatch_executor(given, workspaceSize, executor);
}
SECOND_STAGE(aclnnMoeDistributeDispatchV3)

aclnnStatus aclnnMoeDistributeDispatchV4GetWorkspaceSize(
    DISPATCH_IN_PARAMETERS, const aclTensor* elasticInfoOptional,
    const aclTensor* performanceInfoOptional, EP_PARAMETERS, DISPATCH_ATTRIBUTES_PARAMETERS,
    const char* commAlg, SPECIAL_NUMBERS_PARAMETERS, DISPATCH_OUT_PARAMETERS,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  Arguments given{.name = "aclnnMoeDistributeDispatchV4", .version = 4};
  DISPATCH_IN_GIVEN;
  given.elasticInfo = elasticInfoOptional;
  given.performanceInfo = performanceInfoOptional;
  EP_GIVEN;
  DISPATCH_ATTRIBUTES_GIVEN;
  given.commAlg = commAlg;
  SPECIAL_NUMBERS_GIVEN;
  DISPATCH_OUT_GIVEN;
  return ferry::aclnn::dispatch_executor(given, workspaceSize, executor);
}
SECOND_STAGE(aclnnMoeDistributeDispatchV4)

aclnnStatus aclnnMoeDistributeCombineGetWorkspaceSize(
    const aclTensor* expandX, const aclTensor* expertIds, const aclTensor* expandIdx,
    const aclTensor* epSendCounts, const aclTensor* expertScales, const aclTensor* tpSendCounts,
    const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*, const aclTensor*,
    EP_PARAMETERS, COMBINE_ATTRIBUTES_PARAMETERS, aclTensor* x, uint64_t* workspaceSize,
    aclOpExecutor** executor) {
  Arguments given{.name = "aclnnMoeDistributeCombine", .version = 1};
  given.expandX = expandX, given.expertIds = expertIds, given.expandIdx = expandIdx,
  given.epSendCounts = epSendCounts, given.expertScales = expertScales,
  given.tpSendCounts = tpSendCounts;
  EP_GIVEN;
  COMBINE_ATTRIBUTES_GIVEN;
  given.xOut = x;
  return ferry::aclnn::combine_executor(given, workspaceSize, executor);
}
SECOND_STAGE(aclnnMoeDistributeCombine)

aclnnStatus aclnnMoeDistributeCombineV2GetWorkspaceSize(COMBINE_IN_PARAMETERS,
                                                        COMBINE_OPTIONAL_PARAMETERS, EP_PARAMETERS,
                                                        COMBINE_ATTRIBUTES_PARAMETERS,
                                                        const char* commAlg, aclTensor* xOut,
                                                        uint64_t* workspaceSize,
                                                        aclOpExecutor** executor) {
  Arguments given{.name = "aclnnMoeDistributeCombineV2", .version = 2};
  COMBINE_IN_GIVEN;
  COMBINE_OPTIONAL_GIVEN;
  EP_GIVEN;
  COMBINE_ATTRIBUTES_GIVEN;
  given.commAlg = commAlg;
  given.xOut = xOut;
  return ferry::aclnn::combine_executor(given, workspaceSize, executor);
}
SECOND_STAGE(aclnnMoeDistributeCombineV2)

aclnnStatus aclnnMoeDistributeCombineV3GetWorkspaceSize(
    COMBINE_IN_PARAMETERS, COMBINE_OPTIONAL_PARAMETERS, SPECIAL_IN_PARAMETERS, EP_PARAMETERS,
    COMBINE_ATTRIBUTES_PARAMETERS, const char* commAlg, SPECIAL_NUMBERS_PARAMETERS, aclTensor* xOut,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  Arguments given{.name = "aclnnMoeDistributeCombineV3", .version = 3};
  COMBINE_IN_GIVEN;
  COMBINE_OPTIONAL_GIVEN;
  SPECIAL_IN_GIVEN;
  EP_GIVEN;
  COMBINE_ATTRIBUTES_GIVEN;
  given.commAlg = commAlg;
  SPECIAL_NUMBERS_GIVEN;
  given.xOut = xOut;
  return ferry::aclnn::combine_executor(given, workspaceSize, executor);
}
SECOND_STAGE(aclnnMoeDistributeCombineV3)

aclnnStatus aclnnMoeDistributeCombineV4GetWorkspaceSize(
    COMBINE_IN_PARAMETERS, COMBINE_OPTIONAL_PARAMETERS, SPECIAL_IN_PARAMETERS,
    const aclTensor* performanceInfoOptional, EP_PARAMETERS, COMBINE_ATTRIBUTES_PARAMETERS,
    const char* commAlg, SPECIAL_NUMBERS_PARAMETERS, aclTensor* xOut, uint64_t* workspaceSize,
    aclOpExecutor** executor) {
  Arguments given{.name = "aclnnMoeDistributeCombineV4", .version = 4};
  COMBINE_IN_GIVEN;
  COMBINE_OPTIONAL_GIVEN;
  SPECIAL_IN_GIVEN;
  given.performanceInfo = performanceInfoOptional;
  EP_GIVEN;
  COMBINE_ATTRIBUTES_GIVEN;
  given.commAlg = commAlg;
  SPECIAL_NUMBERS_GIVEN;
  given.xOut = xOut;
  return ferry::aclnn::combine_executor(given, workspaceSize, executor);
}
SECOND_STAGE(aclnnMoeDistributeCombineV4)

aclnnStatus aclnnMoeDistributeCombineAddRmsNormGetWorkspaceSize(
    COMBINE_IN_PARAMETERS, const aclTensor* residualX, const aclTensor* gamma,
    COMBINE_OPTIONAL_PARAMETERS, EP_PARAMETERS, COMBINE_ATTRIBUTES_PARAMETERS, const char* commAlg,
    float normEps, aclTensor* yOut, aclTensor* rstdOut, aclTensor* xOut, uint64_t* workspaceSize,
    aclOpExecutor** executor) {
  Arguments given{.name = "aclnnMoeDistributeCombineAddRmsNorm", .version = 2};
  COMBINE_IN_GIVEN;
  given.residualX = residualX, given.gamma = gamma;
  COMBINE_OPTIONAL_GIVEN;
  EP_GIVEN;
  COMBINE_ATTRIBUTES_GIVEN;
  given.commAlg = commAlg;
  given.normEps = normEps;
  given.yOut = yOut, given.rstdOut = rstdOut, given.xOut = xOut;
  return ferry::aclnn::norm_executor(given, workspaceSize, executor);
}
SECOND_STAGE(aclnnMoeDistributeCombineAddRmsNorm)

aclnnStatus aclnnMoeDistributeCombineAddRmsNormV2GetWorkspaceSize(
    COMBINE_IN_PARAMETERS, const aclTensor* residualX, const aclTensor* gamma,
    COMBINE_OPTIONAL_PARAMETERS, SPECIAL_IN_PARAMETERS, EP_PARAMETERS,
    COMBINE_ATTRIBUTES_PARAMETERS, const char* commAlg, float normEps, SPECIAL_NUMBERS_PARAMETERS,
    aclTensor* yOut, aclTensor* rstdOut, aclTensor* xOut, uint64_t* workspaceSize,
    aclOpExecutor** executor) {
  Arguments given{.name = "aclnnMoeDistributeCombineAddRmsNormV2", .version = 3};
  COMBINE_IN_GIVEN;
  given.residualX = residualX, given.gamma = gamma;
  COMBINE_OPTIONAL_GIVEN;
  SPECIAL_IN_GIVEN;
  EP_GIVEN;
  COMBINE_ATTRIBUTES_GIVEN;
  given.commAlg = commAlg;
  given.normEps = normEps;
  SPECIAL_NUMBERS_GIVEN;
  given.yOut = yOut, given.rstdOut = rstdOut, given.xOut = xOut;
  return ferry::aclnn::norm_executor(given, workspaceSize, executor);
}
SECOND_STAGE(aclnnMoeDistributeCombineAddRmsNormV2)

}  // extern "C"
// NOLINTEND(readability-identifier-naming,readability-function-size)
