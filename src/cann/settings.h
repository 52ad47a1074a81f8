// Settings: the arguments on which the ranks of a call must agree, as numbers under the names of
// the operators. Ranks compare digests with every call, and the numbers where digests differ. Pure
// functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cann/attributes.h"
#include "ferry/cann.h"

namespace ferry::cann::internal {

enum class Purpose : std::uint8_t { kDispatch, kCombine };

struct Settings {
  // Messages list the settings in this order.
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

// The settings of arguments whose attributes were checked. With global_bs 0 they include Bs, which
// must then be equal on all ranks.
Settings settings_of(const DispatchArgs& args);
Settings settings_of(const CombineArgs& args);

// The index of an exchange in an ExchangeCache. All ranks hold equal exchanges in equal order.
using ExchangeIndex = int;
inline constexpr ExchangeIndex kSame = 0;    // the exchange of the call before
inline constexpr ExchangeIndex kNew = 2047;  // an exchange that is to be made

// The number that a rank sends with its call (ferry::Digests). The lower half is never 0: it has a
// digest of all settings except the columns of scales, and says whether the rank skips and whether
// it takes any number of scales. The upper half has the columns of a dispatch and, for a rank that
// skips, the exchange to which it goes. For a combine that does not skip it is 0 here, and the
// caller puts Triplets::share_of_zero() there.
std::uint64_t digest_of(const Settings& settings, ExchangeIndex goes_to, bool any_scales);

// The outcome that follows from the numbers of the active ranks. A rank that refused has the number
// 0, which names no settings.
struct Agreement {
  bool refused = false;  // a rank refused
  bool equal = true;     // the settings are equal, and all ranks go on if one does
  // The exchange that most ranks need. Ranks that take any scales count only if all ranks do.
  ExchangeIndex next = kSame;
  std::optional<std::int64_t> scale_columns = {};  // none: every rank takes any number
  // [ranks that did not refuse] Equal numbers mean equal settings.
  std::vector<std::uint64_t> settings = {};
};
Agreement agreement_of(std::span<const std::uint64_t> digests, Purpose purpose);

// "name is value and value" for each setting that differs.
std::string differences(const Settings& first, const Settings& other);

const char* operator_name(Purpose purpose) noexcept;

}  // namespace ferry::cann::internal
