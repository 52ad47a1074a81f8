// HCCL's variables of the environment, which libferry_cann alone reads (docs/aclnn.md). ferry's own
// are in base/environment.h, which is not a public header.
#pragma once

#include <cstdint>
#include <string>

namespace ferry::aclnn {

// HCCL_BUFFSIZE in bytes; HCCL's default when it is not set, or empty. Throws
// Error(kInvalidArgument) that names the value and the limits.
std::uint64_t buffer_bytes_in_environment();

// HCCL_INTRA_PCIE_ENABLE and HCCL_INTRA_ROCE_ENABLE; empty when not set.
struct IntraSwitches {
  std::string pcie, roce;
};
IntraSwitches intra_switches_in_environment();

}  // namespace ferry::aclnn
