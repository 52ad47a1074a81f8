// ElasticMap: what elastic_info says, checked: which ranks are left, and whose experts the ids name
// that count those ranks only. Called by dispatch.cc and combine.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cann/attributes.h"
#include "ferry/cann.h"

namespace ferry::cann::internal {

class ElasticMap {
 public:
  // Throws Refused. Without elastic_info, or with one that is not scaled down, everybody is left.
  ElasticMap(std::span<const std::int32_t> elastic_info, const Attributes& attributes);

  bool scaled_down() const noexcept { return !active_.empty(); }
  // Old ranks by new rank; empty: all.
  std::span<const int> active() const noexcept { return active_; }
  std::int64_t num_sources() const noexcept {
    return scaled_down() ? static_cast<std::int64_t>(active_.size()) : attributes_.ep_world_size;
  }

  // ids as ferry numbers experts: mine, or those in `translated`. Throws Refused for an id out of
  // range.
  const std::int32_t* translate(Matrix<const std::int32_t> ids,
                                std::vector<std::int32_t>& translated) const;
  // A row for each new id, reordered to a row for each old one; other shapes as they are.
  ScaleRows translate(ScaleRows scales, std::vector<float>& translated) const;

 private:
  std::int32_t old_expert(std::int32_t id) const noexcept;
  void check_tables(std::span<const std::int32_t> table1, std::span<const std::int32_t> table2);

  const Attributes& attributes_;
  std::vector<int> active_;
  std::int32_t shared_ranks_ = 0;  // left
  std::int32_t experts_ = 0;       // left
  std::int64_t local_experts_ = 0;
};

}  // namespace ferry::cann::internal
