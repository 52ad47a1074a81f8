// Settings: the arguments on which the ranks of a call must agree, as numbers under the names of
// the operators. Ranks compare digests with every call, and the numbers where digests differ. Pure
// functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "cann/attributes.h"
#include "ferry/cann.h"

namespace ferry::cann::internal {

enum class Purpose : std::uint8_t { kDispatch, kCombine };

struct Settings {
  // In this order in messages.
  enum Field {
    kOperator,
    kMode,
    kType,
    kGlobalBs,
    kBs,
    kH,
    kK,
    kMoeExperts,
    kTpSize,
    kSharedRanks,
    kSharedExperts,
    kVersion,
    kZeroExperts,
    kCopyExperts,
    kConstExperts,
    kCommAlg,
    kScaleColumns,
    kNumFields
  };
  std::array<std::int64_t, kNumFields> values = {};  // 0: the default

  bool operator==(const Settings&) const = default;
  Purpose purpose() const noexcept { return static_cast<Purpose>(values[kOperator] - 1); }
};

// For arguments with checked attributes. With global_bs 0 all ranks need the same Bs.
Settings settings_of(const DispatchArgs& args);
Settings settings_of(const CombineArgs& args);

// The number that a rank sends with its call (ferry::Digests). The lower half is never 0: it has a
// digest of all settings except the columns of scales, and says whether the rank skips. The upper
// half of a dispatch is the number of columns of scales plus 1, or 0 if the rank takes any number.
// The upper half of a combine is 0.
std::uint64_t digest_of(const Settings& settings, bool skips, bool any_scales);

// What the numbers of the active ranks say. Without numbers nothing differs.
struct Agreement {
  bool equal = true;     // the settings are equal
  bool skipped = false;  // a rank skipped
  bool follow = true;    // every rank skipped, or takes any number of scales
  std::optional<std::int64_t> scale_columns = {};  // none: every rank takes any number
};
Agreement agreement_of(std::span<const std::uint64_t> digests, Purpose purpose) noexcept;

// "name is value and value" for each setting that differs.
std::string differences(const Settings& first, const Settings& other);

const char* operator_name(Purpose purpose) noexcept;

}  // namespace ferry::cann::internal
