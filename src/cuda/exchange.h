// CudaExchange: the inside of cuda::Exchange. It checks arguments, issues the kernels of an
// operation in order, and converts their reports to a Status. Ranks send to each other only in
// kernels. A thread of the exchange checks whether ranks of the group have died, because no other
// thread need run while kernels wait.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cuda/issue_order.h"
#include "cuda/route.h"
#include "cuda/views.h"
#include "ferry/cuda.h"
#include "group/state.h"
#include "routing/expert_map.h"

namespace ferry::internal {

class CudaExchange {
 public:
  CudaExchange(std::shared_ptr<GroupState> group, const ExchangeConfig& config, int device);
  ~CudaExchange();
  CudaExchange(const CudaExchange&) = delete;
  CudaExchange& operator=(const CudaExchange&) = delete;

  GroupState& group() const noexcept { return *group_; }
  Status dispatch(const cuda::DispatchArgs& args, cuda::Received& received);
  Status combine(const cuda::CombineArgs& args);
  // `and_wait`, `waited`: whether the kernels of the first half wait for all ranks.
  Status dispatch_send(const cuda::DispatchArgs& args, bool and_wait, cuda::Received& received);
  Status dispatch_recv(cudaStream_t stream, bool waited);
  Status combine_send(const cuda::CombineArgs& args, bool and_wait);
  Status combine_recv(cudaStream_t stream, bool waited);
  void* outputs() const;
  Status check();
  Status finish();

  const ExchangeConfig& config() const noexcept { return config_; }
  int device() const noexcept { return device_; }
  int num_local() const noexcept { return num_local_; }
  std::int64_t buffer_rows() const noexcept { return buffer_rows_; }
  std::uint64_t window_bytes() const noexcept { return common_.at.bytes; }
  bool shares_device() const noexcept { return order_.has_others(); }

 private:
  // One half of an operation.
  struct Call {
    cudaStream_t stream;
    bool capturing;  // the stream captures a graph
    // True: a kernel that only waits is issued after the kernels of other ranks for which it waits.
    // False in a graph, whose kernels are issued together, and where no other rank shares the
    // process and the device.
    bool in_steps;
  };

  void take_memory();
  void take_scratch();
  void watch();
  Status broken() const;
  Status await_counts(const CudaRoute& route, cudaStream_t stream);
  void show(const CudaDispatchView& view, cuda::Received& received) const;
  Call call_on(cudaStream_t stream) const;
  Status await_issued(CudaPhase phase, const Call& call);
  Status ended(const Call& call);
  bool in_window(const Rows& rows) const;

  std::shared_ptr<GroupState> group_;
  ExchangeConfig config_;
  int device_, processors_ = 0, num_local_ = 0;
  std::int64_t buffer_rows_ = 0;
  CudaCommon common_{};
  struct Memory {
    std::vector<std::shared_ptr<std::byte>> windows;  // [ranks]
    std::shared_ptr<std::byte> window, scratch, map, mapped, of_windows;
  } memory_;
  IssueOrder order_;
  std::shared_ptr<CudaRoutePool> routes_;
  struct Issued {
    std::uint64_t dispatches = 0, combines = 0, tickets = 0, reports = 0;
    std::optional<CudaDispatchView> dispatch;  // set while the operation is between its halves
    std::optional<CudaCombineView> combine;
    std::shared_ptr<CudaRoute> dispatched, combined;  // the routes of `dispatch` and `combine`
    cudaEvent_t last = nullptr;                       // the end of the last issued kernel
  } issued_;
  Status broken_;
  struct Watcher {
    std::mutex mutex;
    std::condition_variable wake;
    bool stop = false;
    std::thread thread;
  } watcher_;
};

}  // namespace ferry::internal
