// Refused calls: each has the documented code, from the stage that the documents name.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "ferry/aclnn.h"

namespace {

using testing::Test;

aclTensor* make(std::vector<int64_t> dims, aclDataType type, void* data) {
  return aclCreateTensor(dims.data(), dims.size(), type, nullptr, 0, ACL_FORMAT_ND, dims.data(),
                         dims.size(), data);
}

// A group of one rank, with outputs that are large enough.
class Refused : public Test {
 protected:
  void SetUp() override {
    int32_t device = 0;
    ASSERT_EQ(aclrtSetDevice(device), ACL_SUCCESS);
    ASSERT_EQ(HcclCommInitAll(1, &device, &comm), HCCL_SUCCESS);
    ASSERT_EQ(HcclGetCommName(comm, name), HCCL_SUCCESS);
    ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
    x = make({2, 8}, ACL_BF16, memory), ids = make({2, 1}, ACL_INT32, zeros),
    expand_x = make({2, 8}, ACL_BF16, memory + 64);
    assist = make({256}, ACL_INT32, memory + 128), nums = make({2}, ACL_INT64, memory + 2048);
    counts = make({2}, ACL_INT32, memory + 2112), tp_counts = make({1}, ACL_INT32, memory + 2176);
  }
  void TearDown() override {
    aclrtDestroyStream(stream);
    HcclCommDestroy(comm);
    for (aclTensor* tensor : {x, ids, expand_x, assist, nums, counts, tp_counts})
      aclDestroyTensor(tensor);
  }
  int dispatch(int64_t quant_mode = 0, int64_t rank = 0, int64_t moe = 2) {
    return aclnnMoeDistributeDispatchV2GetWorkspaceSize(
        x, ids, nullptr, nullptr, nullptr, name, 1, rank, moe, "", 0, 0, 0, 1, 0, quant_mode, 0, 1,
        algorithm, expand_x, nullptr, assist, nums, counts, tp_counts, nullptr, &size, &executor);
  }
  void expect(int code, int expected, const char* part) {
    EXPECT_EQ(code, expected) << aclGetRecentErrMsg();
    EXPECT_NE(std::string(aclGetRecentErrMsg()).find(part), std::string::npos)
        << aclGetRecentErrMsg();
  }

