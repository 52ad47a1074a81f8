// The windows of all ranks in this address space. The window of a rank of this process is used at
// its own address; the window of a rank of another process is mapped by CUDA IPC.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "cuda/issue_order.h"
#include "group/state.h"

namespace ferry::internal {

struct CudaPeers {
  std::vector<std::shared_ptr<std::byte>> windows;  // [ranks]
  bool all_near;  // all ranks are threads of this process, on this device
};

// Collective; `window` is of the current device. The results keep the memory, or the mapping.
// Throws Error on all ranks where a device cannot reach the memory of another: kInvalidArgument on
// the rank of that device, kPeerRejected on the others. The ranks that share this process and
// device are added to `order`.
CudaPeers share_windows(GroupState& group, const std::shared_ptr<std::byte>& window,
                        IssueOrder& order, const Deadline& by);

}  // namespace ferry::internal
