// ElasticMap: a checked elastic_info: the ranks that remain after scaling down, and the experts
// that the ids stand for, which number the experts of the remaining ranks only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cann/attributes.h"
#include "ferry/cann.h"

namespace ferry::cann::internal {

// The ranks that an elastic_info names, unchecked; empty: all ranks; {-1}: it cannot be read. A
// rank that refuses its call for another reason sends the refusal to them.
std::vector<int> named_ranks(std::span<const std::int32_t> elastic_info);

class ElasticMap {
 public:
  // Throws Refused. Without elastic_info, or with one that is not scaled down, all ranks remain.
  ElasticMap(std::span<const std::int32_t> elastic_info, const Attributes& attributes);

  bool scaled_down() const noexcept { return !active_.empty(); }
  // The old rank of each new rank; empty: all ranks remain.
  std::span<const int> active() const noexcept { return active_; }
  std::int64_t num_sources() const noexcept {
    return scaled_down() ? static_cast<std::int64_t>(active_.size()) : attributes_.ep_world_size;
  }

  // Returns the ids as ferry numbers experts: ids.data where all ranks remain, else `translated`,
  // which is filled. Throws Refused for an id out of range.
  const std::int32_t* translate(Matrix<const std::int32_t> ids,
                                std::vector<std::int32_t>& translated) const;
  // Reorders a row for each new id to a row for each old id; returns other shapes unchanged.
  ScaleRows translate(ScaleRows scales, std::vector<float>& translated) const;

 private:
  std::int32_t old_expert(std::int32_t id) const noexcept;
  void check_tables(std::span<const std::int32_t> table1, std::span<const std::int32_t> table2);

  const Attributes& attributes_;
  std::vector<int> active_;
  std::int32_t shared_ranks_ = 0;  // shared-expert ranks that remain
  std::int32_t experts_ = 0;       // routed experts of the remaining ranks
  std::int64_t local_experts_ = 0;
};

}  // namespace ferry::cann::internal
