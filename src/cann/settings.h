// Settings: the arguments on which the ranks of a call must agree, as numbers under the names of
// the operators. Ranks compare digests with every call, and the numbers where digests differ. Pure
// functions.
#pragma once

#include <array>
#include <cstdint>
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

// Never 0, and different for a rank that makes its call in another exchange.
std::uint32_t digest_of(const Settings& settings, bool skips);

// "name is value and value" for each setting that differs.
std::string differences(const Settings& first, const Settings& other);

const char* operator_name(Purpose purpose) noexcept;

}  // namespace ferry::cann::internal
