// What a configuration may be, and what it says as text.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ferry/config.h"

namespace ferry::internal {

// Throws Error(kInvalidArgument) unless the configuration is legal for `num_ranks` ranks; fills in
// the defaults.
ExchangeConfig complete_config(ExchangeConfig config, int num_ranks);

// Everything that ranks must agree on: names as in ExchangeConfig, and values.
std::vector<std::pair<std::string, std::string>> config_fields(const ExchangeConfig& config);
// The same as lines of "name is value" (differences.h).
std::string config_text(const ExchangeConfig& config);

}  // namespace ferry::internal
