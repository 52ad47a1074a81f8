// Limits on the arguments of the calls of an exchange of CUDA ranks.
#pragma once

#include <cstdint>
#include <string>

#include "ferry/config.h"
#include "ferry/cuda.h"

namespace ferry::internal {

// The state of an exchange on which the limits depend.
struct CudaCall {
  const ExchangeConfig& config;
  std::uint64_t exchange;  // CudaRoute::exchange of its handles
  bool between_halves;     // the operation before has no receive half yet
  bool capturing;          // the stream captures a graph
};

// Ok, or kInvalidArgument that names the value and the limit.
Status refusal_of(const CudaCall& call, const cuda::DispatchArgs& args);
Status refusal_of(const CudaCall& call, const cuda::CombineArgs& args);

// Bytes from one row to the next.
std::int64_t row_pitch(const Rows& rows);

}  // namespace ferry::internal
