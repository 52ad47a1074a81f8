// The two stages of an operator. The first stage checks a call and makes an executor, which holds
// all that the call needs; the second stage puts the executor on a stream and consumes it.
#pragma once

#include "ferry/aclnn.h"

namespace ferry::aclnn {

// The arguments of all versions of all operators, by their names in CANN. An argument that a
// version does not have is null.
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
// The second stage; consumes the executor.
aclnnStatus enqueue(const char* name, aclOpExecutor* executor, aclrtStream stream);

// Destroys the executors that have had no second stage.
void free_executors();

}  // namespace ferry::aclnn