  HcclComm comm = nullptr;
  char name[128] = {};
  aclrtStream stream = nullptr;
  alignas(64) char memory[4096] = {};
  int32_t zeros[2] = {0, 1};
  const char* algorithm = nullptr;
  aclTensor *x, *ids, *expand_x, *assist, *nums, *counts, *tp_counts;
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
};

TEST_F(Refused, NullTensorsAreOfTheFirstStage) {
  aclDestroyTensor(counts);
  counts = nullptr;
  expect(dispatch(), ACLNN_ERR_PARAM_NULLPTR, "aclnnMoeDistributeDispatchV2: epRecvCounts is null");
  name[0] = 0;
  counts = make({2}, ACL_INT32, memory);
  expect(dispatch(), ACLNN_ERR_PARAM_NULLPTR, "groupEp is null or empty");
}

TEST_F(Refused, TypesAndShapesAreOfTheFirstStage) {
  expect(dispatch(2), ACLNN_ERR_PARAM_NULLPTR, "dynamicScales is null");
  expect(dispatch(0, 1), ACLNN_ERR_PARAM_INVALID, "ep_rank_id is 1");
  expect(dispatch(0, 0, 0), ACLNN_ERR_PARAM_INVALID, "moe_expert_num is 0");
  aclDestroyTensor(ids);
  ids = make({2, 1}, ACL_INT64, zeros);
  expect(dispatch(), ACLNN_ERR_PARAM_INVALID, "expertIds is of aclDataType 9, need 3");
  aclDestroyTensor(ids), aclDestroyTensor(expand_x);
  ids = make({2, 1}, ACL_INT32, zeros), expand_x = make({1, 8}, ACL_BF16, memory);
  expect(dispatch(), ACLNN_ERR_INNER_TILING_ERROR, "expand_x is (1, 8), need (2 or more, 8)");
}

TEST_F(Refused, AnotherDeviceThanTheCommunicators) {
  std::thread([&] {
    ASSERT_EQ(aclrtSetDevice(5), ACL_SUCCESS);
    expect(dispatch(), ACLNN_ERR_PARAM_INVALID, "joined on device 0, this thread is on device 5");
  }).join();
}

TEST_F(Refused, ACommunicatorThatIsGone) {
  HcclCommDestroy(comm);
  expect(dispatch(), ACLNN_ERR_RUNTIME_ERROR, "names no communicator");
  int32_t device = 0;
  ASSERT_EQ(HcclCommInitAll(1, &device, &comm), HCCL_SUCCESS);
}

TEST_F(Refused, AnExecutorTwiceOrOfAnotherOperator) {
  ASSERT_EQ(dispatch(), ACLNN_SUCCESS) << aclGetRecentErrMsg();
  expect(aclnnMoeDistributeCombineV2(nullptr, 0, executor, stream), ACLNN_ERR_PARAM_INVALID,
         "the executor is of aclnnMoeDistributeDispatchV2");
  EXPECT_EQ(aclnnMoeDistributeDispatchV2(nullptr, 0, executor, stream), ACLNN_SUCCESS);
  expect(aclnnMoeDistributeDispatchV2(nullptr, 0, executor, stream), ACLNN_ERR_PARAM_INVALID,
         "each second stage needs a first stage");
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << aclGetRecentErrMsg();
}

// The stream returns an error that depends on the data, once.
TEST_F(Refused, ABadIdIsToldWhenTheStreamIsWaitedFor) {
  zeros[1] = 7;
  ASSERT_EQ(dispatch(), ACLNN_SUCCESS) << aclGetRecentErrMsg();
  ASSERT_EQ(aclnnMoeDistributeDispatchV2(nullptr, 0, executor, stream), ACLNN_SUCCESS);
  expect(aclrtSynchronizeStream(stream), ACLNN_ERR_PARAM_INVALID, "7");
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
}

TEST_F(Refused, ABadIdIsToldWhenTheDeviceIsWaitedFor) {
  zeros[1] = 7;
  ASSERT_EQ(dispatch(), ACLNN_SUCCESS) << aclGetRecentErrMsg();
  ASSERT_EQ(aclnnMoeDistributeDispatchV2(nullptr, 0, executor, stream), ACLNN_SUCCESS);
  expect(aclrtSynchronizeDevice(), ACLNN_ERR_PARAM_INVALID, "7");
  EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
}

TEST(Runtime, CopiesOnAStreamInOrder) {
  aclrtStream one = nullptr, two = nullptr;
  ASSERT_EQ(aclrtCreateStream(&one), ACL_SUCCESS);
  ASSERT_EQ(aclrtCreateStream(&two), ACL_SUCCESS);
  char first[3] = {1, 2, 3}, second[3] = {}, third[3] = {}, other[3] = {};
  EXPECT_EQ(aclrtMemcpyAsync(second, 3, first, 3, ACL_MEMCPY_DEFAULT, one), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpyAsync(third, 3, second, 3, ACL_MEMCPY_DEFAULT, one), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpyAsync(other, 3, first, 2, ACL_MEMCPY_DEFAULT, two), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
  EXPECT_EQ(third[2], 3);
  EXPECT_EQ(other[1], 2);
  aclrtDestroyStream(one);
  aclrtDestroyStream(two);
}

TEST_F(Refused, SwitchesOfHccl) {
  setenv("HCCL_INTRA_PCIE_ENABLE", "1", 1), setenv("HCCL_INTRA_ROCE_ENABLE", "1", 1);
  expect(dispatch(), ACLNN_ERR_INNER_TILING_ERROR, "are both 1");
  algorithm = "fullmesh";
  EXPECT_EQ(dispatch(), ACLNN_SUCCESS) << aclGetRecentErrMsg();
  unsetenv("HCCL_INTRA_PCIE_ENABLE"), unsetenv("HCCL_INTRA_ROCE_ENABLE");
}

TEST_F(Refused, BuffersOfHccl) {
  int32_t device = 0;
  HcclComm other = nullptr;
  setenv("HCCL_BUFFSIZE", "1", 1);
  expect(HcclCommInitAll(1, &device, &other), HCCL_E_PARA,
         "HCCL_BUFFSIZE=\"1\" is not a whole number from 2");
  setenv("HCCL_BUFFSIZE", "2", 1);
  HcclCommDestroy(comm);
  ASSERT_EQ(HcclCommInitAll(1, &device, &comm), HCCL_SUCCESS);
  HcclGetCommName(comm, name);
  unsetenv("HCCL_BUFFSIZE");
  aclDestroyTensor(x), aclDestroyTensor(expand_x);
  std::vector<char> rows(2 * 4'000'000);
  x = make({2, 2'000'000}, ACL_BF16, rows.data()),
  expand_x = make({2, 2'000'000}, ACL_BF16, rows.data());
  expect(dispatch(), ACLNN_ERR_INNER_TILING_ERROR, "HCCL_BUFFSIZE is 2 MB, this call needs ");
}

TEST(Runtime, RefusesWhatCannotBe) {
  void* pointer = nullptr;
  EXPECT_EQ(aclrtMalloc(&pointer, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtSetDevice(-1), ACL_ERROR_INVALID_DEVICE);
  char small[2] = {}, large[4] = {};
  EXPECT_EQ(aclrtMemcpy(small, 2, large, 4, ACL_MEMCPY_DEFAULT), ACL_ERROR_INVALID_PARAM);
  aclrtStream own = nullptr;
  EXPECT_EQ(aclrtMemcpyAsync(large, 4, small, 2, ACL_MEMCPY_DEFAULT, own), ACL_ERROR_INVALID_PARAM);
  ASSERT_EQ(aclrtCreateStream(&own), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpyAsync(small, 2, large, 4, ACL_MEMCPY_DEFAULT, own), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemcpyAsync(large, 4, nullptr, 2, ACL_MEMCPY_DEFAULT, own),
            ACL_ERROR_INVALID_PARAM);
  aclrtDestroyStream(own);
  EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
  int32_t twice[2] = {3, 3};
  HcclComm comms[2];
  EXPECT_EQ(HcclCommInitAll(2, twice, comms), HCCL_E_PARA);
}

}  // namespace
