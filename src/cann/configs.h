// The exchange that a call asks for: its attributes and everything else that ranks must agree on,
// checked. Pure functions, called by dispatch.cc, combine.cc and sizes.cc.
#pragma once

#include "cann/attributes.h"
#include "ferry/cann.h"

namespace ferry::cann::internal {

// Both throw Refused.
ExchangeConfig dispatch_config(const DispatchArgs& args, const Place& place);
ExchangeConfig combine_config(const CombineArgs& args, const Place& place);

inline Batch batch_of(const DispatchArgs& args) noexcept {
  return {args.expert_ids.rows, args.x.hidden, args.expert_ids.columns};
}
inline Batch batch_of(const CombineArgs& args) noexcept {
  return {args.expert_ids.rows, args.expand_x.hidden, args.expert_ids.columns};
}

// float32 values in a row of dynamic_scales; 0: none.
std::int64_t scale_columns(const DispatchArgs& args) noexcept;

}  // namespace ferry::cann::internal
