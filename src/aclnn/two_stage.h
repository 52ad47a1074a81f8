// The two stages of an operator: an executor is a checked call with all it needs, the second stage
// puts it on the stream. Called by operators.cc; calls ferry/cann.h.
#pragma once

#include "ferry/aclnn.h"

namespace ferry::aclnn {

// The arguments of any version of any operator, under the operators' own names; what a version has
// not is null.
struct Arguments {
  const char* name = nullptr;
  int version = 4;
  const aclTensor *x = nullptr, *expandX = nullptr, *expertIds = nullptr, *scales = nullptr,
                  *xActiveMask = nullptr, *expertScales = nullptr, *elasticInfo = nullptr,
                  *performanceInfo = nullptr, *expandIdx = nullptr, *assistInfoForCombine = nullptr,
                  *epSendCounts = nullptr, *tpSendCounts = nullptr, *sharedExpertX = nullptr,
                  *oriX = nullptr, *constExpertAlpha1 = nullptr, *constExpertAlpha2 = nullptr,
                  *constExpertV = nullptr, *residualX = nullptr, *gamma = nullptr;
  const char* groupEp = nullptr;
  int64_t epWorldSize = 0, epRankId = 0, moeExpertNum = 0;
  const char* groupTp = nullptr;
  int64_t tpWorldSize = 0, tpRankId = 0, expertShardType = 0, sharedExpertNum = 0,
          sharedExpertRankNum = 0, globalBs = 0;
  const char* commAlg = nullptr;
  int64_t zeroExpertNum = 0, copyExpertNum = 0, constExpertNum = 0, quantMode = 0,
          expertTokenNumsType = 0, commQuantMode = 0;
  float normEps = 0;
  aclTensor *expandXOut = nullptr, *dynamicScalesOut = nullptr, *expandIdxOut = nullptr,
            *assistInfoForCombineOut = nullptr, *expertTokenNumsOut = nullptr,
            *epRecvCountsOut = nullptr, *tpRecvCountsOut = nullptr, *expandScalesOut = nullptr,
            *xOut = nullptr, *yOut = nullptr, *rstdOut = nullptr;
};

// First stages.
aclnnStatus dispatch_executor(const Arguments& given, uint64_t* workspace_size,
                              aclOpExecutor** executor);
aclnnStatus combine_executor(const Arguments& given, uint64_t* workspace_size,
                             aclOpExecutor** executor);
aclnnStatus norm_executor(const Arguments& given, uint64_t* workspace_size,
                          aclOpExecutor** executor);
// The second stage; takes the executor.
aclnnStatus enqueue(const char* name, aclOpExecutor* executor, aclrtStream stream);

// Executors whose second stage never came.
void free_executors();

}  // namespace ferry::aclnn
