#include "cann/exchange_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cann/configs.h"

namespace ferry::cann::internal {

namespace {

bool same_rows(const ExchangeConfig& have, const ExchangeConfig& wanted) {
  const SharedExperts &shared = have.shared, &wanted_shared = wanted.shared;
  const SpecialExperts &special = have.special, &wanted_special = wanted.special;
  return have.max_tokens >= wanted.max_tokens && have.algorithm == wanted.algorithm &&
         have.hidden == wanted.hidden && have.top_k == wanted.top_k &&
         have.num_experts == wanted.num_experts && have.tp_size == wanted.tp_size &&
         shared.num_experts == wanted_shared.num_experts &&
         shared.num_ranks == wanted_shared.num_ranks && shared.rule == wanted_shared.rule &&
         special.zero == wanted_special.zero && special.copy == wanted_special.copy &&
         special.constant == wanted_special.constant;
}

// A dispatch does not know the wire of its combine, nor a combine that of its dispatch.
bool serves(const ExchangeConfig& have, const ExchangeConfig& wanted, Purpose purpose,
            bool any_scales = false) {
  if (!same_rows(have, wanted)) return false;
  if (purpose == Purpose::kCombine) return have.combine_wire == wanted.combine_wire;
  return have.dtype == wanted.dtype && have.wire == wanted.wire &&
         (have.scale_bytes == wanted.scale_bytes || any_scales);
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

// An element that is not equal to one which the most others equal, and that one; by rank.
template <typename Values>
std::pair<std::size_t, std::size_t> odd_and_usual(const Values& values) {
  const auto equal_to = [&](std::size_t rank) { return std::ranges::count(values, values[rank]); };
  std::size_t usual = 0, odd = 0;
  for (std::size_t rank = 1; rank < values.size(); ++rank)
    if (equal_to(rank) > equal_to(usual)) usual = rank;
  while (odd + 1 < values.size() && values[odd] == values[usual]) ++odd;
  return {odd, usual};
}

Failed mismatch(std::size_t culprit, std::string text) {
  return {{status_code(Code::kMismatch),
           {Code::kMismatch, std::move(text), static_cast<int>(culprit)}}};
}

Failed failed(const Status& status) { return {{status_code(status.code()), status}}; }

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

bool ExchangeCache::left_out() const {
  return !active_.empty() && std::ranges::find(active_, group_.rank()) == active_.end();
}

// A rank that is left out sees no numbers: it goes on as if all others had made its call.
Exchange& ExchangeCache::find(const Wanted& wanted) {
  if (exchanges_.empty()) return make_first(wanted);
  Exchange& last = exchanges_.front();
  const bool any_scales = wanted.any_scales && !left_out();
  if (serves(last.config(), wanted.config, wanted.purpose(), any_scales)) return last;
  std::vector<std::uint64_t> digests;
  const Status status =
      last.skip("its call needs another exchange",
                {digest_of(wanted.settings, /*skips=*/true, any_scales), &digests}, active_);
  if (Exchange* next = follow(wanted, status, digests)) return *next;
  if (!status.ok()) throw failed(status);
  return go_on(wanted.config, wanted.purpose(), /*any_scales=*/false);
}

// The ranks see equal numbers, so they decide equally. A rank that refused has none, and the status
// has its reason.
Exchange* ExchangeCache::follow(const Wanted& wanted, const Status& status,
                                std::span<const std::uint64_t> digests) {
  if (!status.group_usable() || std::ranges::count(digests, 0U) > 0) return nullptr;
  const Agreement agreement = agreement_of(digests, wanted.purpose());
  if (agreement.equal && !agreement.skipped) return nullptr;
  if (!agreement.equal || !agreement.follow) throw_differences(wanted, status, digests);
  ExchangeConfig config = wanted.config;
  if (wanted.any_scales)
    config.scale_bytes =
        agreement.scale_columns.value_or(0) * static_cast<std::int64_t>(sizeof(float));
  return &go_on(std::move(config), wanted.purpose(), !agreement.scale_columns);
}

// Where ranks are left out the other ranks cannot gather anything.
void ExchangeCache::throw_differences(const Wanted& wanted, const Status& status,
                                      std::span<const std::uint64_t> digests) {
  if (!active_.empty()) {
    // The lower halves: the upper ones of a combine differ in any case.
    const auto [odd, usual] =
        odd_and_usual(std::vector<std::uint32_t>(digests.begin(), digests.end()));
    throw mismatch(active_[odd],
                   fmt::format("the arguments of ranks {} and {} differ in this {}", active_[odd],
                               active_[usual], operator_name(wanted.purpose())));
  }
  std::vector<Settings> settings;
  for (const Sent& each : gather({0, wanted.any_scales, wanted.settings}))
    settings.push_back(each.settings);
  const auto [odd, usual] = odd_and_usual(settings);
  if (settings[odd] == settings[usual]) throw failed(status);
  const char* const other = operator_name(settings[odd].purpose());
  if (const char* const that = operator_name(settings[usual].purpose()); that != other)
    throw mismatch(odd,
                   fmt::format("rank {} called {}, rank {} called {}", odd, other, usual, that));
  throw mismatch(odd, fmt::format("ranks {} and {} differ in this {}: {}", odd, usual, other,
                                  differences(settings[odd], settings[usual])));
}

// A rank without tokens takes the number of scales that the ranks with tokens have.
std::vector<ExchangeCache::Sent> ExchangeCache::gather(const Sent& mine) {
  std::vector<Sent> all(group_.size());
  if (Status status = group_.all_gather(&mine, sizeof mine, all.data()); !status.ok())
    throw failed(status);
  std::int64_t columns = 0;
  for (const auto& [refuses, any_scales, settings] : all)
    if (!any_scales) columns = std::max(columns, settings.values[Settings::kScaleColumns]);
  for (auto& [refuses, any_scales, settings] : all)
    if (any_scales) settings.values[Settings::kScaleColumns] = columns;
  return all;
}

// Where a rank refuses its call, all ranks see that when they make the exchange.
Exchange& ExchangeCache::make_first(const Wanted& wanted) {
  const std::vector<Sent> all = gather({0, wanted.any_scales, wanted.settings});
  const bool refused = std::ranges::any_of(all, [](const Sent& each) { return each.refuses != 0; });
  for (std::size_t rank = 1; rank < all.size() && !refused; ++rank) {
    if (all[rank].settings == all[0].settings) continue;
    throw mismatch(rank, fmt::format("ranks 0 and {} make different exchanges: {}", rank,
                                     differences(all[0].settings, all[rank].settings)));
  }
  ExchangeConfig config = wanted.config;
  config.scale_bytes = all[group_.rank()].settings.values[Settings::kScaleColumns] * sizeof(float);
  return make(std::move(config), wanted.purpose());
}

// The ranks with tokens have skipped the exchange used last.
Exchange& ExchangeCache::go_on(ExchangeConfig config, Purpose purpose, bool any_scales) {
  const auto found = std::ranges::find_if(exchanges_, [&](const Exchange& each) {
    return serves(each.config(), config, purpose, any_scales);
  });
  if (found == exchanges_.end()) {
    serve_as_well(last().config(), purpose, config);
    return make(std::move(config), purpose);
  }
  std::rotate(exchanges_.begin(), found, found + 1);
  return exchanges_.front();
}

// Makes an exchange, and destroys the older ones that it replaces: no rank is in a call of an older
// exchange while all ranks make this one.
Exchange& ExchangeCache::make(ExchangeConfig config, Purpose purpose) {
  config.workers = options_.workers;
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
  if (!exchanges_.empty()) {
    Exchange& last = exchanges_.front();
    outcome = purpose == Purpose::kDispatch ? last.refuse_dispatch(why, active_)
                                            : last.refuse_combine(why, active_);
  } else {
    try {
      gather({1, 0, {}});
      Exchange::refuse(group_, why);
    } catch (const Error& error) {
      outcome = {error.code(), error.what(), error.culprit()};
    } catch (const Failed& failure) {
      outcome = failure.result.status;
    }
  }
  if (outcome.code() == why.code()) return {refused.code, why};
  return {status_code(outcome.code()), outcome};
}

}  // namespace ferry::cann::internal
