// Kernels are loaded before the first of them waits: the driver loads a kernel at its first launch,
// for which it may wait for all that run on the device, among them one that waits for this one.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/memory.h"

namespace ferry::internal {

template <typename... Kernel>
void load(Kernel*... kernels) {
  cudaFuncAttributes attributes;
  (cuda_check(cudaFuncGetAttributes(&attributes, kernels), "loading the kernels of an exchange"),
   ...);
}

}  // namespace ferry::internal
