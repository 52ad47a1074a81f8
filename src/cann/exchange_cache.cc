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

// Adds settings of the last exchange to those of a new one, so that a dispatch and its combine
// share one window: an exchange for a combine then also makes the dispatches of the last exchange,
// and one for a dispatch also makes its combines.
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

// Two ranks: one whose value is not the most frequent one, and one that has the most frequent
// value.
template <typename Values>
std::pair<std::size_t, std::size_t> odd_and_usual(const Values& values) {
  const auto equal_to = [&](std::size_t rank) { return std::ranges::count(values, values[rank]); };
  std::size_t usual = 0, odd = 0;
  for (std::size_t rank = 1; rank < values.size(); ++rank)
    if (equal_to(rank) > equal_to(usual)) usual = rank;
  while (odd + 1 < values.size() && values[odd] == values[usual]) ++odd;
  return {odd, usual};
}

Status mismatch(std::size_t culprit, std::string text) {
  return {Code::kMismatch, std::move(text), static_cast<int>(culprit)};
}

Failed failed(const Status& status) { return {{status_code(status.code()), status}}; }

Status refuse_call(Exchange& exchange, Purpose purpose, const Status& why,
                   std::span<const int> active, std::vector<std::uint64_t>* digests = nullptr) {
  return purpose == Purpose::kDispatch ? exchange.refuse_dispatch(why, active, digests)
                                       : exchange.refuse_combine(why, active, digests);
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

bool ExchangeCache::left_out() const {
  return !active_.empty() && std::ranges::find(active_, group_.rank()) == active_.end();
}

ExchangeIndex ExchangeCache::index_of(const Wanted& wanted, bool any_scales) const {
  const auto found = std::ranges::find_if(exchanges_, [&](const Exchange& each) {
    return serves(each.config(), wanted.config, wanted.purpose(), any_scales);
  });
  return found == exchanges_.end() ? kNew : static_cast<ExchangeIndex>(found - exchanges_.begin());
}

// A rank that is left out gets no digests: it goes on as if all others had made its call.
Exchange& ExchangeCache::find(const Wanted& wanted) {
  if (exchanges_.empty()) return make_first(wanted);
  const bool any_scales = wanted.any_scales && !left_out();
  const ExchangeIndex next = index_of(wanted, any_scales);
  if (next == kSame) return exchanges_.front();
  std::vector<std::uint64_t> digests;
  const Status status =
      exchanges_.front().skip("its call needs another exchange",
                              {digest_of(wanted.settings, next, any_scales), &digests}, active_);
  if (Exchange* const agreed = follow(wanted, status, digests)) return *agreed;
  if (!status.ok()) throw failed(status);
  return go_on(next, wanted.config, wanted.purpose());
}

// All ranks get equal digests, so they decide equally. A rank that is left out and makes the call
// of most ranks goes to the same exchange, even if the call fails: so all ranks go there.
Exchange* ExchangeCache::follow(const Wanted& wanted, const Status& status,
                                std::span<const std::uint64_t> digests) {
  if (!status.group_usable()) return nullptr;
  const Agreement agreement = agreement_of(digests, wanted.purpose());
  if (!agreement.equal) {
    const Status why =
        agreement.refused ? status : name_differences(wanted, status, agreement.settings);
    refuse_in(agreement.next, wanted.purpose(), why);
    throw failed(why);
  }
  if (agreement.next == kSame) return nullptr;
  ExchangeConfig config = wanted.config;
  if (wanted.any_scales)
    config.scale_bytes =
        agreement.scale_columns.value_or(0) * static_cast<std::int64_t>(sizeof(float));
  return &go_on(agreement.next, std::move(config), wanted.purpose());
}

// The error of a call in which the settings differ. Where ranks are left out the other ranks cannot
// gather anything.
Status ExchangeCache::name_differences(const Wanted& wanted, const Status& status,
                                       std::span<const std::uint64_t> numbers) {
  if (!active_.empty()) {
    const auto [odd, usual] = odd_and_usual(numbers);
    return mismatch(active_[odd],
                    fmt::format("the arguments of ranks {} and {} differ in this {}", active_[odd],
                                active_[usual], operator_name(wanted.purpose())));
  }
  std::vector<Settings> settings;
  for (const Sent& each : gather({0, wanted.any_scales, wanted.settings}))
    settings.push_back(each.settings);
  const auto [odd, usual] = odd_and_usual(settings);
  if (settings[odd] == settings[usual]) return status;
  const char* const other = operator_name(settings[odd].purpose());
  if (const char* const that = operator_name(settings[usual].purpose()); that != other)
    return mismatch(odd,
                    fmt::format("rank {} called {}, rank {} called {}", odd, other, usual, that));
  return mismatch(odd, fmt::format("ranks {} and {} differ in this {}: {}", odd, usual, other,
                                   differences(settings[odd], settings[usual])));
}

// A rank without tokens takes the number of scales that the ranks with tokens have.
std::vector<ExchangeCache::Sent> ExchangeCache::gather(const Sent& mine) {
  std::vector<Sent> sent(group_.size());
  if (Status status = group_.all_gather(&mine, sizeof mine, sent.data()); !status.ok())
    throw failed(status);
  std::vector<Sent> all(group_.size(), mine);  // as if ranks that the view lacks called the same
  for (const int rank : group_.view().members) all[rank] = sent[rank];
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
    throw failed(mismatch(rank, fmt::format("ranks 0 and {} make different exchanges: {}", rank,
                                            differences(all[0].settings, all[rank].settings))));
  }
  ExchangeConfig config = wanted.config;
  config.scale_bytes = all[group_.rank()].settings.values[Settings::kScaleColumns] * sizeof(float);
  return make(std::move(config), wanted.purpose());
}

// Returns the exchange in which all ranks go on. Each rank has skipped the last exchange, or
// follows the ranks that have skipped it.
Exchange& ExchangeCache::go_on(ExchangeIndex next, ExchangeConfig config, Purpose purpose) {
  if (next != kNew) return use(next);
  serve_as_well(last().config(), purpose, config);
  return make(std::move(config), purpose);
}

Exchange& ExchangeCache::use(ExchangeIndex next) {
  FERRY_CHECK(next, <, std::ssize(exchanges_));
  const auto chosen = exchanges_.begin() + next;
  std::rotate(exchanges_.begin(), chosen, chosen + 1);
  return exchanges_.front();
}

// Replaces the call of this rank in the exchange to which the ranks go on; kSame: they stay.
void ExchangeCache::refuse_in(ExchangeIndex next, Purpose purpose, const Status& why) {
  if (next == kSame) return;
  try {
    if (next == kNew) Exchange::refuse(group_, why);
  } catch (const Error& error) {  // `why`, or the error that broke the group
    return;
  }
  static_cast<void>(refuse_call(use(next), purpose, why, active_));
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
    std::vector<std::uint64_t> digests;
    outcome = refuse_call(exchanges_.front(), purpose, why, active_, &digests);
    if (outcome.group_usable()) refuse_in(agreement_of(digests, purpose).next, purpose, why);
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
