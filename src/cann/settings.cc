#include "cann/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

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
constexpr std::uint32_t kSent = 1, kSkips = 2;

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
std::uint64_t digest_of(const Settings& settings, bool skips, bool any_scales) {
  std::uint64_t hash = 14695981039346656037U;
  for (int field = 0; field < Settings::kScaleColumns; ++field) {
    hash = (hash ^ static_cast<std::uint64_t>(settings.values[field])) * 1099511628211U;
    hash ^= hash >> 29;
  }
  const auto folded = static_cast<std::uint32_t>(hash ^ (hash >> 32));
  const std::uint64_t lower = (folded & ~(kSent | kSkips)) | kSent | (skips ? kSkips : 0U);
  if (settings.purpose() == Purpose::kCombine || any_scales) return lower;
  return lower | static_cast<std::uint64_t>(settings.values[Settings::kScaleColumns] + 1) << 32;
}

Agreement agreement_of(std::span<const std::uint64_t> digests, Purpose purpose) noexcept {
  Agreement found;
  for (const std::uint64_t digest : digests) {
    const auto lower = [](std::uint64_t each) { return static_cast<std::uint32_t>(each) | kSkips; };
    const bool skips = (digest & kSkips) != 0;
    const std::uint64_t columns = purpose == Purpose::kDispatch ? digest >> 32 : 1;
    if (columns != 0 && !found.scale_columns) found.scale_columns = columns - 1;
    found.equal &= lower(digest) == lower(digests[0]) &&
                   (columns == 0 || found.scale_columns == static_cast<std::int64_t>(columns - 1));
    found.skipped |= skips;
    found.follow &= skips || columns == 0;
  }
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
