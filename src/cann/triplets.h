// Triplets: assist_info_for_combine against expert_ids. Combine finds rows by the ids alone, so ids
// that dispatch did not have would mix up tokens. Every rank adds up a mark of each (source, token,
// k, expert) that its rows came as, and takes away one of each that its ids now ask for: over all
// ranks that is 0 if they are the same. Made by combine.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "cann/elastic.h"
#include "ferry/cann.h"

namespace ferry::cann::internal {

class Triplets {
 public:
  // Of checked arguments; `dispatched`: the ids as ferry numbers experts, and the masks.
  Triplets(const CombineArgs& args, const ElasticMap& elastic,
           const ferry::DispatchArgs& dispatched);

  // ferry::CombineArgs::share_of_zero; nothing without triplets and counts.
  std::optional<std::uint64_t> share_of_zero() const;

  // Collective, when the shares add up to something else: whose ids, at which token and k.
  Status name_difference(const Group& group, const ExchangeConfig& config) const;

 private:
  struct Entry {
    std::int64_t source = 0;  // rank of the group; under elastic_info a new one
    std::int64_t token = 0;
    std::int64_t k = 0;
    std::int64_t expert = 0;
  };
  void for_each_sent(const std::function<void(const Entry&)>& visit) const;
  void for_each_received(const std::function<void(const Entry&)>& visit) const;

  const CombineArgs& args_;
  const ElasticMap& elastic_;
  const ferry::DispatchArgs& dispatched_;
  std::int64_t tp_size_;
};

}  // namespace ferry::cann::internal
