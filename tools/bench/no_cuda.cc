// Refuses `ferry bench --device cuda` if ferry is built without CUDA.
#include "tools/bench/cuda.h"

namespace ferry::bench {

CudaTimes measure_on_cuda(const Plan&) {
  refuse("--device cuda: this ferry was built without CUDA, as nvcc was not found");
}
std::string cuda_table(const std::vector<Plan>&, const std::vector<CudaTimes>&) { return {}; }
std::string cuda_json(const Plan&, const CudaTimes&) { return {}; }

}  // namespace ferry::bench
