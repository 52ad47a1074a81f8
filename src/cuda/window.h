// What an exchange is on a device: the checked configuration, its shape, and the one place where
// offsets in a window are made.
#pragma once

#include <cstdint>

#include "cuda/shape.h"
#include "ferry/config.h"
#include "routing/expert_map.h"

namespace ferry::internal {

// The configuration with its defaults (ferry/cuda.h). Throws Error(kInvalidArgument) that names
// what is not for CUDA.
ExchangeConfig cuda_config(const ExchangeConfig& config, int num_ranks);

// All but the pointers, which are device memory.
CudaShape cuda_shape(const ExchangeConfig& config, const ExpertMap& map, int rank);

// The same for all ranks.
CudaWindow cuda_window(const ExchangeConfig& config, const CudaShape& shape);

}  // namespace ferry::internal
