// What the operators' attributes may be, and the exchange they ask for. Pure functions, called by
// dispatch.cc, combine.cc and sizes.cc.
#pragma once

#include <cstdint>

#include "ferry/cann.h"

namespace ferry::cann::internal {

struct Place {
  int rank = 0;
  int size = 1;
};

// Shape of the tokens of a call.
struct Batch {
  std::int64_t bs = 0;
  std::int64_t h = 0;
  std::int64_t k = 0;
};

inline int tp_size_of(const Attributes& a) noexcept {
  return a.tp_world_size > 1 ? static_cast<int>(a.tp_world_size) : 1;
}
// Experts that each token goes to on shared-expert ranks; shared_expert_num without ranks is none.
inline int num_shared(const Attributes& a) noexcept {
  return a.shared_expert_rank_num > 0 ? static_cast<int>(a.shared_expert_num) : 0;
}

// Throws Refused unless the attributes are legal for this batch and this place in the group.
void check_attributes(const Attributes& attributes, const Batch& batch, const Place& place);
// The place that the attributes themselves claim.
Place claimed_place(const Attributes& attributes);

// Of a rank behind the shared ones: its experts, in contiguous blocks, the first blocks one more.
struct LocalExperts {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
LocalExperts local_experts(const Attributes& attributes, std::int64_t ep_rank);
// Of this rank; a shared-expert rank has one.
inline std::int64_t num_local(const Attributes& a) {
  return a.ep_rank_id < a.shared_expert_rank_num ? 1 : local_experts(a, a.ep_rank_id).count;
}

// Of checked attributes; types and wires are left to the caller.
ExchangeConfig exchange_config(const Attributes& attributes, const Batch& batch);

// Of checked attributes: A for one rank of the expert-parallel group.
std::int64_t row_capacity(const Attributes& attributes, const Batch& batch, bool elastic);

}  // namespace ferry::cann::internal
