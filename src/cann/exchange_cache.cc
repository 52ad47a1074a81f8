#include "cann/exchange_cache.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "cann/configs.h"

namespace ferry::cann::internal {

namespace {

// Extents of 0 in `wanted` are unknown and fit any extent.
bool same_rows(const ExchangeConfig& have, const ExchangeConfig& wanted) {
  const SharedExperts &shared = have.shared, &wanted_shared = wanted.shared;
  const SpecialExperts &special = have.special, &wanted_special = wanted.special;
  return have.max_tokens >= wanted.max_tokens && have.algorithm == wanted.algorithm &&
         (have.hidden == wanted.hidden || wanted.hidden == 0) &&
         (have.top_k == wanted.top_k || wanted.top_k == 0) &&
         have.num_experts == wanted.num_experts && have.tp_size == wanted.tp_size &&
         shared.num_experts == wanted_shared.num_experts &&
         shared.num_ranks == wanted_shared.num_ranks && shared.rule == wanted_shared.rule &&
         special.zero == wanted_special.zero && special.copy == wanted_special.copy &&
         special.constant == wanted_special.constant;
}

constexpr std::int64_t kAnyScales = -1, kRefusing = -2;  // in place of scale_bytes

// A dispatch does not know the wire of its combine, nor a combine that of its dispatch.
bool serves(const ExchangeConfig& have, const ExchangeConfig& wanted, Purpose purpose) {
  if (!same_rows(have, wanted)) return false;
  if (purpose == Purpose::kCombine) return have.combine_wire == wanted.combine_wire;
  return have.dtype == wanted.dtype && have.wire == wanted.wire &&
         (have.scale_bytes == wanted.scale_bytes || wanted.scale_bytes == kAnyScales);
}

// Lets a new exchange for a combine also serve the dispatches of the last exchange, and a new one
// for a dispatch its combines, so that a dispatch and its combine share one window.
void serve_as_well(const ExchangeConfig& last, Purpose purpose, ExchangeConfig& wanted) {
  if (!same_rows(last, wanted)) return;
  wanted.max_tokens = last.max_tokens;
  if (purpose == Purpose::kDispatch) {
    wanted.combine_wire = last.combine_wire;
    return;
  }
  wanted.dtype = last.dtype;
  wanted.wire = last.wire;
  wanted.scale_bytes = last.scale_bytes;
}

}  // namespace

ExchangeCache::ExchangeCache(Group group, CommunicatorOptions options)
    : group_(std::move(group)), options_(std::move(options)) {}

void ExchangeCache::check_names(const Attributes& attributes) const {
  require_value(attributes.group_ep == options_.group_ep,
                "group_ep is \"{}\", the communicator's is \"{}\"", attributes.group_ep,
                options_.group_ep);
  require_value(attributes.tp_world_size <= 1 || attributes.group_tp == options_.group_tp,
                "group_tp is \"{}\", the communicator's is \"{}\"", attributes.group_tp,
                options_.group_tp);
}

void ExchangeCache::expect(const Attributes& attributes, const Batch& batch) {
  expected_.reset();
  const Batch legal{batch.bs, std::max<std::int64_t>(batch.h, 1),
                    std::max<std::int64_t>(batch.k, 1)};
  try {
    check_attributes(attributes, legal, place());
  } catch (const Refused&) {
    return;
  }
  expected_ = exchange_config(attributes, batch);
}

// The exchange in which a rank declines a call, which is that in which other ranks may wait: the
// one that would serve the call, else one of the same mode, else one of the same rows, else the one
// used last. It becomes the one used last, as on the ranks that use it.
Exchange& ExchangeCache::meeting_place(Purpose purpose) {
  FERRY_CHECK(exchanges_.size(), >, 0U);
  const auto fit = [&](const ExchangeConfig& have) {
    if (!same_rows(have, *expected_)) return 0;
    if (serves(have, *expected_, purpose)) return 3;
    return purpose == Purpose::kDispatch && have.wire == expected_->wire ? 2 : 1;
  };
  for (int wanted = 3; expected_ && wanted > 0; --wanted) {
    const auto found =
        std::find_if(exchanges_.begin(), exchanges_.end(),
                     [&](const Exchange& exchange) { return fit(exchange.config()) == wanted; });
    if (found == exchanges_.end()) continue;
    std::rotate(exchanges_.begin(), found, found + 1);
    break;
  }
  return exchanges_.front();
}

// Refuses an operation in the exchange in which other ranks may wait.
Status ExchangeCache::decline(Purpose purpose, const Status& why, std::span<const int> ranks,
                              bool& by_all) {
  Exchange& exchange = meeting_place(purpose);
  return purpose == Purpose::kDispatch ? exchange.refuse_dispatch(why, ranks, &by_all)
                                       : exchange.refuse_combine(why, ranks, &by_all);
}

Exchange* ExchangeCache::used_last(Purpose purpose, const ExchangeConfig& wanted) {
  const auto found = std::find_if(
      exchanges_.begin(), exchanges_.end(),
      [&](const Exchange& exchange) { return serves(exchange.config(), wanted, purpose); });
  if (found == exchanges_.end()) return nullptr;
  std::rotate(exchanges_.begin(), found, found + 1);
  expected_.reset();
  return &exchanges_.front();
}

Exchange& ExchangeCache::find(Purpose purpose, ExchangeConfig wanted, bool any_scales) {
  if (Exchange* exchange = used_last(purpose, wanted)) return *exchange;
  if (any_scales) {
    wanted.scale_bytes = kAnyScales;
    if (Exchange* exchange = used_last(purpose, wanted)) return *exchange;
  }
  if (!exchanges_.empty()) {
    const Status why(Code::kMismatch, with_scales(wanted.terms, wanted.scale_bytes), group_.rank());
    bool by_all = false;
    const Status outcome = decline(purpose, why, {}, by_all);  // all ranks make exchanges together
    if (outcome.code() != why.code() || !by_all)
      throw Failed{{status_code(outcome.code()), outcome}};
  }
  return follow(purpose, wanted, any_scales);
}

Exchange& ExchangeCache::follow(Purpose purpose, ExchangeConfig wanted, bool any_scales) {
  if (!exchanges_.empty()) serve_as_well(exchanges_.front().config(), purpose, wanted);
  if (any_scales) wanted.scale_bytes = kAnyScales;
  wanted.workers = options_.workers;
  expected_.reset();
  return make(purpose, wanted);
}

// Ranks without tokens take the number of scale bytes that the ranks with tokens have.
std::int64_t ExchangeCache::agree_on_scales(std::int64_t mine) {
  std::vector<std::int64_t> all(group_.size());
  if (Status status = group_.all_gather(&mine, sizeof mine, all.data()); !status.ok())
    throw Failed{{status_code(status.code()), status}};
  if (mine != kAnyScales) return mine;
  return std::max<std::int64_t>(*std::max_element(all.begin(), all.end()), 0);
}

// Makes an exchange, and destroys the older ones that it replaces: no rank is in a call of an older
// exchange while all ranks make this one.
Exchange& ExchangeCache::make(Purpose purpose, const ExchangeConfig& wanted) {
  ExchangeConfig config = wanted;
  config.scale_bytes = agree_on_scales(wanted.scale_bytes);
  config.terms = purpose == Purpose::kDispatch ? "operator is dispatch\n" : "operator is combine\n";
  config.terms += with_scales(wanted.terms, config.scale_bytes);
  Exchange made(group_, config);
  const ExchangeConfig& complete = made.config();
  FERRY_CHECK(serves(complete, config, purpose), ==, true);
  std::erase_if(exchanges_, [&](const Exchange& old) {
    return serves(complete, old.config(), Purpose::kDispatch) &&
           serves(complete, old.config(), Purpose::kCombine);
  });
  exchanges_.insert(exchanges_.begin(), std::move(made));
  return exchanges_.front();
}

Result ExchangeCache::refuse(Purpose purpose, const Refused& refused) {
  const Status why(refused.status.code(), refused.status.message(), group_.rank());
  Status outcome = why;
  bool by_all = exchanges_.empty();
  if (!by_all) outcome = decline(purpose, why, active_, by_all);
  if (by_all) {  // the other ranks make an exchange, or refuse to make one too
    try {
      agree_on_scales(kRefusing);
      Exchange::refuse(group_, why);
    } catch (const Error& error) {
      outcome = {error.code(), error.what(), error.culprit()};
    } catch (const Failed& failed) {
      outcome = failed.result.status;
    }
  }
  if (outcome.code() == why.code()) return {refused.code, why};
  return {status_code(outcome.code()), outcome};
}

}  // namespace ferry::cann::internal
