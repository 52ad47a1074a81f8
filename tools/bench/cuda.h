// ferry bench --device cuda: ranks that are threads of this process and share one GPU, beside
// copies of as many bytes on it, in turn. cuda.cc, or no_cuda.cc where ferry is built without CUDA.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/plan.h"

namespace ferry::bench {

// Microseconds, medians over the rounds; of a pair of dispatch and combine of all ranks.
struct CudaTimes {
  double pair_us = 0;   // the host issues each call, and each dispatch waits for its counts
  double graph_us = 0;  // replayed from a CUDA graph
  // The same bytes, read and written once: by cudaMemcpyAsync, and by a kernel that only copies.
  double memcpy_us = 0, copy_us = 0;
  double gigabytes = 0;  // of a pair, read and written
  std::uint64_t wrong = 0;
};

// Throws std::invalid_argument for what CUDA ranks cannot do, Error when the device fails.
CudaTimes measure_on_cuda(const Plan& plan);

std::string cuda_table(const std::vector<Plan>& plans, const std::vector<CudaTimes>& times);
std::string cuda_json(const Plan& plan, const CudaTimes& times);

}  // namespace ferry::bench
