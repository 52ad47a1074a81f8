// Loads kernels before the first of them waits. The driver loads a kernel at its first launch, and
// for that it may wait for all running kernels of the device. One of those may wait for the new
// one.
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
