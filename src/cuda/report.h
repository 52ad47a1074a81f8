// Converts a report of a kernel to a Status, whose message names values, limits and ranks.
#pragma once

#include "cuda/views.h"
#include "ferry/status.h"

namespace ferry::internal {

Status status_of(const CudaReport& report, const CudaShape& shape, std::int64_t deadline_ns);

}  // namespace ferry::internal
