// Triplets: a comparison of assist_info_for_combine with expert_ids. Combine finds rows by the ids
// alone, so with other ids than those of dispatch it would mix up tokens. Every rank adds a hash of
// each (source, token, k, expert) that it received, and subtracts the hash of each that its ids now
// name. If the ids are those of dispatch, the sum over all ranks is 0.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "cann/elastic.h"
#include "ferry/cann.h"

namespace ferry::cann::internal {

// True when the shares of all ranks, the upper halves of their digests, add up to 0, or when a rank
// has none.
bool shares_fit(std::span<const std::uint64_t> digests);

class Triplets {
 public:
  // Takes checked arguments; `dispatched` has the ids as ferry numbers experts, and the masks.
  Triplets(const CombineArgs& args, const ElasticMap& elastic,
           const ferry::DispatchArgs& dispatched);

  // The hash of this rank, with a bit that says that there is one; 0 without counts, or without
  // triplets of received rows. It is the upper half of the digest of a combine.
  std::uint32_t share_of_zero() const;

  // Call when the shares do not add up to 0. Returns an error with the rank, token and k of an id
  // that differs. Collective.
  Status name_difference(const Group& group, const ExchangeConfig& config) const;

 private:
  struct Entry {
    std::int64_t source = 0;  // a rank of the group; with elastic_info a new rank
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
