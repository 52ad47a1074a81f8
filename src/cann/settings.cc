#include "cann/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "cann/configs.h"

namespace ferry::cann::internal {

namespace {

using enum Settings::Field;

Settings common_settings(Purpose purpose, const Attributes& a, const Batch& batch) {
  Settings settings;
  auto& values = settings.values;
  values[kOperator] = static_cast<std::int64_t>(purpose) + 1;
  values[kGlobalBs] = a.global_bs;
  if (a.global_bs == 0) values[kBs] = batch.bs;
  values[kH] = batch.h;
  values[kK] = batch.k;
  values[kMoeExperts] = a.moe_expert_num;
  values[kTpSize] = tp_size_of(a) > 1 ? a.tp_world_size : 0;
  values[kSharedRanks] = a.shared_expert_rank_num;
  values[kSharedExperts] = num_shared(a);
  if (num_shared(a) > 0) values[kVersion] = a.version == 1 ? 1 : 2;
  values[kZeroExperts] = a.zero_expert_num;
  values[kCopyExperts] = a.copy_expert_num;
  values[kConstExperts] = a.const_expert_num;
  values[kCommAlg] = std::ranges::find(kCommAlgs, a.comm_alg) - kCommAlgs.begin();
  return settings;
}

// Bits of the number that a rank sends.
constexpr std::uint32_t kSent = 1, kSkips = 2, kAnyScales = 4;
constexpr std::uint32_t kFlags = kSent | kSkips | kAnyScales;
constexpr int kColumnsAt = 32, kColumnsBits = 21, kIndexAt = kColumnsAt + kColumnsBits;
static_assert(kNew < 1 << (64 - kIndexAt));

// The number that a rank sent (digest_of), decoded. A rank that refused has none.
struct Said {
  Said(std::uint64_t digest, Purpose purpose)
      : settings(static_cast<std::uint32_t>(digest) | kFlags),
        skips((digest & kSkips) != 0),
        any_scales((digest & kAnyScales) != 0),
        goes_to(skips ? static_cast<ExchangeIndex>(digest >> kIndexAt) : kSame) {
    if (purpose == Purpose::kDispatch && !any_scales)
      columns = (digest >> kColumnsAt) & ((1U << kColumnsBits) - 1);
  }
  std::uint32_t settings;
  bool skips, any_scales;
  ExchangeIndex goes_to;
  std::optional<std::int64_t> columns = {};
};

// The most frequent index, the first one if several are; kSame if there are none.
ExchangeIndex most_common(std::span<const ExchangeIndex> needed) {
  ExchangeIndex most = kSame;
  std::int64_t times = 0;
  for (const ExchangeIndex index : needed) {
    const std::int64_t count = std::ranges::count(needed, index);
    if (count > times) most = index, times = count;
  }
  return most;
}

std::int64_t type_value(DataType type) { return static_cast<std::int64_t>(type) + 1; }

const char* name_of(int field, Purpose purpose) {
  const bool dispatch = purpose == Purpose::kDispatch;
  switch (field) {
    case kOperator: return "operator";
    case kMode: return dispatch ? "quant_mode" : "comm_quant_mode";
    case kType: return dispatch ? "type of x" : "type of expand_x";
    default: break;
  }
  constexpr const char* kNames[] = {"global_bs",
                                    "Bs",
                                    "H",
                                    "K",
                                    "moe_expert_num",
                                    "tp_world_size",
                                    "shared_expert_rank_num",
                                    "shared_expert_num",
                                    "version",
                                    "zero_expert_num",
                                    "copy_expert_num",
                                    "const_expert_num",
                                    "comm_alg",
                                    "columns of scales"};
  return kNames[field - kGlobalBs];
}

std::string text_of(int field, const Settings& settings) {
  const std::int64_t value = settings.values[field];
  if (value == 0) return "none";
  switch (field) {
    case kOperator: return operator_name(settings.purpose());
    case kType: return data_type_name(static_cast<DataType>(value - 1));
    case kVersion: return value == 1 ? "1" : "2 to 4";
    case kCommAlg: return std::string(kCommAlgs[value]);
    default: return std::to_string(value);
  }
}

}  // namespace

const char* operator_name(Purpose purpose) noexcept {
  return purpose == Purpose::kDispatch ? "dispatch" : "combine";
}

Settings settings_of(const DispatchArgs& args) {
  Settings settings = common_settings(Purpose::kDispatch, args.attributes, batch_of(args));
  settings.values[kMode] = args.quant_mode;
  settings.values[kType] = type_value(args.x.dtype);
  if (args.quant_mode == 0) settings.values[kScaleColumns] = scale_columns(args);
  return settings;
}

Settings settings_of(const CombineArgs& args) {
  Settings settings = common_settings(Purpose::kCombine, args.attributes, batch_of(args));
  settings.values[kMode] = args.comm_quant_mode;
  settings.values[kType] = type_value(args.expand_x.dtype);
  return settings;
}

// FNV-1a, folded.
std::uint64_t digest_of(const Settings& settings, ExchangeIndex goes_to, bool any_scales) {
  std::uint64_t hash = 14695981039346656037U;
  for (int field = 0; field < Settings::kScaleColumns; ++field) {
    hash = (hash ^ static_cast<std::uint64_t>(settings.values[field])) * 1099511628211U;
    hash ^= hash >> 29;
  }
  const auto folded = static_cast<std::uint32_t>(hash ^ (hash >> 32));
  const std::uint32_t lower = (folded & ~kFlags) | kSent | (goes_to != kSame ? kSkips : 0U) |
                              (any_scales ? kAnyScales : 0U);
  const std::int64_t columns = any_scales ? 0 : settings.values[Settings::kScaleColumns];
  FERRY_CHECK(goes_to, <=, kNew);
  FERRY_CHECK(columns, <, std::int64_t{1} << kColumnsBits);
  return lower | static_cast<std::uint64_t>(columns) << kColumnsAt |
         static_cast<std::uint64_t>(goes_to) << kIndexAt;
}

Agreement agreement_of(std::span<const std::uint64_t> digests, Purpose purpose) {
  Agreement found;
  std::vector<Said> said;
  std::vector<ExchangeIndex> needed, needed_with_any_scales;
  for (const std::uint64_t digest : digests) {
    if (digest == 0) {
      found.refused = true;
      continue;
    }
    const Said& theirs = said.emplace_back(digest, purpose);
    if (!found.scale_columns) found.scale_columns = theirs.columns;
    (theirs.any_scales ? needed_with_any_scales : needed).push_back(theirs.goes_to);
  }
  const bool one_skips = std::ranges::any_of(said, &Said::skips);
  for (const Said& theirs : said) {
    const auto columns = theirs.columns.value_or(found.scale_columns.value_or(0));
    found.settings.push_back(theirs.settings | static_cast<std::uint64_t>(columns) << kColumnsAt);
    found.equal &= found.settings.back() == found.settings.front();
    found.equal &= !one_skips || theirs.skips || theirs.any_scales;
  }
  found.next = most_common(needed.empty() ? needed_with_any_scales : needed);
  return found;
}

std::string differences(const Settings& first, const Settings& other) {
  std::vector<std::string> found;
  const bool same = first.purpose() == other.purpose();
  for (int field = 0; field < (same ? int{kNumFields} : kMode); ++field) {
    if (first.values[field] == other.values[field]) continue;
    found.push_back(fmt::format("{} is {} and {}", name_of(field, first.purpose()),
                                text_of(field, first), text_of(field, other)));
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

}  // namespace ferry::cann::internal
