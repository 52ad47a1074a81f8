// The windows of all ranks in this address space: those of ranks that are threads of this process
// as they are, those of other processes by CUDA IPC. Called by exchange.cc when an exchange is
// made.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "cuda/issue_order.h"
#include "group/state.h"

namespace ferry::internal {

struct CudaPeers {
  std::vector<std::shared_ptr<std::byte>> windows;  // [ranks], mine among them
  bool all_near;  // all ranks are threads of this process, on this device
};

// Collective; `window` is of the current device. The results keep the memory, or the mapping.
// Throws Error on all ranks alike: kInvalidArgument, kPeerRejected when a device cannot reach
// another's memory. Those that share this process and device are added to `order`.
CudaPeers share_windows(GroupState& group, const std::shared_ptr<std::byte>& window,
                        IssueOrder& order, const Deadline& by);

}  // namespace ferry::internal
