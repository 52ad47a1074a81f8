// Limits on the attributes of the operators, and the settings of the exchange that the attributes
// need. Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "ferry/cann.h"

namespace ferry::cann::internal {

// A rank of a group.
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
// The shared experts that each token goes to; none where no rank holds shared experts.
inline int num_shared(const Attributes& a) noexcept {
  return a.shared_expert_rank_num > 0 ? static_cast<int>(a.shared_expert_num) : 0;
}

inline constexpr std::array<std::string_view, 5> kCommAlgs = {"", "fullmesh", "fullmesh_v1",
                                                              "fullmesh_v2", "hierarchy"};

// Throws Refused unless the attributes are legal for this batch and this place in the group.
void check_attributes(const Attributes& attributes, const Batch& batch, const Place& place);
// The rank and the group size that the attributes state.
Place claimed_place(const Attributes& attributes);

// The routed experts of a rank that holds no shared expert. They are contiguous blocks; the first
// blocks have one expert more where the experts do not divide evenly.
struct LocalExperts {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
LocalExperts local_experts(const Attributes& attributes, std::int64_t ep_rank);
// The number of experts of this rank; a rank that holds a shared expert has one.
inline std::int64_t num_local(const Attributes& a) {
  return a.ep_rank_id < a.shared_expert_rank_num ? 1 : local_experts(a, a.ep_rank_id).count;
}

// The settings for checked attributes, except the types and wires, which the caller sets.
ExchangeConfig exchange_config(const Attributes& attributes, const Batch& batch);

// For checked attributes. The size A in CANN's documentation of the operators: the most rows that
// this rank can receive from all ranks of one tp_rank. `elastic`: this rank may come to hold routed
// experts or a shared expert, so the result is the larger one of both.
std::int64_t row_capacity(const Attributes& attributes, const Batch& batch, bool elastic);

}  // namespace ferry::cann::internal
