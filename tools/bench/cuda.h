// Measures `ferry bench --device cuda`. Its ranks are threads of this process and share one GPU. In
// turn with them, it times copies of as many bytes on that GPU. The code is in cuda.cc, or in
// no_cuda.cc if ferry is built without CUDA.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/plan.h"

namespace ferry::bench {

// The times of a pair of dispatch and combine of all ranks, in microseconds; each is a median over
// the rounds.
struct CudaTimes {
  double pair_us = 0;   // the host issues each call, and waits for the counts of each dispatch
  double graph_us = 0;  // a CUDA graph replays the calls
  // The times to read and write the same bytes once: with cudaMemcpyAsync, and with a kernel that
  // only copies.
  double memcpy_us = 0, copy_us = 0;
  double gigabytes = 0;  // read and written by a pair
  std::uint64_t wrong = 0;
};

// Throws std::invalid_argument if the plan uses features that CUDA ranks do not have, and Error if
// the device fails.
CudaTimes measure_on_cuda(const Plan& plan);

std::string cuda_table(const std::vector<Plan>& plans, const std::vector<CudaTimes>& times);
std::string cuda_json(const Plan& plan, const CudaTimes& times);

}  // namespace ferry::bench
