// CANN's two-stage C API of the MoE operators on host memory: the functions of acl/acl.h,
// hccl/hccl.h and aclnnop/aclnn_moe_distribute_*.h that such programs call, under the same names. A
// program compiles with -I<prefix>/include/ferry/compat in place of CANN's include path, and links
// libferry_cann. docs/aclnn.md describes each call. Implemented in src/aclnn on ferry/cann.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ferry/export.h"

// The names are CANN's.
// NOLINTBEGIN(readability-identifier-naming)
#ifdef __cplusplus
extern "C" {
#endif

typedef int aclError;
typedef int32_t aclnnStatus;
typedef void* aclrtStream;
typedef void* aclrtContext;
typedef void* HcclComm;
typedef uint16_t aclFloat16;
typedef struct aclTensor aclTensor;
typedef struct aclOpExecutor aclOpExecutor;

typedef enum {
  ACL_DT_UNDEFINED = -1,
  ACL_FLOAT = 0,
  ACL_FLOAT16 = 1,
  ACL_INT8 = 2,
  ACL_INT32 = 3,
  ACL_UINT8 = 4,
  ACL_INT16 = 6,
  ACL_UINT16 = 7,
  ACL_UINT32 = 8,
  ACL_INT64 = 9,
  ACL_UINT64 = 10,
  ACL_DOUBLE = 11,
  ACL_BOOL = 12,
  ACL_STRING = 13,
  ACL_BF16 = 27,
  ACL_INT4 = 29,
  ACL_HIFLOAT8 = 34,
  ACL_FLOAT8_E5M2 = 35,
  ACL_FLOAT8_E4M3FN = 36,
  ACL_FLOAT8_E8M0 = 37,
  ACL_FLOAT4_E2M1 = 40,
  ACL_FLOAT4_E1M2 = 41,
} aclDataType;

typedef enum {
  ACL_FORMAT_UNDEFINED = -1,
  ACL_FORMAT_NCHW = 0,
  ACL_FORMAT_NHWC = 1,
  ACL_FORMAT_ND = 2,
  ACL_FORMAT_FRACTAL_NZ = 29,
} aclFormat;

typedef enum {
  ACL_MEMCPY_HOST_TO_HOST,
  ACL_MEMCPY_HOST_TO_DEVICE,
  ACL_MEMCPY_DEVICE_TO_HOST,
  ACL_MEMCPY_DEVICE_TO_DEVICE,
  ACL_MEMCPY_DEFAULT,
} aclrtMemcpyKind;

typedef enum {
  ACL_MEM_MALLOC_HUGE_FIRST,
  ACL_MEM_MALLOC_HUGE_ONLY,
  ACL_MEM_MALLOC_NORMAL_ONLY,
  ACL_MEM_MALLOC_HUGE_FIRST_P2P,
  ACL_MEM_MALLOC_HUGE_ONLY_P2P,
  ACL_MEM_MALLOC_NORMAL_ONLY_P2P,
} aclrtMemMallocPolicy;

typedef enum {
  HCCL_SUCCESS = 0,
  HCCL_E_PARA = 1,
  HCCL_E_PTR = 2,
  HCCL_E_MEMORY = 3,
  HCCL_E_INTERNAL = 4,
  HCCL_E_NOT_SUPPORT = 5,
  HCCL_E_NOT_FOUND = 6,
  HCCL_E_UNAVAIL = 7,
  HCCL_E_TIMEOUT = 9,
} HcclResult;

enum {
  ACL_SUCCESS = 0,
  ACL_ERROR_NONE = 0,
  ACL_ERROR_INVALID_PARAM = 100000,
  ACL_ERROR_UNINITIALIZE = 100001,
  ACL_ERROR_REPEAT_INITIALIZE = 100002,
  ACL_ERROR_BAD_ALLOC = 200000,
  ACL_ERROR_INVALID_DEVICE = 200002,
  ACL_ERROR_RT_MEMORY_ALLOCATION = 207001,
  ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046,
  ACLNN_SUCCESS = 0,
  ACLNN_ERR_PARAM_NULLPTR = 161001,
  ACLNN_ERR_PARAM_INVALID = 161002,
  ACLNN_ERR_RUNTIME_ERROR = 361001,
  ACLNN_ERR_INNER_TILING_ERROR = 561002,
};

enum { HCCL_ROOT_INFO_BYTES = 4108, COMM_NAME_MAX_LENGTH = 128 };
typedef struct {
  char internal[HCCL_ROOT_INFO_BYTES];
} HcclRootInfo;

// The runtime. A device is a number of the calling thread, memory is host memory, and a stream is a
// queue with a thread that executes it.
FERRY_EXPORT aclError aclInit(const char* configPath);
FERRY_EXPORT aclError aclFinalize();
FERRY_EXPORT const char* aclGetRecentErrMsg();
FERRY_EXPORT aclError aclrtSetDevice(int32_t deviceId);
FERRY_EXPORT aclError aclrtResetDevice(int32_t deviceId);
FERRY_EXPORT aclError aclrtGetDevice(int32_t* deviceId);
FERRY_EXPORT aclError aclrtGetDeviceCount(uint32_t* count);
FERRY_EXPORT aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId);
FERRY_EXPORT aclError aclrtSetCurrentContext(aclrtContext context);
FERRY_EXPORT aclError aclrtDestroyContext(aclrtContext context);
FERRY_EXPORT aclError aclrtCreateStream(aclrtStream* stream);
FERRY_EXPORT aclError aclrtDestroyStream(aclrtStream stream);
FERRY_EXPORT aclError aclrtSynchronizeStream(aclrtStream stream);
FERRY_EXPORT aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout);
// Waits for all streams that were created with the device of this thread.
FERRY_EXPORT aclError aclrtSynchronizeDevice(void);
FERRY_EXPORT aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy policy);
FERRY_EXPORT aclError aclrtFree(void* devPtr);
FERRY_EXPORT aclError aclrtMallocHost(void** hostPtr, size_t size);
FERRY_EXPORT aclError aclrtFreeHost(void* hostPtr);
FERRY_EXPORT aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count,
                                  aclrtMemcpyKind kind);
