// The checked configuration of an exchange on a device, its shape, and the offsets in its window,
// which are computed here only.
#pragma once

#include <cstdint>

#include "cuda/shape.h"
#include "ferry/config.h"
#include "routing/expert_map.h"

namespace ferry::internal {

// The configuration with its defaults (ferry/cuda.h). Throws Error(kInvalidArgument) that names a
// setting that an exchange of CUDA ranks does not have.
ExchangeConfig cuda_config(const ExchangeConfig& config, int num_ranks);

// The shape, except its pointers to device memory.
CudaShape cuda_shape(const ExchangeConfig& config, const ExpertMap& map, int rank);

// The offsets, which are equal on all ranks.
CudaWindow cuda_window(const ExchangeConfig& config, const CudaShape& shape);

}  // namespace ferry::internal
