// The configuration of the exchange that a call needs. Pure functions.
#pragma once

#include "cann/attributes.h"
#include "ferry/cann.h"

namespace ferry::cann::internal {

// Both throw Refused.
ExchangeConfig config_of(const DispatchArgs& args, const Place& place);
ExchangeConfig config_of(const CombineArgs& args, const Place& place);

inline Batch batch_of(const DispatchArgs& args) noexcept {
  return {args.expert_ids.rows, args.x.hidden, args.expert_ids.columns};
}
inline Batch batch_of(const CombineArgs& args) noexcept {
  return {args.expert_ids.rows, args.expand_x.hidden, args.expert_ids.columns};
}

// float32 values in a row of dynamic_scales; 0: none. A rank without tokens returns the columns of
// its empty tensor, and the ranks with tokens decide how many values travel.
std::int64_t scale_columns(const DispatchArgs& args) noexcept;
inline bool takes_any_scales(const DispatchArgs& args) noexcept {
  return args.quant_mode == 0 && args.expert_ids.rows == 0;
}
inline bool takes_any_scales(const CombineArgs& /*args*/) noexcept { return false; }

}  // namespace ferry::cann::internal