FERRY_EXPORT aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count,
                                       aclrtMemcpyKind kind, aclrtStream stream);
FERRY_EXPORT aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count);

// A view of memory; strides and offset in elements, null strides: dense.
FERRY_EXPORT aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum,
                                        aclDataType dataType, const int64_t* stride, int64_t offset,
                                        aclFormat format, const int64_t* storageDims,
                                        uint64_t storageDimsNum, void* tensorData);
FERRY_EXPORT aclnnStatus aclDestroyTensor(const aclTensor* tensor);

// Communicators: of threads of this process (InitAll), or of processes (RootInfo).
FERRY_EXPORT HcclResult HcclCommInitAll(uint32_t ndev, int32_t* devices, HcclComm* comms);
FERRY_EXPORT HcclResult HcclGetRootInfo(HcclRootInfo* rootInfo);
FERRY_EXPORT HcclResult HcclCommInitRootInfo(uint32_t nRanks, const HcclRootInfo* rootInfo,
                                             uint32_t rank, HcclComm* comm);
FERRY_EXPORT HcclResult HcclGetCommName(HcclComm comm, char* commName);
FERRY_EXPORT HcclResult HcclGetRankId(HcclComm comm, uint32_t* rank);
FERRY_EXPORT HcclResult HcclGetRankSize(HcclComm comm, uint32_t* rankSize);
FERRY_EXPORT HcclResult HcclCommDestroy(HcclComm comm);

#ifdef __cplusplus
}  // extern "C"
#endif
// NOLINTEND(readability-identifier-naming)

#include "ferry/aclnn_operators.h"
