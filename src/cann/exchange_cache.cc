#include "cann/exchange_cache.h"

#include <algorithm>
#include <vector>

#include "cann/configs.h"

namespace ferry::cann::internal {

namespace {

// Extents of 0 in what is wanted are not known, and fit.
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

// A dispatch does not know how combine will bring rows home, nor combine how they went out.
bool serves(const ExchangeConfig& have, const ExchangeConfig& wanted, Purpose purpose) {
  if (!same_rows(have, wanted)) return false;
  if (purpose == Purpose::kCombine) return have.combine_wire == wanted.combine_wire;
  return have.dtype == wanted.dtype && have.wire == wanted.wire &&
         (have.scale_bytes == wanted.scale_bytes || wanted.scale_bytes == kAnyScales);
}

// A new exchange for a combine also serves the dispatches of the last one, and the other way round,
// so that a pair shares one window.
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

// Where ranks look for each other that do not use an exchange they have: the one that would serve,
// else one of the same mode, else one of the same rows, else the one used last. It becomes the one
// used last, as on the ranks that use it.
Exchange& ExchangeCache::meeting_place(Purpose purpose) {
  const auto likeness = [&](const ExchangeConfig& have) {
    if (!same_rows(have, *expected_)) return 0;
    if (serves(have, *expected_, purpose)) return 3;
    return purpose == Purpose::kDispatch && have.wire == expected_->wire ? 2 : 1;
  };
  for (int wanted = 3; expected_ && wanted > 0; --wanted) {
    const auto found = std::find_if(
        exchanges_.begin(), exchanges_.end(),
        [&](const Exchange& exchange) { return likeness(exchange.config()) == wanted; });
    if (found == exchanges_.end()) continue;
    std::rotate(exchanges_.begin(), found, found + 1);
    break;
  }
  return exchanges_.front();
}

// Not this operation, says this rank, in an exchange that the others may be in.
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
    const Status told = decline(purpose, why, {}, by_all);  // exchanges are made by all ranks
    if (told.code() != why.code() || !by_all) throw Failed{{status_code(told.code()), told}};
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

// Ranks without tokens take the number that the others have.
std::int64_t ExchangeCache::agree_on_scales(std::int64_t mine) {
  std::vector<std::int64_t> all(group_.size());
  if (Status status = group_.all_gather(&mine, sizeof mine, all.data()); !status.ok())
    throw Failed{{status_code(status.code()), status}};
  if (mine != kAnyScales) return mine;
  return std::max<std::int64_t>(*std::max_element(all.begin(), all.end()), 0);
}

// Nobody is inside an older exchange while all make this one, so those that it replaces can go.
Exchange& ExchangeCache::make(Purpose purpose, const ExchangeConfig& wanted) {
  ExchangeConfig config = wanted;
  config.scale_bytes = agree_on_scales(wanted.scale_bytes);
  config.terms = purpose == Purpose::kDispatch ? "operator is dispatch\n" : "operator is combine\n";
  config.terms += with_scales(wanted.terms, config.scale_bytes);
  Exchange made(group_, config);
  const ExchangeConfig& complete = made.config();
  std::erase_if(exchanges_, [&](const Exchange& old) {
    return serves(complete, old.config(), Purpose::kDispatch) &&
           serves(complete, old.config(), Purpose::kCombine);
  });
  exchanges_.insert(exchanges_.begin(), std::move(made));
  return exchanges_.front();
}

Result ExchangeCache::refuse(Purpose purpose, const Refused& refused) {
  const Status why(refused.status.code(), refused.status.message(), group_.rank());
  Status told = why;
  bool by_all = exchanges_.empty();
  if (!by_all) told = decline(purpose, why, active_, by_all);
  if (by_all) {  // the others make an exchange, or refuse that as well
    try {
      agree_on_scales(kRefusing);
      Exchange::refuse(group_, why);
    } catch (const Error& error) {
      told = {error.code(), error.what(), error.culprit()};
    } catch (const Failed& failed) {
      told = failed.result.status;
    }
  }
  if (told.code() == why.code()) return {refused.code, why};
  return {status_code(told.code()), told};
}

}  // namespace ferry::cann::internal
