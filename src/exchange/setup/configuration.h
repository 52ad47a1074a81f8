// Limits on the fields of an ExchangeConfig, and its fields as text.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ferry/config.h"

namespace ferry::internal {

// Throws Error(kInvalidArgument) unless the configuration is legal for `num_ranks` ranks; fills in
// the defaults.
ExchangeConfig complete_config(ExchangeConfig config, int num_ranks);

// The name and the value of each field that must be equal on all ranks. The names are those of
// ExchangeConfig.
std::vector<std::pair<std::string, std::string>> config_fields(const ExchangeConfig& config);
// The same fields as lines of "name is value" (differences.h).
std::string config_text(const ExchangeConfig& config);

}  // namespace ferry::internal
