// The exchange that a call asks for: its attributes and everything else that ranks must agree on,
// checked. Pure functions, called by dispatch.cc, combine.cc and sizes.cc.
#pragma once

#include <string>

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

// What the ranks of a call must agree on, in the operators' words (ferry::DispatchArgs::terms).
// With global_bs 0 all have the same Bs.
std::string terms_of(const DispatchArgs& args);
std::string terms_of(const CombineArgs& args);
// The same, of an exchange in which such scales travel.
std::string with_scales(const std::string& terms, std::int64_t scale_bytes);

// float32 values in a row of dynamic_scales, 0: none; of a rank without tokens those that it has a
// shape for, while the others say how many travel.
std::int64_t scale_columns(const DispatchArgs& args) noexcept;
inline bool takes_any_scales(const DispatchArgs& args) noexcept {
  return args.quant_mode == 0 && args.expert_ids.rows == 0;
}

}  // namespace ferry::cann::internal
